"""Sums of convolutions as one: which join, which stay and why, and the numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dcir
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.transforms.base import PassResult
from dcir.transforms.tier2_fusion.fold_static import FoldStatic
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier2_fusion.merge_summed_convolutions import MergeSummedConvolutions
from tests.harness import check_close, double, run_interpreted
from tests.transforms.imported import imported

Fn = Callable[..., Any]


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def check(
    fn: Fn, inputs: list[torch.Tensor], join: MergeSummedConvolutions, dynamic: int = 1
) -> tuple[Network, PassResult]:
    """Epilogues, then sums, all inputs but the first ``dynamic`` ones static; numbers against float64."""
    done = imported(fn, *inputs)
    net = done.network
    net.static |= set(net.inputs[dynamic:])
    outcome = PassResult()
    for p in (FuseEpilogues(), FoldStatic(), FuseProducers(), FuseEpilogues(), join):
        outcome = p.apply(net)
        verify(net)
        net.validate()
    want = fn(*inputs)
    want = want if isinstance(want, tuple) else (want,)
    exact = fn(*(double(t) for t in inputs))
    exact = exact if isinstance(exact, tuple) else (exact,)
    for got, w, e in zip(run_interpreted(done, inputs), want, exact, strict=True):
        if inputs[0].dtype == torch.float64:  # nothing more exact to compare with
            torch.testing.assert_close(got, w, rtol=1e-13, atol=1e-13)
        else:
            check_close(got, w, e)
    assert not join.apply(net).changed
    return net, outcome


def taps(net: Network) -> list[tuple[int, ...]]:
    """Kernels of the convolutions, in order."""
    return [op.spec.kernel for op in net.ops() if isinstance(op.spec, ConvolutionSpec)]


def _halves(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """A sum over two images, with a number per channel each and an activation."""
    return F.relu(F.conv1d(torch.tanh(x), v, p) + F.conv1d(torch.sigmoid(x), w, q))


def _chain(x: torch.Tensor, *ws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every image is made from the one before by a convolution, and all are added up: what a skip connection does."""
    total = None
    for i in range(0, len(ws), 3):
        h = torch.tanh(x)
        s = F.conv1d(h, ws[i], ws[i + 1])
        total = s if total is None else total + s
        x = x + F.conv1d(h, ws[i + 2])
    assert total is not None
    return torch.relu(total), x


