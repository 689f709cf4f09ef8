"""Scales of channels moved to the weights: which, which not and why, and the numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dcir
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.library.contraction import ContractionSpec
from dcir.transforms.base import PassResult
from dcir.transforms.tier1_operator.pack_weights import PackWeights
from dcir.transforms.tier2_fusion.fold_channel_scales import FoldChannelScales
from dcir.transforms.tier2_fusion.fold_static import FoldStatic
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier3_layout.assign_layouts import AssignLayouts
from tests.harness import check_close, double, run_interpreted
from tests.on_host import target
from tests.transforms.imported import imported

Gate = Callable[[torch.Tensor], torch.Tensor]


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def check(
    fn: Callable[..., torch.Tensor],
    inputs: list[torch.Tensor],
    settings: FoldChannelScales,
    *,
    matrix_unit: bool = False,
) -> tuple[Network, PassResult]:
    """The pass after those it builds on, all inputs but the first static; numbers against float64."""
    done = imported(fn, *inputs)
    net = done.network
    net.static |= set(net.inputs[1:])
    for p in (FuseEpilogues(), FoldStatic(), FuseProducers(), FuseEpilogues(), AssignLayouts(), PackWeights()):
        p.apply(net)
    net.target = target(matrix_unit=matrix_unit)
    outcome = settings.apply(net)
    verify(net)
    net.validate()
    (got,) = run_interpreted(done, inputs)
    check_close(got, fn(*inputs), fn(*(double(t) for t in inputs)))
    assert not settings.apply(net).changed
    return net, outcome


def block(gate: Gate, more: Gate = lambda t: t, *, again: bool = False) -> Callable[..., torch.Tensor]:
    """An image whose channels are scaled by what their means say; then a product with bias and residual."""

    def run(x: torch.Tensor, wide: torch.Tensor, inner: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        convolution = F.conv1d if x.ndim == 3 else F.conv2d
        a = F.relu(convolution(x, wide))
        s = gate(convolution(a.flatten(2).mean(2).reshape(*a.shape[:2], *[1] * (x.ndim - 2)), inner))
        t = a * s
        y = more(convolution(t, w, b)) + x
        return y + convolution(t, w) if again else y

    return run


def inputs(n: int, *size: int, channels: int = 20, wide: int = 24) -> list[torch.Tensor]:
    """An image in channels-last, and the weights."""
    ones = [1] * len(size)
    x = rand(n, *size, channels).movedim(-1, 1)
    return [x, rand(wide, channels, *ones), rand(wide, wide, *ones), rand(channels, wide, *ones), rand(channels)]


MOVED: dict[str, Gate] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hard sigmoid": F.hardsigmoid,
    "doubled": lambda t: torch.sigmoid(t) * 2,
    "two bounds": F.relu6,
}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("gate", list(MOVED))
def test_changed(gate: str, n: int) -> None:
    net, outcome = check(block(MOVED[gate], F.silu), inputs(n, 9, 11), FoldChannelScales())
    assert outcome.changed == 1 and outcome.saved_bytes > 0
    assert sum(isinstance(op.spec, ContractionSpec) for op in net.ops()) == (n > 1)
    # The scaled image is gone: nothing multiplies as many elements.
    images = n * 24 * 9 * 11
    assert all(getattr(op.spec, "points", int)() < images for op in net.ops() if "mul" in str(op.spec))


def test_other_ranks() -> None:
    assert check(block(torch.sigmoid), inputs(2, 70), FoldChannelScales())[1].changed == 1


def by_itself(
    x: torch.Tensor, wide: torch.Tensor, inner: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """The product is multiplied by the image that it is of."""
    a = F.relu(F.conv2d(x, wide))
    t = a * torch.sigmoid(F.conv2d(a.mean((2, 3), keepdim=True), inner))
    return F.conv2d(t, w, b) * t


UNCHANGED: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor], bool, str]] = {
    "few positions": (block(torch.sigmoid), inputs(1, 6, 7), False, "too few positions"),
    "large": (block(lambda t: t), inputs(1, 9, 11), False, "not known to be small"),
    "one bound": (block(F.relu), inputs(1, 9, 11), False, "not known to be small"),
    "large bounds": (block(lambda t: t.clamp(-1, 9)), inputs(1, 9, 11), False, "not known to be small"),
    "for the matrix unit": (
        block(torch.sigmoid), inputs(12, 15, 15, channels=64, wide=160), True, "matrix unit",
    ),
    "read by the epilogue": (by_itself, [*inputs(1, 9, 11)[:3], rand(24, 24, 1, 1), rand(24)], False, "others read"),
    "read again": (block(torch.sigmoid, again=True), inputs(1, 9, 11), False, "others read"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(UNCHANGED))
def test_unchanged(case: str) -> None:
    fn, given, unit, why = UNCHANGED[case]
    _, outcome = check(fn, given, FoldChannelScales(), matrix_unit=unit)
    assert not outcome.changed and any(why in reason for reason in outcome.refused)


class Squeezed(nn.Module):
    """A squeeze-excite block between two convolutions with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.norm = nn.Conv2d(8, 40, 1, bias=False), nn.BatchNorm2d(40)
        self.squeeze, self.excite = nn.Conv2d(40, 4, 1), nn.Conv2d(4, 40, 1)
        self.project = nn.Conv2d(40, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        t = F.silu(self.norm(self.expand(x)))
        s = self.excite(F.silu(self.squeeze(t.mean((2, 3), keepdim=True))))
        return self.project(t * torch.sigmoid(s)) + x


@pytest.mark.parametrize("n", [1, 2, 5])
def test_compiled(n: int) -> None:
    torch.manual_seed(n)
    model = Squeezed().eval()
    x = torch.randn(n, 8, 17, 16)
    fast = dcir.optimize(copy.deepcopy(model))
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        for t in (x, x * 100):
            check_close(fast(t), model(t), exact(t.double()))
        # New weights are scaled too.
        for m in (fast, model, exact):
            m.project.weight.mul_(-2)
        check_close(fast(x), model(x), exact(x.double()))
