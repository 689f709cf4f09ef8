"""The collector: raised thresholds inside of calls that may compile, as they were afterwards; what they leave is old at once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import dcir
from dcir.driver.calls import gc_pause
from dcir.driver.calls.gc_pause import SELDOM, seldom_collected


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()  # what conftest.py has frozen
    yield
    gc.freeze()
    gc.set_threshold(*before)


def test_raised_while_compiling_and_restored() -> None:
    """A first call is collected seldom; an error leaves nothing behind."""
    seen = []

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            seen.append(gc.get_threshold())
            return x * 2 + 1

    dcir.optimize(Net())(torch.ones(3))
    assert seen[0] == SELDOM
    assert gc.get_threshold() == (700, 10, 10)
    with pytest.raises(ZeroDivisionError), seldom_collected():
        raise ZeroDivisionError
    assert gc.get_threshold() == (700, 10, 10)


def test_nested_and_from_threads() -> None:
    """The last one out restores them."""
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with seldom_collected():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with seldom_collected():
        thread.start()
        assert entered.wait(10)
        with seldom_collected():
            assert gc.get_threshold() == SELDOM
    assert gc.get_threshold() == SELDOM
    leave.set()
    thread.join()
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (900_000, 5, 5)])
def test_a_users_own_stay(own: tuple[int, int, int]) -> None:
    """Whoever has switched the collector off, or set it higher, or sets it meanwhile, keeps that."""
    gc.set_threshold(*own)
    with seldom_collected():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own
    gc.set_threshold(700, 10, 10)
    with seldom_collected():
        gc.set_threshold(*own)
    assert gc.get_threshold() == own


def test_a_users_own_that_are_the_raised_ones_stay() -> None:
    gc.set_threshold(*SELDOM)
    with seldom_collected():
        pass
    assert gc.get_threshold() == SELDOM


def _collections() -> int:
    found: int = gc.get_stats()[2]["collections"]
    return found


def _old() -> int:
    return len(gc.get_objects(generation=2))


def test_what_a_compilation_leaves_is_old_at_once() -> None:
    """And no reason to look at everything soon, which young objects in this number are otherwise."""
    gc.collect()
    before, full = _old(), _collections()
    with seldom_collected():
        kept = [[i] for i in range(400_000)]
    assert _old() >= before + len(kept)
    more = [[i] for i in range(30_000)]
    assert _collections() == full
    del kept, more
    kept = [[i] for i in range(max(400_000, _old() // 2))]  # a quarter more is what Python waits for
    assert len(kept) and _collections() > full


def test_garbage_of_compilations_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cycles that the young collection did not find go when compilations have left much."""
    monkeypatch.setattr(gc_pause, "MANY", 60_000)
    gc.collect()
    for _ in range(3):
        full = _collections()
        with seldom_collected():
            kept = [[i] for i in range(40_000)]
        again = _collections() > full
        del kept
        if again:
            return
    pytest.fail("nothing was collected")


def test_a_frozen_or_uncollected_heap_stays_as_it_is() -> None:
    gc.collect()
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with seldom_collected():
            kept = [[i] for i in range(40_000)]
        assert before - 100 < gc.get_freeze_count() <= before
    finally:
        gc.unfreeze()
    gc.disable()
    try:
        full = _collections()
        with seldom_collected():
            kept += [[i] for i in range(40_000)]
        assert _collections() == full
    finally:
        gc.enable()
