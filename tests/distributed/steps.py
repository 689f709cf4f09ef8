"""What both processes do with ``dcir.train_step`` under DistributedDataParallel: PyTorch's steps and compiled ones, in turn."""

import contextlib
import gc
import io
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import dcir
from dcir.driver.training import replicated_step
from dcir.errors import InvalidInput, NotCompiledWarning, Unsupported
from dcir.runtime.program import Program
from tests.distributed import pair
from tests.robustness.cycles import alive

SIDE = 384
BUCKET = 1
"""Megabytes: less than one layer in double precision. Dynamo allows no less."""

OPTIMISERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, eps=1e-4),
}


class Network(nn.Module):
    """A batch norm, a weight that is used twice, a layer that is used on request, and a parameter that nobody uses."""

    def __init__(self, *, unused: bool = False) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(SIDE, SIDE), nn.BatchNorm1d(SIDE)
        self.second, self.third = nn.Linear(SIDE, SIDE), nn.Linear(SIDE, SIDE)
        self.third.weight = self.second.weight
        self.now_and_then = nn.Linear(SIDE, SIDE)
        self.unused = nn.Parameter(torch.ones(3)) if unused else None

    def forward(self, x: Tensor, more: bool = True) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = self.third(torch.tanh(self.second(x)))
        return self.now_and_then(x) if more else x


