"""What both processes do with tensors that lie in both: exchanges inside compiled graphs, and the classes made of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dcir
from dcir.driver import api
from dcir.errors import Unsupported
from tests.distributed import pair, replicas, sharded

SIDE = 32


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.narrow = nn.Linear(SIDE, 2 * SIDE), nn.Linear(2 * SIDE, SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(torch.relu(self.wide(x)))


def parallel() -> Any:
    """The network with each layer's weight in both processes."""
    mesh = init_device_mesh("cpu", (pair.RANKS,))
    return parallelize_module(Network(), mesh, {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})


def tensor_parallel(rank: int) -> Counter[str]:
    """Steps, then inference, with one element of a weight changed in between: as the network in one process."""
    plain, fast = Network(), dcir.optimize(parallel())
    x = torch.randn(6, SIDE, generator=torch.Generator().manual_seed(1))
    for model in (plain, fast):
        optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
        optimizer.register_step_pre_hook(lambda o, args, kwargs, seen=seen: seen.append(o.param_groups[0]["fused"]))
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        assert seen == [None] * 3
    for p, f in zip(plain.parameters(), fast.parameters(), strict=True):
        assert isinstance(f, DTensor)
        torch.testing.assert_close(f.full_tensor(), p)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(fast(x), plain(x))
        plain.wide.weight[3, 4] += 10
        weight = fast.wide.weight
        weight.copy_(distribute_tensor(plain.wide.weight.clone(), weight.device_mesh, weight.placements))
        torch.testing.assert_close(fast(x), plain(x))
    return Counter(g.kind for g in fast.dcir.session.graphs)


def exchanges(rank: int) -> Counter[str]:
    """Several of them in one graph, of which two are equal and one has a result that nobody reads."""

    def spread(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = functional.all_reduce(x * 2, "sum", [0, 1])
        functional.all_reduce(x * 3, "max", [0, 1])
        again = functional.all_reduce(x * 2, "sum", [0, 1])
        rows = functional.all_gather_tensor(x + 1, 0, [0, 1])
        return total * again, rows.relu(), functional.reduce_scatter_tensor(rows * total.sum(), "sum", 0, [0, 1])

    fast = dcir.optimize(spread)
    for number in range(4):
        # Large enough to be still on its way when it is read too early.
        x = torch.randn(300, 1000, generator=torch.Generator().manual_seed(2 * number + rank))
        for got, want in zip(fast(x), spread(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
    return Counter(f for g in fast.dcir.session.graphs for f, _ in g.fallbacks)


def written_in_place(rank: int) -> None:
    """``torch.distributed``'s own functions, in a function that is traced."""

    def summed(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.distributed.all_reduce(y)
        return y + 1

    fast = dcir.optimize(summed)
    for _ in range(3):
        torch.testing.assert_close(fast(torch.full((9, 700), float(rank))), torch.full((9, 700), 3.0))
    assert fast.dcir.session.graphs


def given_and_returned(rank: int) -> None:
    """A DTensor as argument and as result: its mesh is handed on, also when PyTorch had made such a result before."""
    mesh = init_device_mesh("cpu", (pair.RANKS,))
    x = torch.randn(4, SIDE, generator=torch.Generator().manual_seed(1))

    def change(x: Any) -> Any:
        return torch.relu(x) * 2 + 1

    for placement in (Shard(0), Replicate()):
        given = distribute_tensor(x, mesh, [placement])
        fast = dcir.optimize(change)
        for got in (change(given), fast(given)):
            assert isinstance(got, DTensor) and got.placements == (placement,)
            assert got.device_mesh == mesh and type(got.device_mesh) is type(mesh)
            torch.testing.assert_close(got.full_tensor(), change(x))
        assert fast.dcir.session.graphs


def refused(rank: int, folder: str) -> None:
    """Whole steps and files are for one process, and say so."""
    batch = torch.ones(2, replicas.SIDE), torch.ones(2, replicas.SIDE)
    cases = [
        ("DistributedDataParallel", nn.Sequential(nn.parallel.DistributedDataParallel(replicas.of_torch_alone()))),
        ("fully_shard", sharded.plain(layers=True)),
        ("fully_shard", sharded.sharded("optimize, then shard", layers=False)),
        ("is a DTensor", parallel()),
    ]
    for what, model in cases:
        with pytest.raises(Unsupported, match=what) as caught:
            dcir.train_step(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))(*batch)
        assert caught.value.where and caught.value.hint
        with pytest.raises(Unsupported) as caught:
            api.save(model, [batch[0]], folder)
        assert caught.value.where and caught.value.hint
    model = sharded.network()
    step = dcir.train_step(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))
    sharded.shard(model, layers=False)
    with pytest.raises(Unsupported, match="fully_shard"):
        step(torch.ones(2, sharded.SIDE), torch.ones(2, sharded.SIDE))
