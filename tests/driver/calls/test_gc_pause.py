"""The collector's thresholds: raised inside of calls that may compile, as they were afterwards, whoever else sets them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import dcir
from dcir.driver.calls.gc_pause import SELDOM, seldom_collected


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
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


@pytest.mark.parametrize("own", [(0, 10, 10), (90000, 5, 5)])
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
