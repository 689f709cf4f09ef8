"""Outputs whose elements share memory, and outputs that look like channels-last, have the gradients and strides of eager PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dcir
from dcir.frontends.torch.overlapping import overlaps


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((2, 3), (3, 1), False),
        ((3, 2), (1, 3), False),
        ((2, 3), (10, 2), False),
        ((2, 3), (0, 1), True),
        ((8, 3), (2, 1), True),
        ((8, 2), (2, 1), False),
        ((1, 3), (0, 1), False),
        ((0, 3), (1, 1), False),
        ((2, 2), (1, 1), True),
        ((), (), False),
    ],
)
def test_overlaps(shape: tuple[int, ...], strides: tuple[int, ...], expected: bool) -> None:
    assert overlaps(shape, strides) is expected


class Windows(nn.Module):
    """Windows of a product; alone, beside it, and beside a sum of it."""

    def __init__(self, step: int, *, others: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 17)
        self.step, self.others = step, others

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.tanh(self.linear(x))
        windows = y.unfold(1, 3, self.step)
        return (windows, y, y.sum(1)) if self.others else (windows,)


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_gradient_of_windows(step: int, others: bool) -> None:
    torch.manual_seed(0)
    m = Windows(step, others=others)
    fast = dcir.optimize(copy.deepcopy(m))
    x = torch.randn(5, 6)
    weights = [torch.randn(t.shape) for t in m(x)]
    grads = []
    for f in (m, fast):
        a = x.clone().requires_grad_()
        outs = f(a)
        torch.autograd.backward([(o * w).sum() for o, w in zip(outs, weights, strict=True)])
        grads.append([a.grad, *(p.grad for p in f.parameters())])
        assert [o.stride() for o in outs] == [o.stride() for o in m(x)]
    for got, want in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(got, want)


def test_gradient_that_is_expanded() -> None:
    """A sum's gradient comes in strides of 0, whatever strides the output has."""
    m = Windows(1, others=False)
    fast = dcir.optimize(copy.deepcopy(m))
    x = torch.randn(5, 6)
    for f in (m, fast):
        f(x)[0].sum().backward()
    for got, want in zip(fast.parameters(), m.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


def test_strides_of_dimensions_of_extent_1() -> None:
    """A graph break between two layers: the second decides by its input's strides whether its result is channels-last."""
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 5, (1, 4), padding=(2, 2), dilation=(1, 2))
    x = torch.randn(5, 3, 8).as_strided((5, 3, 8), (0, 16, 2))

    def attend(x: Tensor) -> Tensor:
        q = x.reshape(5, 3, 1, 8).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q * 0.5, q, is_causal=True)

    def change(x: Tensor) -> Tensor:
        y = attend(x)
        torch._dynamo.graph_break()
        z = conv(y) + 0
        z.flatten()[::2].tanh_()  # of a channels-last tensor this changes a copy
        return z

    assert dcir.optimize(attend)(x).stride() == attend(x).stride()
    with torch.no_grad():
        torch.testing.assert_close(dcir.optimize(change)(x), change(x))