def _residual(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The first convolution adds to something else, which the joined one has to add too."""
    return (x + F.conv1d(torch.tanh(x), v)) + F.conv1d(torch.sigmoid(x), w)


CHAIN = [(2, 6, 9), *[(7, 6, 1), (7,), (6, 6, 1)] * 5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("fn", "shapes", "kernels"),
    [
        (_halves, [(2, 5, 11), (7, 5, 3), (7, 5, 3), (7,), (7,)], [(2, 3)]),
        (_residual, [(1, 5, 11), (5, 5, 1), (5, 5, 1)], [(2, 1)]),
        (lambda x, v, w: F.conv2d(x.tanh(), v) + F.conv2d(x.sin(), w), [(2, 3, 5, 4), (9, 3, 1, 1), (9, 3, 1, 1)], [(2, 1, 1)]),
        (lambda x, v, w: F.conv1d(x.tanh(), v, dilation=2, stride=2, padding=1) + F.conv1d(x.sin(), w, dilation=2, stride=2, padding=1),
         [(1, 4, 13), (3, 4, 2), (3, 4, 2)], [(2, 2)]),
    ],
    ids=["activation", "residual", "two dimensions", "dilation"],
)  # fmt: skip
def test_changed(fn: Fn, shapes: list[tuple[int, ...]], kernels: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    net, outcome = check(fn, [rand(*s, dtype=dtype) for s in shapes], MergeSummedConvolutions())
    assert taps(net) == kernels
    assert outcome.changed == 2


def test_images_that_are_read_early_are_stored_twice() -> None:
    net, outcome = check(_chain, [rand(*s) for s in CHAIN], MergeSummedConvolutions())
    assert sorted(taps(net)) == [(1,)] * 5 + [(5, 1)]
    assert outcome.changed == 5
    assert outcome.saved_bytes > 0


def test_few_at_a_time() -> None:
    """Weights for two or three: the parts add to each other."""
    net, outcome = check(_chain, [rand(*s) for s in CHAIN], MergeSummedConvolutions(max_weights=3 * 42 * 4))
    assert sorted(taps(net)) == [(1,)] * 5 + [(2, 1), (3, 1)]
    assert outcome.changed == 5


REFUSED: dict[str, tuple[Fn, list[tuple[int, ...]], str]] = {
    "other readers": (
        lambda x, v, w: (s := F.conv1d(x.tanh(), v), s + F.conv1d(x.sin(), w)),
        [(2, 5, 11), (7, 5, 3), (7, 5, 3)], "the sum so far has other readers",
    ),
    "more than a sum": (
        lambda x, v, w: F.conv1d(x.tanh(), v).relu() + F.conv1d(x.sin(), w),
        [(2, 5, 11), (7, 5, 3), (7, 5, 3)], "a convolution that is added does more than add to it",
    ),
    "different": (
        lambda x, v, w: F.conv1d(x.tanh(), v) + F.conv1d(x.sin()[:, :, 1:-1], w),
        [(2, 5, 11), (7, 5, 3), (7, 5, 1)], "the convolutions that are added differ",
    ),
    "an input": (
        lambda x, v, w: F.conv1d(x, v) + F.conv1d(x.sin(), w),
        [(2, 5, 11), (7, 5, 3), (7, 5, 3)], "the images of convolutions that are added have places of their own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    fn, shapes, reason = REFUSED[case]
    net, outcome = check(fn, [rand(*s) for s in shapes], MergeSummedConvolutions())
    assert outcome.changed == 0
    assert len(taps(net)) == 2
    assert outcome.refused[reason] == 1


def test_too_large() -> None:
    _, outcome = check(_chain, [rand(*s) for s in CHAIN], MergeSummedConvolutions(max_weights=100))
    assert outcome.changed == 0
    assert outcome.refused["their weights or images would not stay in a cache"] == 1


def test_unchanged() -> None:
    """Weights that change with every call, and one convolution alone."""
    shapes = [(2, 5, 11), (7, 5, 3), (7, 5, 3), (7,), (7,)]
    _, outcome = check(_halves, [rand(*s) for s in shapes], MergeSummedConvolutions(), dynamic=len(shapes))
    assert outcome.changed == 0
    _, outcome = check(
        lambda x, w: x.tanh() + F.conv1d(x.sin(), w), [rand(1, 5, 11), rand(5, 5, 1)], MergeSummedConvolutions()
    )
    assert outcome.changed == 0


class _Skips(nn.Module):
    def __init__(self, width: int, skip: int) -> None:
        super().__init__()
        self.res = nn.ModuleList([nn.Conv1d(width, width, 1) for _ in range(4)])
        self.skip = nn.ModuleList([nn.Conv1d(width, skip, 1) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for res, skip in zip(self.res, self.skip, strict=True):
            h = torch.tanh(x) * torch.sigmoid(x)
            total = total + skip(h)
            x = x + res(h)
        return F.relu(total)


@pytest.mark.parametrize(("width", "skip", "length"), [(16, 32, 200), (19, 37, 101), (5, 3, 7)])
def test_compiled(width: int, skip: int, length: int) -> None:
    """The whole pipeline, also after the weights have changed; and gradients."""
    model = _Skips(width, skip)
    x = rand(2, width, length)
    fast = dcir.optimize(model, verify="passes")
    for _ in range(2):
        with torch.no_grad():
            check_close(fast(x), model(x), copy.deepcopy(model).double()(double(x)))
            for p in model.parameters():
                p.mul_(1.25)
    fast(x).square().sum().backward()
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    exact(double(x)).square().sum().backward()
    for p, q in zip(model.parameters(), exact.parameters(), strict=True):
        if q.grad is not None:
            assert p.grad is not None
            torch.testing.assert_close(p.grad.double(), q.grad, rtol=2e-4, atol=1e-4 * float(q.grad.abs().max()))
