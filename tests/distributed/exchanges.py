"""What both processes do with exchanges by sends: next to torch's, in models, and where only one of them has dcir."""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

import dcir
from dcir.driver.training import sharded_exchange
from dcir.runtime import exchange
from dcir.runtime.exchange import GatherBySends, ReduceBySends
from tests.distributed import sharded

SIZES = (1, 1000, exchange._PIECE + 3)
CPU = torch.device("cpu")


def world() -> Any:
    group = dist.distributed_c10d._get_default_group()
    assert group.size() == 2
    return group


def as_torch_does(rank: int) -> None:
    """All numbers, bit by bit."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for size in SIZES:
            values = torch.randn(2 * size, generator=torch.Generator().manual_seed(rank)).to(dtype)
            for asynchronous in (False, True):
                found = [_gathered(comm, values, asynchronous) for comm in (DefaultAllGather(), GatherBySends())]
                assert torch.equal(*found)
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
                sums = [_reduced(comm, values, op) for comm in (DefaultReduceScatter(), ReduceBySends())]
                assert torch.equal(*sums)


def _gathered(comm: Any, part: torch.Tensor, asynchronous: bool) -> torch.Tensor:
    whole = comm.allocate((2 * part.numel(),), dtype=part.dtype, device=CPU).fill_(7)
    work = comm(whole, part, world(), asynchronous)
    if work is not None:
        work.wait()
    return whole


def _reduced(comm: Any, values: torch.Tensor, op: Any) -> torch.Tensor:
    result = comm.allocate((values.numel() // 2,), dtype=values.dtype, device=CPU).fill_(7)
    comm(output_tensor=result, input_tensor=values.clone(), group=world(), op=op)
    return result


def several_under_way(rank: int) -> None:
    """What is gathered ahead does not meet what is reduced meanwhile, and comes in the order in which it was asked for."""
    comm, parts = GatherBySends(), [torch.full((size,), 10.0 * size + rank) for size in (100_000, 7)]
    wholes = [torch.zeros(2 * len(part)) for part in parts]
    works: list[Any] = [comm(whole, part, world()) for whole, part in zip(wholes, parts, strict=True)]
    assert torch.equal(_reduced(ReduceBySends(), torch.ones(2000), dist.ReduceOp.SUM), torch.full((1000,), 2.0))
    for work, whole, part in zip(works, wholes, parts, strict=True):
        assert isinstance(work, dist.Work)
        work.wait()
        work.wait()
        expected = torch.cat([torch.full_like(part, 10.0 * len(part) + r) for r in range(2)])
        assert torch.equal(whole, expected)


def large(rank: int) -> None:
    """What is larger than malloc keeps comes from memory that is used again, unless somebody holds it."""
    size = exchange.LARGEST_KEPT // 4 + 1
    comm = GatherBySends()
    first = comm.allocate((size,), dtype=torch.float32, device=CPU)
    second = comm.allocate((size,), dtype=torch.float32, device=CPU)
    place = first.data_ptr()
    assert second.data_ptr() != place
    del first
    assert comm.allocate((size,), dtype=torch.float32, device=CPU).data_ptr() == place


_WITH_OWN = functools.partial(dcir.optimize, own_exchange=True)


@mock.patch.object(dcir, "optimize", _WITH_OWN)
def installed(rank: int) -> None:
    """All groups of a tree have it after the first step, whichever module was compiled; none where that is not wanted."""
    for order, layers in (("optimize layers, then shard", False), ("shard, then optimize", True)):
        model = sharded.sharded(order, layers)
        assert kinds(model) == {(DefaultAllGather, DefaultReduceScatter)}
        with torch.no_grad():
            model(sharded.batch(rank, 0))
        assert kinds(model) == {(GatherBySends, ReduceBySends)}
    model = sharded.network()
    sharded.shard(model, True)
    model.blocks[0].set_custom_all_gather(Own())
    fast = dcir.optimize(model)
    with torch.no_grad():
        fast(sharded.batch(rank, 0))
    assert kinds(fast) == {(GatherBySends, ReduceBySends), (Own, DefaultReduceScatter)}
    model = sharded.network()
    sharded.shard(model, True)
    fast = dcir.optimize(model, own_exchange=False)
    with torch.no_grad():
        fast(sharded.batch(rank, 0))
    assert kinds(fast) == {(DefaultAllGather, DefaultReduceScatter)}


class Own(DefaultAllGather):
    """The user's."""


def kinds(model: nn.Module) -> set[tuple[type, type]]:
    found = list(sharded_exchange._groups(model))
    if not found:  # nobody knows of the others before the first call
        states = (sharded_exchange._get_module_state(m) for m in model.modules())
        found = [g for s in states if s is not None for g in s._fsdp_param_groups]  # type: ignore[attr-defined]
    assert found
    return {(type(g._all_gather_comm), type(g._reduce_scatter_comm)) for g in found}


@mock.patch.object(dcir, "optimize", _WITH_OWN)
def only_one_has_dcir(rank: int) -> tuple[int, int]:
    """Then both go on as torch does."""
    asked = []
    with mock.patch.object(sharded_exchange, "_SECONDS", 0.5):
        eager = sharded.plain(True)
        mixed = sharded.sharded("optimize layers, then shard", True) if rank == 0 else sharded.plain(True)
        agreed = sharded_exchange._agreed
        with mock.patch.object(sharded_exchange, "_agreed", lambda *a: asked.append(a) or agreed(*a)):
            for number in range(3):
                for model in (eager, mixed):
                    model(sharded.batch(rank, number)).square().mean().backward()
    sharded.same(eager, mixed)
    assert kinds(mixed) == {(DefaultAllGather, DefaultReduceScatter)}
    try:
        # Now both have it, and neither waits for an answer.
        with mock.patch.object(sharded_exchange, "timedelta", side_effect=AssertionError):
            both = sharded.sharded("shard, then optimize", True)
            with torch.no_grad():
                both(sharded.batch(rank, 0))
        assert kinds(both) == {(DefaultAllGather, DefaultReduceScatter)}
    finally:
        _ask_again()
    return len(asked), len(list(sharded_exchange._groups(mixed)))


def _ask_again() -> None:
    """For the tests that come after in the same processes."""
    dist.barrier()
    sharded_exchange._ASKED.clear()
    if dist.get_rank() == 0:
        store = dist.distributed_c10d._get_default_store()
        store.delete_key(f"dcir exchange/{world().group_name}/left")
    dist.barrier()
