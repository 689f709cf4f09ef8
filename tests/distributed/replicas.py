"""What both processes do with DistributedDataParallel: the same steps in PyTorch and compiled, compared after each of them."""

import copy
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import dcir
from dcir.runtime.program import Program
from tests.robustness.cycles import alive

ORDERS = ("optimize inside", "optimize outside", "backend inside", "backend outside")
SIDE = 512
BUCKET = 1
"""Megabytes: one layer."""


class Layers(nn.Module):
    """Layers that fill a bucket each; the last one is used on request."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(SIDE, SIDE), nn.BatchNorm1d(SIDE)
        self.now_and_then = nn.Linear(SIDE, SIDE)

    def forward(self, x: torch.Tensor, *, more: bool = True) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.now_and_then(x) if more else x


def layers() -> nn.Module:
    torch.manual_seed(0)
    return Layers()


def of_torch_alone() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIDE, SIDE), nn.ReLU(), nn.Linear(SIDE, SIDE))


def replicated(model: nn.Module, order: str, **options: Any) -> Any:
    """The model compiled, and in DDP or around it."""
    options = {"bucket_cap_mb": BUCKET} | options
    if order == "optimize inside":
        return DistributedDataParallel(dcir.optimize(model), **options)
    if order == "optimize outside":
        return dcir.optimize(DistributedDataParallel(model, **options))
    if order == "backend inside":
        return DistributedDataParallel(torch.compile(model, backend="dcir"), **options)
    return torch.compile(DistributedDataParallel(model, **options), backend="dcir")


def both(make: Callable[[], nn.Module], order: str, **options: Any) -> tuple[Any, Any]:
    """A replicated model in PyTorch, and the same one compiled."""
    eager = DistributedDataParallel(make(), **{"bucket_cap_mb": BUCKET} | options)
    return eager, replicated(make(), order, **options)


def graphs(model: nn.Module) -> Counter[str]:
    """How many graphs of which kind were compiled for a model that ``dcir.optimize`` made."""
    session = next(m.dcir.session for m in model.modules() if hasattr(m, "dcir"))
    return Counter(g.kind for g in session.graphs)


def batches(rank: int, *sizes: int) -> Iterator[torch.Tensor]:
    """Of another content in every process."""
    generator = torch.Generator().manual_seed(10 + rank)
    for size in sizes:
        yield torch.randn(size, SIDE, generator=generator)


def same(eager: nn.Module, fast: nn.Module) -> None:
    """Compare gradients, parameters and buffers."""
    for e, f in zip(eager.parameters(), fast.parameters(), strict=True):
        assert (e.grad is None) == (f.grad is None)
        torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-5)
        if e.grad is not None:
            torch.testing.assert_close(f.grad, e.grad, rtol=1e-4, atol=1e-5)
    for e, f in zip(eager.buffers(), fast.buffers(), strict=True):
        torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-5)


def loss(model: nn.Module, x: torch.Tensor, **named: Any) -> torch.Tensor:
    result: torch.Tensor = model(x, **named).square().mean()
    return result


def trained(rank: int, order: str, options: dict[str, Any], sometimes: bool) -> Counter[str] | None:
    """Steps with momentum, then a call in inference. With ``sometimes`` a layer is used in every other step."""
    models = both(layers, order, **options)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in models]
    for number, x in enumerate(batches(rank, 6, 6, 6)):
        named = {"more": number != 1} if sometimes else {}
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad(set_to_none=number == 1)
            loss(model, x, **named).backward()
        same(*models)
        for optimizer in optimizers:
            optimizer.step()
        same(*models)
    eager, fast = (m.eval() for m in models)
    with torch.no_grad():
        for x in batches(rank, 6, 6, 6, 6):
            torch.testing.assert_close(fast(x), eager(x), rtol=1e-4, atol=1e-5)
    return graphs(fast) if order.startswith("optimize") else None


def accumulated(rank: int, order: str) -> None:
    """Gradients of several batches, the first ones without an exchange; the last graph is kept and used again."""
    models = both(layers, order)
    for model in models:
        first, second, third = batches(rank, 6, 6, 6)
        with model.no_sync():
            loss(model, first).backward()
            loss(model, second).backward()
        kept = loss(model, third)
        kept.backward(retain_graph=True)
        with model.no_sync():
            kept.backward()
    same(*models)


def with_a_table(rank: int, order: str) -> None:
    """A table's gradient is sparse, and exchanged as such; what is behind it is compiled."""

    def ranking() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(20, SIDE, sparse=True), nn.Linear(SIDE, 4), nn.GELU())

    models = both(ranking, order)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in models]
    for ids in ([rank, 3, 3], [2 + rank, 5, 1]):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss(model, torch.tensor(ids)).backward()
            assert [p.grad.is_sparse for p in model.parameters() if p.grad is not None] == [True, False, False]
            optimizer.step()
        for e, f in zip(*(m.parameters() for m in models), strict=True):
            torch.testing.assert_close(f.grad.to_dense(), e.grad.to_dense(), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-5)
    assert graphs(models[1]) == {"forward": 1, "backward": 1}


def of_changing_sizes(rank: int) -> None:
    models = both(layers, "optimize inside")
    for x in batches(rank, 6, 4):
        for model in models:
            model.zero_grad()
            loss(model, x).backward()
        same(*models)


