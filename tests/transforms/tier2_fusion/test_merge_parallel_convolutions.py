"""Sums of convolutions of one image as one: which join, which stay and why, and the numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dcir
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.transforms.base import PassResult
from dcir.transforms.tier2_fusion.fold_static import FoldStatic
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.merge_parallel_convolutions import MergeParallelConvolutions
from tests.harness import check_close, double, run_interpreted
from tests.transforms.imported import imported

Fn = Callable[..., Any]
Shapes = list[tuple[int, ...]]


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def check(fn: Fn, inputs: list[Tensor], dynamic: int = 1) -> tuple[Network, PassResult]:
    """Epilogues, then sums, all inputs but the first ``dynamic`` ones static; numbers against float64."""
    done = imported(fn, *inputs)
    net, outcome = done.network, PassResult()
    net.static |= set(net.inputs[dynamic:])
    for p in (FuseEpilogues(), MergeParallelConvolutions()):
        outcome = p.apply(net)
        verify(net)
        net.validate()
    want, exact = fn(*inputs), fn(*(double(t) for t in inputs))
    want, exact = ((t if isinstance(t, tuple) else (t,)) for t in (want, exact))
    for got, w, e in zip(run_interpreted(done, inputs), want, exact, strict=True):
        if inputs[0].dtype == torch.float64:  # nothing more exact to compare with
            torch.testing.assert_close(got, w, rtol=1e-12, atol=1e-12)
        else:
            check_close(got, w, e)
    assert not MergeParallelConvolutions().apply(net).changed
    return net, outcome


def convolutions(net: Network) -> list[ConvolutionSpec]:
    """Those of the calls, in order."""
    return [op.spec for op in net.ops() if isinstance(op.spec, ConvolutionSpec)]


def norm(y: Tensor, f: Tensor, h: Tensor) -> Tensor:
    """What a batch normalisation does to its channels in inference."""
    shape = (1, -1, *[1] * (y.dim() - 2))
    return (y - h.view(shape)) * torch.rsqrt(f.view(shape) ** 2 + 0.1) + f.view(shape)


def _rep_vgg(x: Tensor, v: Tensor, w: Tensor, f: Tensor, h: Tensor) -> Tensor:
    """A block of RepVGG: 1 x 1, 3 x 3 and the image, a normalisation each."""
    return F.relu(norm(F.conv2d(x, w), f, h) + norm(F.conv2d(x, v, padding=1), h, f) + norm(x, h, h))


def _rep_vit(x: Tensor, v: Tensor, w: Tensor, f: Tensor, h: Tensor) -> Tensor:
    """One of RepViT: the wide convolution first, each channel by itself, and one normalisation of the sum."""
    groups = x.shape[1]
    return norm(F.conv2d(x, v, padding=1, groups=groups) + F.conv2d(x, w, h, groups=groups) + x, f, h)


def _rep_mixer(x: Tensor, v: Tensor, w: Tensor, f: Tensor, h: Tensor) -> Tensor:
    """One of FastViT: the image several times, subtracted, scaled."""
    groups = x.shape[1]
    mixed = norm(F.conv2d(x, w, groups=groups), h, f) + norm(F.conv2d(x, v, padding=1, groups=groups), f, h)
    return x + f.view(1, -1, 1, 1) * (mixed + norm(x, f, f) - norm(x, h, f))


def _branches(x: Tensor, *ws: Tensor) -> Tensor:
    """One of MobileOne: equal convolutions of different weights."""
    total = F.conv2d(x, ws[0], stride=2, padding=1)
    for w in ws[1:]:
        total = total + F.conv2d(x, w, stride=2, padding=1)
    return F.silu(total)


def _dilated(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Three taps among five, all of them two apart, and a number that is known."""
    return F.conv1d(x, v, padding=4, dilation=2) - 2.0 * F.conv1d(x, w, padding=2, dilation=2) + 0.5


