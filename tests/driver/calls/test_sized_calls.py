"""Repeated calls of changing sizes take the short way, with eager's results, and leave it where they are other calls."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dcir
from dcir.driver.calls import sized_calls
from dcir.errors import InvalidInput
from dcir.runtime import watch

pytestmark = [
    pytest.mark.in_turn(3),
    pytest.mark.skipif(not watch.available(), reason="dictionaries without versions"),
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::dcir.errors.RecompileWarning"),
]


class Scores(nn.Module):
    """Rows of any number and length, beside a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.dense = nn.Embedding(40, 16), nn.Linear(16, 24)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        x = torch.tanh(self.dense(self.table(ids))) * mask[..., None]
        return {"rows": x.sum(1) / mask.sum(1, keepdim=True).clamp(min=1), "all": (x, None)}


class Narrow(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x.relu() * 2, x.shape[0]


def inputs(b: int, s: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 40, (b, s)), (torch.rand(b, s) > 0.3).float()


def same(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(wanted), strict=True):
        if isinstance(a, torch.Tensor):
            assert a.stride() == b.stride()


@torch.no_grad()
def warm(module: nn.Module, make: Callable[..., Any] = inputs, **options: Any) -> Any:
    fast = dcir.optimize(module, **options)
    for b, s in ((4, 9), (5, 11), (6, 12), (7, 9), (3, 14)):
        x = make(b, s)
        same(fast(*x), module(*x))
    return fast


def test_any_sizes_take_the_short_way(short: list[bool]) -> None:
    fast = warm(module := Scores().eval())
    short.clear()
    with torch.no_grad():
        for b, s in ((4, 10), (2, 30), (9, 3), (4, 10), (40, 7), (7, 40)):
            x = inputs(b, s)
            same(fast(*x), module(*x))
    assert all(short) and len(fast.dcir.session.graphs) == 2


def test_named_arguments(short: list[bool]) -> None:
    fast = dcir.optimize(module := Scores().eval())
    with torch.no_grad():
        for b in range(3, 15):
            ids, mask = inputs(b, 2 * b)
            same(fast(ids, mask=mask), module(ids, mask))
    assert all(short[-4:])


def test_weights_that_change_between(short: list[bool]) -> None:
    fast = warm(module := Scores().eval())
    short.clear()
    with torch.no_grad():
        for b in (4, 5, 6, 7):
            module.dense.weight.mul_(1.5)
            module.table.weight.data.add_(0.1)
            x = inputs(b, 2 * b)
            same(fast(*x), module(*x))
        module.dense.weight = nn.Parameter(torch.randn(24, 16))
        for b in [4 + i % 30 for i in range(140)]:
            x = inputs(b, 2 * b)
            same(fast(*x), module(*x))
    assert all(short[-4:])  # what was learnt of the old weights is learnt again


def test_sizes_that_do_not_belong_together(short: list[bool]) -> None:
    """A guard on two sizes is kept: eager's error, not another call's memory."""
    fast = warm(module := Scores().eval())
    with torch.no_grad():
        for mask in (torch.ones(4, 8), torch.ones(3, 9), torch.ones(4, 1), torch.ones(9)):
            ids = inputs(4, 9)[0]
            try:
                wanted = module(ids, mask)
            except (RuntimeError, IndexError):
                short.clear()
                with pytest.raises((RuntimeError, IndexError)):
                    fast(ids, mask)
                assert not any(short)
            else:
                same(fast(ids, mask), wanted)


def test_arguments_that_lie_otherwise(short: list[bool]) -> None:
    fast = warm(module := Scores().eval())
    with torch.no_grad():
        ids, mask = inputs(20, 9)
        for x in (
            (ids.t(), mask.t()),
            (ids[::2], mask[::2]),
            (ids, mask.t().contiguous().t()),
            (ids[:, 2:], mask[:, 2:]),
        ):
            short.clear()
            same(fast(*x), module(*x))
            assert not any(short)  # strides are guards


def test_other_types_and_sizes_of_one_and_none() -> None:
    fast = warm(module := Scores().eval())
    with torch.no_grad():
        for b, s in ((1, 9), (4, 1), (1, 1), (4, 9), (0, 9), (5, 9)):
            x = inputs(b, s)
            same(fast(*x), module(*x))
        ids, mask = inputs(4, 9)
        same(fast(ids.int(), mask), module(ids.int(), mask))
        same(fast(ids, mask.double()), module(ids, mask.double()))


def test_bounds_are_checked_on_the_short_way(short: list[bool]) -> None:
    bounded = {name: {0: "b", 1: torch.export.Dim("s", min=2, max=50)} for name in ("ids", "mask")}
    fast = warm(module := Scores().eval(), dynamic=bounded)
    short.clear()
    with torch.no_grad():
        for s in (20, 40):
            x = inputs(4, s)
            same(fast(*x), module(*x))
        assert all(short)
        with pytest.raises(InvalidInput, match="51"):
            fast(*inputs(4, 51))
        x = inputs(4, 50)
        same(fast(*x), module(*x))


def test_a_size_in_the_result_goes_the_long_way(short: list[bool]) -> None:
    fast = warm(module := Narrow().eval(), lambda b, s: (torch.randn(b, s),))
    with torch.no_grad():
        for b in (4, 5, 9):
            x = torch.randn(b, 7)
            got, wanted = fast(x), module(x)
            assert got[1] == wanted[1] == b
            same(got[0], wanted[0])
    assert not any(short)


def test_sizes_beyond_the_program(short: list[bool]) -> None:
    """Larger sizes than a program is for have another one, which is learnt beside it."""
    fast = warm(module := Scores().eval())
    (moving,) = (g for g in fast.dcir.session.graphs if g.bounds)
    most = moving.bounds[1][2]
    with torch.no_grad():
        for s in (most + 1, 12, most + 2, most + 3, 14, most + 4, most + 5, most + 9, 16, most + 6):
            x = inputs(3, s)
            same(fast(*x), module(*x))
    assert all(short[-2:])


def test_results_that_are_held_stay() -> None:
    fast = warm(module := Scores().eval(), make := lambda b, s: inputs(64 * b, s))
    with torch.no_grad():
        calls = [make(b, 5 + b % 3) for b in (4, 5, 4, 6, 4)]
        held = [fast(*x) for x in calls]
        for got, x in zip(held, calls, strict=True):
            same(got, module(*x))


def test_modes_and_gradients() -> None:
    fast = warm(module := Scores().eval())
    x = inputs(4, 13)
    with torch.inference_mode():
        same(fast(*x), module(*x))
    same(fast(*x), module(*x))
    got = fast(*x)["rows"].sum()
    got.backward()
    assert module.dense.weight.grad is not None
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        got, wanted = fast(*x)["rows"], module(*x)["rows"]
        assert got.dtype == wanted.dtype
    with torch.no_grad():
        same(fast(*x), module(*x))
    module.train()
    with torch.no_grad():
        same(fast(*x), module(*x))


def test_several_threads() -> None:
    fast = warm(module := Scores().eval())
    wrong: list[Any] = []

    def work(seed: int) -> None:
        with torch.no_grad():
            for i in range(40):
                x = inputs(2 + (seed * 7 + i) % 9, 3 + (seed + i) % 17)
                try:
                    same(fast(*x), module(*x))
                except AssertionError as e:
                    wrong.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_not_more_programs_are_kept_than_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized_calls, "MOST_KEPT", 3)
    made: list[sized_calls.SizedCalls] = []
    new = sized_calls.SizedCalls._new

    def noted(self: sized_calls.SizedCalls, *args: Any) -> Any:
        made.append(self)
        return new(self, *args)

    monkeypatch.setattr(sized_calls.SizedCalls, "_new", noted)
    fast = warm(module := Scores().eval())
    with torch.no_grad():
        for b in range(2, 12):
            x = inputs(b, 9)
            same(fast(*x), module(*x))
    assert len(made) >= 8 and all(len(calls._kept) <= 3 for calls in made)
