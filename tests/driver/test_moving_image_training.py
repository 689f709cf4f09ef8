"""Training on images of any size: one forward and one backward for all of them, gradients against float64.

Activations are smooth: a ReLU's argument near zero has another sign in float64, and its gradient is another one then.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dcir
from tests.driver.test_moving_images import Fitted, Pyramid, Windows
from tests.driver.test_moving_program import programs
from tests.driver.test_moving_training import check
from tests.harness import check_close

pytestmark = pytest.mark.in_turn(3)

SIZES = [(2, 40, 56), (3, 64, 44), (2, 33, 35), (5, 47, 31), (2, 17, 60), (4, 24, 25)]


def normed(inputs: int, outputs: int, stride: int = 1, size: int = 3, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs), nn.SiLU()
    )  # fmt: skip


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = normed(3, 16, 2, 7), normed(16, 24, 2), normed(24, 24)
        self.short, self.head = nn.Conv2d(16, 24, 1, 2), nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.stem(x), 3, 2, 1)
        return self.head((self.b(self.a(x)) + self.short(x)).mean((2, 3)))


class Separable(nn.Module):
    """Depthwise, pointwise and grouped convolutions, results of the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            normed(3, 32, 2), normed(32, 32, groups=32), normed(32, 40, size=1), normed(40, 40, 2, 5, groups=40),
            normed(40, 48, groups=8), nn.Conv2d(48, 5, 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(self.body(x), size=x.shape[2:], mode="bilinear", align_corners=False)


class Across(nn.Module):
    """As in U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = normed(3, 16), normed(16, 32), normed(32, 16)
        self.up, self.out = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(16, 4, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a(x)
        return self.out(self.c(torch.cat((a, self.up(self.b(F.avg_pool2d(a, 2)))), 1)))


class Sound(nn.Module):
    """One dimension, dilated."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv1d(6, 24, 9, 4, 4), nn.Conv1d(24, 24, 3, 1, 2, dilation=2), nn.Conv1d(24, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(F.gelu(self.b(torch.tanh(self.a(x)))))


def even(size: tuple[int, ...]) -> tuple[int, ...]:
    return (size[0], *(n + n % 2 for n in size[1:]))


NETS = {
    "residual": (Residual, lambda n, h, w: (n, 3, h, w)),
    "separable": (Separable, lambda n, h, w: (n, 3, h, w)),
    "across": (Across, lambda n, h, w: (n, 3, *even((n, h, w))[1:])),
    "fitted": (Fitted, lambda n, h, w: (n, 3, h, w)),
    "pyramid": (Pyramid, lambda n, h, w: (n, 3, h, w)),
    "mean-up": (lambda: Windows(nn.AvgPool2d(3, 2, 1, ceil_mode=True), 3), lambda n, h, w: (n, 3, h, w)),
    "sound": (Sound, lambda n, h, w: (n, 6, 4 * h + w)),
}


@pytest.mark.parametrize("name", NETS)
def test_one_program(name: str) -> None:
    torch.manual_seed(0)
    made, shape = NETS[name]
    net = made().train()
    fast, wide = dcir.optimize(net, dynamic=True), copy.deepcopy(net).double()
    for size in SIZES:
        check(fast, net, wide, torch.randn(shape(*size)))
    moving, constant = programs(fast)
    assert sorted(g.kind for g in moving) == ["backward", "forward"], [g.remark for g in constant]
    assert not constant


@pytest.mark.parametrize("name", ["residual", "separable"])
def test_channels_last(name: str) -> None:
    torch.manual_seed(0)
    made, shape = NETS[name]
    net = made().train().to(memory_format=torch.channels_last)
    fast, wide = dcir.optimize(net, dynamic=True), copy.deepcopy(net).double()
    for size in SIZES[:4]:
        check(fast, net, wide, torch.randn(shape(*size)).to(memory_format=torch.channels_last))
    assert len(programs(fast)[0]) == 2


def test_what_is_kept_lies_as_suits_forward_and_backward() -> None:
    """Channels last, though the image lies in planes."""
    fast = dcir.optimize(Residual().train(), dynamic=True)
    for size in SIZES[:2]:
        fast(torch.randn(size[0], 3, *size[1:])).sum().backward()
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        fast(torch.randn(4, 3, 50, 38)).sum().backward()
    inside = [t for t in kept if t.ndim == 4 and t.shape[0] == 4 and t.shape[1] > 3]
    assert len(inside) >= 5 and all(t.is_contiguous(memory_format=torch.channels_last) for t in inside)


@pytest.mark.parametrize("dynamic", [True, False])
def test_what_hooks_give_back_may_lie_otherwise(dynamic: bool) -> None:
    torch.manual_seed(0)
    net = Residual().train()
    fast, wide = dcir.optimize(net, dynamic=dynamic), copy.deepcopy(net).double()

    def hooked(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous().clone(), lambda t: t):
            return fast(x)

    for size in SIZES[:2]:
        check(hooked, net, wide, torch.randn(size[0], 3, *size[1:]))


def test_gradients_of_images() -> None:
    torch.manual_seed(0)
    net = Separable().eval()
    fast, wide = dcir.optimize(net, dynamic=True), copy.deepcopy(net).double()
    for size in SIZES[:4]:
        image = torch.randn(size[0], 3, *size[1:])
        grads = []
        for run, dtype in ((fast, torch.float32), (net, torch.float32), (wide, torch.float64)):
            x = image.detach().clone().to(dtype).requires_grad_()
            run(x).square().mean().backward()
            grads.append(x.grad)
        check_close(*grads)
    assert len(programs(fast)[0]) == 2


def test_the_first_sizes_have_programs_of_their_own() -> None:
    """Which are faster; what comes after them does not wait for the compiler again."""
    torch.manual_seed(0)
    net = Separable().train()
    fast, wide = dcir.optimize(net), copy.deepcopy(net).double()
    for batch, side in ((8, 24), (8, 28), (3, 28), (5, 20), (8, 31), (2, 26), (8, 24)):
        check(fast, net, wide, torch.randn(batch, 3, side, side))
    moving, constant = programs(fast)
    assert len(moving) == 2 and len(constant) == 8
    assert "as the first sizes of a graph are" in constant[-1].remark


def test_a_limit_does_not_end_in_torch_where_there_is_a_program_for_all() -> None:
    torch.manual_seed(0)
    net = Separable().train()
    fast = dcir.optimize(net, shape_limit=1, strict=True)
    for batch, side in ((8, 24), (8, 28), (3, 28), (5, 20)):
        fast(torch.randn(batch, 3, side, side)).square().mean().backward()
    moving, constant = programs(fast)
    assert len(moving) == 2 and len(constant) == 4  # the first trace's, and one before the limit