class Side:
    """A replica with its optimiser, in double precision so that only formulas can differ.

    Args:
        optimiser: a name of ``OPTIMISERS``.
        clip: as for ``dcir.train_step``.
        options: of ``DistributedDataParallel``.
    """

    def __init__(self, optimiser: str = "sgd", clip: dict[str, float] | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        unused = bool(options.get("find_unused_parameters"))
        self.clip = clip or {}
        self.model = DistributedDataParallel(
            self.prepared(Network(unused=unused).double()), **{"bucket_cap_mb": BUCKET} | options
        )
        self.optimizer = OPTIMISERS[optimiser](self.model.parameters())

    def prepared(self, module: nn.Module) -> nn.Module:
        return module

    def step(self, *batch: Any) -> Tensor:
        """A step as a user of PyTorch writes it."""
        loss = self.differentiated(*batch)
        parameters = list(self.model.parameters())
        if "clip_grad_norm" in self.clip:
            nn.utils.clip_grad_norm_(parameters, self.clip["clip_grad_norm"])
        if "clip_grad_value" in self.clip:
            nn.utils.clip_grad_value_(parameters, self.clip["clip_grad_value"])
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def differentiated(self, *batch: Any) -> Tensor:
        """Gradients alone."""
        *inputs, target = batch
        loss = mse_loss(self.model(*inputs), target)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


class Compiled(Side):
    """The same with ``dcir.train_step``."""

    def __init__(self, optimiser: str = "sgd", clip: dict[str, float] | None = None, **options: Any) -> None:
        super().__init__(optimiser, clip, **options)
        self.compiled = dcir.train_step(self.model, mse_loss, self.optimizer, **self.clip)  # type: ignore[arg-type]

    def step(self, *batch: Any) -> Tensor:
        return self.compiled(*batch)

    @property
    def graphs(self) -> Counter[str]:
        """How many graphs of which kind were compiled."""
        return Counter(g.kind for g in self.compiled.dcir.session.graphs)


class Optimised(Compiled):
    """The same of a model that is optimised inside of its replica, for what is called beside steps."""

    def prepared(self, module: nn.Module) -> nn.Module:
        return dcir.optimize(module)  # type: ignore[no-any-return]


def batches(rank: int, *sizes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Of another content in every process."""
    generator = torch.Generator().manual_seed(10 + rank)
    for size in sizes:
        yield tuple(torch.randn(size, SIDE, generator=generator, dtype=torch.float64) for _ in range(2))  # type: ignore[misc]


def close(have: Any, want: Any) -> None:
    torch.testing.assert_close(have, want, rtol=1e-8, atol=1e-10)


def same(eager: Side, fast: Side) -> None:
    """Compare parameters, buffers, gradients and the optimiser's state; and that replicas are equal to the last bit."""
    for (name, want), have in zip(eager.model.state_dict().items(), fast.model.state_dict().values(), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-8, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")
    assert all(p.grad is None for side in (eager, fast) for p in side.model.parameters())
    want, have = eager.optimizer.state_dict(), fast.optimizer.state_dict()
    assert have["param_groups"] == want["param_groups"]
    assert have["state"].keys() == want["state"].keys()
    close([list(s.values()) for s in have["state"].values()], [list(s.values()) for s in want["state"].values()])
    mine = torch.cat([p.detach().flatten() for p in fast.model.parameters()])
    all_of_them = [torch.empty_like(mine) for _ in range(pair.RANKS)]
    dist.all_gather(all_of_them, mine)
    assert torch.equal(*all_of_them)


def trained(rank: int, optimiser: str, clip: dict[str, float], options: dict[str, Any]) -> Counter[str]:
    """Steps, the last in eval mode: losses, parameters, buffers, state."""
    eager, fast = Side(optimiser, clip, **options), Compiled(optimiser, clip, **options)
    for number, batch in enumerate(batches(rank, 6, 6, 6, 6, 6)):
        for side in (eager, fast):
            side.model.train(number != 4)
        close(fast.step(*batch), eager.step(*batch))
        same(eager, fast)
    norm = fast.compiled.grad_norm
    assert (norm is not None) == ("clip_grad_norm" in clip)
    return fast.graphs


def of_an_optimised_model(rank: int, outside: bool) -> Counter[str]:
    """``dcir.optimize`` inside of the replica or around it: a step compiles the model under it, in the mode that the whole is in."""
    eager, fast = Side(), Compiled() if outside else Optimised()
    if outside:
        fast.model = dcir.optimize(fast.model)
        fast.compiled = dcir.train_step(fast.model, mse_loss, fast.optimizer)
    for number, batch in enumerate(batches(rank, 6, 6, 6)):
        for side in (eager, fast):
            side.model.train(number != 1)
        close(fast.step(*batch), eager.step(*batch))
        same(eager, fast)
    return fast.graphs


def sometimes(rank: int, most: int) -> tuple[Counter[str], int]:
    """A layer that is used in some steps, a parameter that never is: neither is updated without a gradient. At most so many updates."""
    eager, fast = (make(find_unused_parameters=True) for make in (Side, Compiled))
    kept, replicated_step.MOST_UPDATES = replicated_step.MOST_UPDATES, most
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for more, (x, y) in zip((False, True, False, True, True), batches(rank, *[6] * 5), strict=True):
                close(fast.step(x, more, y), eager.step(x, more, y))
                same(eager, fast)
    finally:
        replicated_step.MOST_UPDATES = kept
    return fast.graphs, sum(w.category is NotCompiledWarning for w in caught)


def accumulated(rank: int, options: dict[str, Any]) -> None:
    """Gradients of two batches without an exchange, which the step after them takes; then a step alone."""
    eager, fast = Side(**options), Optimised(**options)
    for _ in range(3):
        first, second, third, fourth = batches(rank, 6, 6, 6, 6)
        for side in (eager, fast):
            with side.model.no_sync():
                side.differentiated(*first)
                side.differentiated(*second)
        close(fast.step(*third), eager.step(*third))
        same(eager, fast)
        close(fast.step(*fourth), eager.step(*fourth))
        same(eager, fast)
    with fast.model.no_sync(), pytest.raises(InvalidInput, match="no_sync") as caught:
        fast.step(*third)
    assert caught.value.where and caught.value.hint


def of_changing_sizes(rank: int) -> None:
    eager, fast = Side("adamw"), Compiled("adamw")
    for batch in batches(rank, 6, 4, 9, 1 + 1):
        close(fast.step(*batch), eager.step(*batch))
        same(eager, fast)


def uneven(rank: int) -> None:
    """One process has more batches than the other."""
    sides = Side(), Compiled()
    for side in sides:
        with Join([side.model]):
            for batch in batches(rank, *[6] * (2 + rank)):
                side.step(*batch)
    for e, f in zip(*(side.model.state_dict().values() for side in sides), strict=True):
        close(f, e)


def handed_over(rank: int) -> tuple[list[int], int]:
    """How many parts of a step's backward have run when each bucket is sent, and how many there are; with a hook that halves."""
    runs: list[Any] = []
    part_by_part = Program.part_by_part

    def noted(self: Program, *args: Any) -> Any:
        results, run = part_by_part(self, *args)
        runs.append(run)
        return results, run

    sent: list[int] = []

    def halved(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent.append(runs[-1]._next if runs else 0)
        sum_of = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return sum_of.then(lambda done: done.value()[0] / 4)

    eager, fast = Side(), Compiled()
    for side in (eager, fast):
        side.model.register_comm_hook(None, halved)
    batch = list(batches(rank, 6, 6, 6))
    for b in batch:
        eager.step(*b)
    Program.part_by_part = noted  # type: ignore[method-assign]
    try:
        for b in batch:
            sent.clear()
            fast.step(*b)
    finally:
        Program.part_by_part = part_by_part  # type: ignore[method-assign]
    same(eager, fast)
    return sent, runs[-1]._parts


def not_copied(rank: int) -> tuple[list[int], list[int]]:
    """Elements of gradients that lie in a bucket when they are complete, before the reducer has seen them, by step: eager's, and a compiled
    step's. Gradients that are added to others (step 3) are in memory of their own."""
    found = []
    for make in (Side, Optimised):
        side = make(gradient_as_bucket_view=True)
        storages: set[int] = set()
        complete: list[tuple[int, int]] = []

        def sent(state: Any, bucket: dist.GradBucket, storages: set[int] = storages) -> torch.futures.Future[Tensor]:
            storages.add(bucket.buffer().untyped_storage().data_ptr())
            return dist.all_reduce(bucket.buffer() / 2, async_op=True).get_future().then(lambda done: done.value()[0])

        def noted(p: Tensor, complete: list[tuple[int, int]] = complete) -> None:
            assert p.grad is not None
            complete.append((p.grad.untyped_storage().data_ptr(), p.numel()))

        side.model.register_comm_hook(None, sent)
        for p in side.model.parameters():
            p.register_post_accumulate_grad_hook(noted)
        counts = []
        for number, batch in enumerate(batches(rank, *[6] * 6)):
            if number == 3:
                with side.model.no_sync():
                    side.differentiated(*batch)
            storages.clear()
            complete.clear()
            side.step(*batch)
            counts.append(sum(n for at, n in complete if at in storages))
        found.append((counts, side))
    same(found[0][1], found[1][1])
    return found[0][0], found[1][0]


def checkpoints(rank: int, optimiser: str) -> None:
    """What PyTorch has saved goes on as a compiled step, and the other way round."""
    for first, second in ((Side, Compiled), (Compiled, Side)):
        before, there, here = first(optimiser), second(optimiser), first(optimiser)
        for batch in batches(rank, 6, 6):
            before.step(*batch)
        saved = io.BytesIO()
        torch.save((before.model.state_dict(), before.optimizer.state_dict()), saved)
        for side in (there, here):
            saved.seek(0)
            model, state = torch.load(saved)
            side.model.load_state_dict(model)
            side.optimizer.load_state_dict(state)
        for batch in batches(rank + 5, 6, 6):
            close(there.step(*batch), here.step(*batch))
        same(there, here)


def in_bfloat16(rank: int) -> Counter[str]:
    """Under autocast: no further from float32 than PyTorch's own steps under autocast."""
    torch.manual_seed(0)
    batch = [tuple(t.float() for t in b) for b in batches(rank, *[64] * 3)]
    models = [DistributedDataParallel(Network(), bucket_cap_mb=BUCKET) for _ in range(3)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    step = dcir.train_step(models[2], mse_loss, optimizers[2], autocast=torch.bfloat16)
    for x, y in batch:
        for model, optimizer, cast in zip(models, optimizers, (False, True), strict=False):
            with torch.autocast("cpu", torch.bfloat16) if cast else contextlib.nullcontext():
                loss = mse_loss(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        found = step(x, y)
        torch.testing.assert_close(found, loss.detach(), rtol=2e-2, atol=2e-2)
    exact, eager, fast = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in models)
    assert (eager - exact).norm() > 0
    assert (fast - exact).norm() <= 1.5 * (eager - exact).norm()
    return Counter(g.kind for g in step.dcir.session.graphs)


def refused(rank: int) -> None:
    """What does not go with a step says so, with what to try."""

    def replica(module: nn.Module | None = None, **options: Any) -> DistributedDataParallel:
        return DistributedDataParallel(module or Network().double(), **options)

    hooked, mixed, late = replica(), replica(), replica()
    hooked.register_forward_hook(lambda *_: None)
    mixed.mixed_precision = object()
    inner = Network().double()
    delayed = replica(
        inner,
        delay_all_reduce_named_params=[("first.weight", inner.first.weight)],
        param_to_hook_all_reduce=inner.norm.weight,
    )
    table = replica(nn.Sequential(nn.Embedding(20, SIDE, sparse=True, dtype=torch.float64)))
    (x, y), *_ = batches(rank, 6)
    cases = [
        ("a hook on DistributedDataParallel", hooked, x), ("mixed_precision", mixed, x), ("delay_all_reduce", delayed, x),
        ("DistributedDataParallel is inside", replica(nn.Sequential(replica())), x),
        ("sparse", table, torch.arange(6)),
    ]  # fmt: skip
    for what, model, given in cases:
        with pytest.raises(Unsupported, match=what) as caught:
            dcir.train_step(model, mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))(given, y)
        assert caught.value.where and caught.value.hint
    step = dcir.train_step(late, mse_loss, torch.optim.SGD(late.parameters(), lr=0.1))
    step(x, y)
    late.register_forward_pre_hook(lambda *_: None)
    with pytest.raises(Unsupported, match="a hook on DistributedDataParallel"):
        step(x, y)
    other = replica()
    step = dcir.train_step(other, lambda found, _: found, torch.optim.SGD(other.parameters(), lr=0.1))
    with pytest.raises(Unsupported, match="no scalar"):
        step(x, y)


def gone(rank: int) -> list[str]:
    """What is left of a compilation when nobody has the step any more."""
    alive()
    gc.freeze()
    side = Compiled()
    side.step(*next(batches(rank, 6)))
    assert "Program" in [type(o).__name__ for o in alive()]
    del side
    # AOTAutograd holds on to the last graph with parameters until it sees another.
    torch.compile(torch.neg, backend="aot_eager")(torch.ones(2))
    left = [type(o).__name__ for o in alive()]
    gc.unfreeze()
    return left
