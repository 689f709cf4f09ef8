"""Batches are taken for sizes that change when other sizes first do, and left alone where it is not plain what the batch is."""

import pytest
import torch

import dcir
from dcir.driver.calls.moving_batches import MovingBatches
from tests.driver.test_moving_program import programs


def _shapes(*calls):
    """The shapes of what is taken for having a batch that changes, call by call."""
    batches = MovingBatches()
    return [[tuple(t.shape) for t in batches.moving([torch.empty(s) for s in call], {})] for call in calls]


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([[(2, 5)], [(2, 7)], [(2, 9)]], [[], [(2, 7)], []]),
        ([[(2, 5), (2,), (3, 4)], [(2, 7), (2,), (3, 4)]], [[], [(2, 7), (2,)]]),
        ([[(1, 3, 40, 40)], [(1, 3, 40, 40)], [(1, 3, 50, 44)]], [[], [], [(1, 3, 50, 44)]]),
        ([[(2, 5)], [(3, 7)], [(3, 9)]], [[], [], []]),
        ([[(1, 5), (8, 4, 5)], [(1, 7), (8, 4, 7)]], [[], []]),
        ([[(4, 5)], [(4, 1)], [(4, 6)]], [[], [], [(4, 6)]]),
        ([[(2, 5)], [(2, 5, 1)]], [[], []]),
        ([[()], [()]], [[], []]),
    ],
    ids=["text", "labels", "images", "the batch itself", "a cache", "a step", "another rank", "a number"],
)
def test_what_is_taken_for_a_batch(calls, found):
    assert _shapes(*calls) == found


@torch.no_grad()
def test_one_program_for_images_of_any_size_and_then_batches():
    """Though the batch is 1 while the height and the width change first."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)).eval()
    fast = dcir.optimize(net)
    for shape in ((1, 3, 20, 24), (1, 3, 31, 17), (2, 3, 40, 22), (5, 3, 9, 50), (1, 3, 33, 34)):
        x = torch.randn(shape)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
    moving, constant = programs(fast)
    assert len(moving) == len(constant) == 1


@torch.no_grad()
def test_a_batch_that_a_program_asks_for():
    """What is true of one image alone has a program of its own."""

    def fn(x):
        y = x.sum(1)
        return y * 2 if x.shape[0] == 1 else y - y.mean(0)

    fast = dcir.optimize(fn)
    for shape in ((1, 5), (1, 7), (3, 7), (2, 9), (1, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(fast(x), fn(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_batch_that_is_broadcast():
    """One row beside several: the trace that takes neither for 1 is an error, and another one is made."""
    fast = dcir.optimize(lambda x, y: x * 2 + y)
    for b, c, n in ((1, 1, 5), (1, 1, 7), (1, 3, 6), (4, 4, 5), (1, 2, 9), (3, 1, 4)):
        x, y = torch.randn(b, n), torch.randn(c, n)
        torch.testing.assert_close(fast(x, y), x * 2 + y)