def with_hook(rank: int) -> int:
    """A hook that sees every bucket; it halves what is exchanged."""
    models = both(layers, "optimize outside")
    seen = []

    def halved(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen.append(bucket.index())
        sent = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return sent.then(lambda done: done.value()[0] / 4)

    for model in models:
        model.register_comm_hook(None, halved)
        for x in batches(rank, 6, 6):
            model.zero_grad()
            loss(model, x).backward()
    same(*models)
    return len(set(seen))


def handed_over(rank: int) -> tuple[list[int], int]:
    """How many parts of a backward have run when each bucket is sent, and how many there are."""
    runs: list[Any] = []
    part_by_part = Program.part_by_part

    def noted(self: Program, *args: Any) -> Any:
        results, run = part_by_part(self, *args)
        runs.append(run)
        return results, run

    model = replicated(layers(), "optimize inside")
    sent: list[int] = []

    def exchanged(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent.append(runs[-1]._next)
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0] / 2)

    model.register_comm_hook(None, exchanged)
    Program.part_by_part = noted  # type: ignore[method-assign]
    try:
        for x in batches(rank, 6, 6):
            sent.clear()
            loss(model, x).backward()
    finally:
        Program.part_by_part = part_by_part  # type: ignore[method-assign]
    return sent, runs[-1]._parts


def uneven(rank: int) -> None:
    """One process has more batches than the other."""
    models = both(of_torch_alone, "optimize inside")
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with Join([model]):
            for x in batches(rank, *[6] * (2 + rank)):
                optimizer.zero_grad()
                loss(model, x).backward()
                optimizer.step()
    same(*models)


def through_either(rank: int) -> None:
    """What is set on the replica that was optimised is so for its calls, and the other way around: uneven inputs, and ``no_sync``."""
    eager, plain = (DistributedDataParallel(layers(), bucket_cap_mb=BUCKET) for _ in range(2))
    fast = dcir.optimize(plain)
    names = [*eager.state_dict()]
    sides = [(eager, eager), (plain, fast), (fast, fast)]
    for handle, called in sides[:2]:
        optimizer = torch.optim.SGD(called.parameters(), 0.1)
        with Join([handle]):
            for x in batches(rank, *[6] * (3 + rank)):
                optimizer.zero_grad()
                loss(called, x).backward()
                optimizer.step()
    same(eager, fast)
    x = next(batches(rank, 6))
    own = []
    for handle, called in sides:
        called.zero_grad()
        with handle.no_sync():
            loss(called, x).backward()
        own.append(called.module.first.weight.grad.clone())
        alone = called.module.first.weight.grad.clone()
        dist.broadcast(alone, 0)
        assert torch.equal(alone, own[-1]) == (rank == 0)  # not averaged: each has its own
    torch.testing.assert_close(own[1], own[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own[2], own[0], rtol=1e-4, atol=1e-5)
    assert [*plain.state_dict()] == [*fast.state_dict()] == names
    assert [*plain.named_modules()][1][1] is plain.module and type(plain.module) is Layers
    assert fast.module.dcir.session is fast.dcir.session and set(graphs(fast)) == {"forward", "backward"}
    fast.module = other = nn.Identity()
    assert fast.module is other is plain.module


def broadcast_buffer(rank: int) -> None:
    """One element of one buffer, changed in one process, arrives in calls by the short way too, though nobody counts that write."""
    models = [m.eval() for m in both(layers, "optimize inside", bucket_cap_mb=25)]
    x = next(batches(0, 6))
    for element in (3, 77):
        with torch.no_grad():
            for _ in range(6):
                outs = [m(x) for m in models]
                torch.testing.assert_close(outs[1], outs[0], rtol=1e-4, atol=1e-5)
        for model in models:
            loss(model, x).backward()  # buffers are sent again after a call that is differentiated
            if rank == 0:
                model.module.norm.running_mean[element] -= 1000
        with torch.no_grad():
            for _ in range(6):
                now = [m(x) for m in models]
                torch.testing.assert_close(now[1], now[0], rtol=1e-4, atol=1e-3)
        assert (now[0] - outs[0]).abs().max() > 0.1


def twins(rank: int) -> None:
    """An optimised DDP is one: of the same class, with the same parameters; it is copied and optimised again."""
    plain = DistributedDataParallel(of_torch_alone(), bucket_cap_mb=BUCKET)
    fast = dcir.optimize(plain)
    assert isinstance(fast, DistributedDataParallel) and isinstance(fast.module, nn.Sequential)
    assert list(fast.state_dict()) == list(plain.state_dict())
    assert all(a is b for a, b in zip(fast.parameters(), plain.parameters(), strict=True))
    assert plain.module is not fast.module and not hasattr(plain.module, "dcir")
    x = next(batches(rank, 6))
    for other in (fast, copy.deepcopy(fast), dcir.optimize(fast)):
        loss(other, x).backward()
        assert other.dcir.session.graphs and other.dcir.session is other.module.dcir.session
    assert graphs(fast) == {"forward": 1, "backward": 1}
    report = fast.dcir.explain()
    assert not report.uncompiled and not report.breaks
    strict = dcir.optimize(plain, strict=True)
    loss(strict, x).backward()
    assert graphs(strict) == {"forward": 1, "backward": 1}
    assert "backward" in str(fast.dcir.profile(x, loss=torch.sum, seconds=0.01))


def gone(rank: int) -> list[str]:
    """What is left of a compilation when nobody has the model any more."""
    alive()
    gc.freeze()
    fast = dcir.optimize(DistributedDataParallel(of_torch_alone(), bucket_cap_mb=BUCKET))
    loss(fast, next(batches(rank, 6))).backward()
    assert "Program" in [type(o).__name__ for o in alive()]
    del fast
    # AOTAutograd holds on to the last graph with parameters until it sees another.
    torch.compile(torch.neg, backend="aot_eager")(torch.ones(2))
    left = [type(o).__name__ for o in alive()]
    gc.unfreeze()
    return left