def _grouped(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Groups of several channels, and the image behind them."""
    return (F.conv2d(x, v, padding=(1, 0), groups=2) / 3.0) + F.conv2d(x, w, groups=2) - x


def _beside_others(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """What else is done with the sum stays."""
    total = F.conv2d(x, v, padding=1) + F.conv2d(x, w)
    return total * torch.sigmoid(total) + x


CHANGED: dict[str, tuple[Fn, Shapes, tuple[int, ...]]] = {
    "RepVGG": (_rep_vgg, [(2, 6, 5, 4), (6, 6, 3, 3), (6, 6, 1, 1), (6,), (6,)], (3, 3)),
    "RepViT": (_rep_vit, [(2, 6, 5, 4), (6, 1, 3, 3), (6, 1, 1, 1), (6,), (6,)], (3, 3)),
    "FastViT": (_rep_mixer, [(1, 6, 5, 4), (6, 1, 3, 3), (6, 1, 1, 1), (6,), (6,)], (3, 3)),
    "MobileOne": (_branches, [(2, 4, 7, 6), *[(5, 4, 3, 3)] * 4], (3, 3)),
    "one channel": (_rep_vit, [(2, 1, 5, 4), (1, 1, 3, 3), (1, 1, 1, 1), (1,), (1,)], (3, 3)),
    "dilation": (_dilated, [(2, 3, 13), (4, 3, 5), (4, 3, 3)], (5,)),
    "groups": (_grouped, [(2, 6, 5, 4), (6, 3, 3, 1), (6, 3, 1, 1)], (3, 1)),
    "an activation": (_beside_others, [(2, 6, 5, 4), (6, 6, 3, 3), (6, 6, 1, 1)], (3, 3)),
    "the image alone": (lambda x, v: F.conv2d(x, v, padding=1, groups=4) + x, [(2, 4, 5, 6), (4, 1, 3, 3)], (3, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CHANGED)
def test_changed(case: str, dtype: torch.dtype) -> None:
    fn, shapes, kernel = CHANGED[case]
    net, outcome = check(fn, [rand(*s, dtype=dtype) for s in shapes])
    assert [spec.kernel for spec in convolutions(net)] == [kernel]
    assert outcome.changed == (3 if case == "MobileOne" else 1)
    assert (outcome.saved_bytes > 0) == (case != "the image alone")
    assert len([op for op in net.ops() if op not in net.preparable()]) == 1


REFUSED: dict[str, tuple[Fn, Shapes, str]] = {
    "other readers": (
        lambda x, v, w: (s := F.conv2d(x, v), s + F.conv2d(x, w)), [(2, 5, 4, 3), (7, 5, 1, 1), (7, 5, 1, 1)],
        "a convolution's result is read for more than the sum",
    ),
    "an activation before": (
        lambda x, v, w: F.relu(F.conv2d(x, v)) + F.conv2d(x, w), [(2, 5, 4, 3), (7, 5, 1, 1), (7, 5, 1, 1)],
        "a convolution that is added does more than scale and shift its value",
    ),
    "a product": (
        lambda x, v, w: F.conv2d(x, v) * F.conv2d(x, w), [(2, 5, 4, 3), (7, 5, 1, 1), (7, 5, 1, 1)],
        "what is added is no sum of convolutions of one image",
    ),
    "a cross": (
        lambda x, v, w: F.conv2d(x, v, padding=(1, 0)) + F.conv2d(x, w, padding=(0, 1)), [(2, 5, 4, 3), (7, 5, 3, 1), (7, 5, 1, 3)],
        "the taps of one convolution do not lie among those of another",
    ),
    "other groups": (
        lambda x, v, w: F.conv2d(x, v, groups=2) + F.conv2d(x, w), [(2, 4, 4, 3), (6, 2, 1, 1), (6, 4, 1, 1)],
        "the convolutions that are added differ in more than their taps",
    ),
    "a factor for each row": (
        lambda x, v, w, f: F.conv2d(x, v) * f + F.conv2d(x, w), [(2, 5, 4, 3), (7, 5, 1, 1), (7, 5, 1, 1), (4, 1)],
        "a convolution that is added does more than scale and shift its value",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    fn, shapes, reason = REFUSED[case]
    net, outcome = check(fn, [rand(*s) for s in shapes])
    assert outcome.changed == 0 and len(convolutions(net)) == 2
    assert outcome.refused == {reason: 1}


def test_unchanged() -> None:
    """Weights that change with every call, other images, one convolution alone, and an image that no tap meets where it is added."""
    shapes = [(2, 5, 4, 3), (5, 5, 1, 1), (5, 5, 1, 1)]
    same: Fn = lambda x, v, w: F.conv2d(x, v) + F.conv2d(x, w)  # noqa: E731
    for fn, given, dynamic in (
        (same, shapes, 3),
        (lambda x, v, w: F.conv2d(x.sin(), v) + F.conv2d(x.tanh(), w), shapes, 1),
        (lambda x, v: F.relu(F.conv2d(x, v)), shapes[:2], 1),
        (lambda x, v: F.conv1d(F.pad(x, (1, 1)), v)[..., :3] + x, [(2, 5, 3), (5, 5, 2)], 1),
    ):
        _, outcome = check(fn, [rand(*s) for s in given], dynamic)
        assert outcome.changed == 0 and not outcome.refused


def test_half_types_keep_what_they_round() -> None:
    """Branches of bfloat16 are rounded before they are added: there is no equal convolution."""
    x, v, w = (rand(*s).bfloat16() for s in [(2, 5, 4, 3), (7, 5, 1, 1), (7, 5, 1, 1)])
    done = imported(lambda x, v, w: F.conv2d(x, v) + F.conv2d(x, w), x, v, w)
    done.network.static |= set(done.network.inputs[1:])
    for p in (FuseEpilogues(), MergeParallelConvolutions()):
        assert p.apply(done.network).changed == 0 or p.name == "fuse-epilogues"
    assert len(convolutions(done.network)) == 2


def test_factors_are_left_for_a_convolution_alone() -> None:
    """What only scales is `fold-static`'s, which runs behind it and finds nothing where sums were joined."""
    fn, shapes, _ = CHANGED["RepVGG"]
    net, _ = check(fn, [rand(*s) for s in shapes])
    assert FoldStatic().apply(net).changed == 0


class _Block(nn.Module):
    """Branches as MobileOne has them: each a convolution and a normalisation, with the image's own."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        taps = (1, 3, 3)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(width, width, k, padding=k // 2, groups=groups, bias=False) for k in taps
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(4))
        for bn in self.norms:
            nn.init.uniform_(bn.weight, 0.5, 1.5)
            nn.init.normal_(bn.running_mean)
            nn.init.uniform_(bn.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        total = self.norms[3](x)
        for conv, bn in zip(self.convolutions, self.norms[:3], strict=True):
            total = total + bn(conv(x))
        return F.relu(total)


@pytest.mark.parametrize(("width", "groups"), [(16, 1), (33, 33)])
def test_compiled(width: int, groups: int) -> None:
    """The whole pipeline, also after the weights have changed; in training all branches are there."""
    torch.manual_seed(0)
    model = nn.Sequential(_Block(width, groups), _Block(width, groups)).eval()
    x = rand(2, width, 11, 9)
    fast = dcir.optimize(model)
    for _ in range(2):
        with torch.no_grad():
            check_close(fast(x), model(x), copy.deepcopy(model).double()(double(x)))
            for p in model.parameters():
                p.mul_(1.25)
    (graph,) = fast.dcir.explain().graphs
    (row,) = [p for p in graph.passes if p.name == "merge-parallel-convolutions"]
    assert row.changed == 6
    model.train()
    exact = copy.deepcopy(model).double()
    fast(x).square().sum().backward()
    exact(double(x)).square().sum().backward()
    for p, q in zip(model.parameters(), exact.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        torch.testing.assert_close(p.grad.double(), q.grad, rtol=2e-3, atol=2e-4 * float(q.grad.abs().max()))
