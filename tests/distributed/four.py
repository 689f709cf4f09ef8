"""What four processes do: replicas, shards and sums next to PyTorch's, and to float64."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.nn.parallel import DistributedDataParallel

import dcir
from dcir.runtime.exchange import GatherBySends, ReduceBySends
from tests.distributed import exchanges, sharded

RANKS, STEPS = 4, 5
CPU = torch.device("cpu")


def gradients(rank: int) -> tuple[float, float]:
    """Largest error of a gradient of replicas, eager's and dcir's, against float64 over its largest value."""
    exact = sharded.network().double()
    eager, fast = (DistributedDataParallel(m, bucket_cap_mb=0.02) for m in (sharded.network(), _optimized()))
    errors = [0.0, 0.0]
    for number in range(2):
        # The mean over all processes is that over all of their batches, which have as many rows.
        rows = torch.cat([sharded.batch(r, number) for r in range(RANKS)]).double()
        for model, x in ((exact, rows), *((m, sharded.batch(rank, number)) for m in (eager, fast))):
            model.zero_grad()
            model(x).square().mean().backward()
        for i, model in enumerate((eager, fast)):
            for e, f in zip(exact.parameters(), model.parameters(), strict=True):
                assert e.grad is not None and f.grad is not None
                errors[i] = max(errors[i], float((f.grad - e.grad).abs().max() / e.grad.abs().max()))
        for e, f in zip(eager.parameters(), fast.parameters(), strict=True):
            torch.testing.assert_close(f.grad, e.grad, rtol=1e-4, atol=1e-6)
    assert sharded.graphs(fast) == {"forward": 1, "backward": 1}
    return errors[0], errors[1]


def _optimized() -> Any:
    return dcir.optimize(sharded.network())


def losses(rank: int, own_exchange: bool) -> tuple[list[float], list[float], Counter[str]]:
    """Of steps under ``fully_shard``, in PyTorch and compiled; and what was compiled."""
    with mock.patch.object(dcir, "optimize", functools.partial(dcir.optimize, own_exchange=own_exchange)):
        models = sharded.plain(True), sharded.sharded("optimize layers, then shard", True)
    found: list[list[float]] = []
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        taken = []
        for number in range(STEPS):
            loss = model(sharded.batch(rank, number)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            taken.append(loss.item())
        found.append(taken)
    own = {(GatherBySends, ReduceBySends)}
    assert exchanges.kinds(models[1]) == (own if own_exchange else {(DefaultAllGather, DefaultReduceScatter)})
    sharded.same(*models)
    return found[0], found[1], sharded.graphs(models[1])


def exact_losses() -> list[list[float]]:
    """Those of each process in float64: one model trained on the mean of what all processes have."""
    model = sharded.network().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found: list[list[float]] = [[] for _ in range(RANKS)]
    for number in range(STEPS):
        each = [model(sharded.batch(rank, number).double()).square().mean() for rank in range(RANKS)]
        torch.stack(each).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for taken, loss in zip(found, each, strict=True):
            taken.append(loss.item())
    return found


def sums(rank: int) -> dict[str, float]:
    """Sums by sends are those of the ranks in their order, bit by bit; the largest error of each type over the bound on it."""
    group = dist.distributed_c10d._get_default_group()
    worst: dict[str, float] = {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for n in (1, 1000, 300_000):
            terms = [torch.randn(RANKS * n, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(RANKS)]
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
                comm = ReduceBySends()
                result = comm.allocate((n,), dtype=dtype, device=CPU).fill_(7)
                comm(output_tensor=result, input_tensor=terms[rank].clone(), group=group, op=op)
                mine = [t.view(RANKS, n)[rank] for t in terms]
                in_order = functools.reduce(torch.add, mine)
                mean = op == dist.ReduceOp.AVG
                assert torch.equal(result, in_order / RANKS if mean else in_order)
                if dtype != torch.float64:
                    wide = torch.stack(mine).double()
                    bound = (RANKS - 1) * torch.finfo(dtype).eps / 2 * wide.abs().sum(0) / (RANKS if mean else 1)
                    error = (result.double() - wide.sum(0) / (RANKS if mean else 1)).abs()
                    name = str(dtype)
                    worst[name] = max(worst.get(name, 0.0), float((error / bound).max()))
    return worst


def gathered(rank: int) -> None:
    """What is gathered lies in the order of the ranks, as with torch's."""
    group = dist.distributed_c10d._get_default_group()
    part = torch.full((1000,), float(rank))
    for kind in (DefaultAllGather, GatherBySends):
        comm: Any = kind()
        whole = comm.allocate((RANKS * 1000,), dtype=torch.float32, device=CPU).fill_(7)
        work = comm(whole, part, group)
        if work is not None:
            work.wait()
        assert torch.equal(whole.view(RANKS, 1000), torch.arange(4.0)[:, None].expand(RANKS, 1000))
