"""Means and spreads: norms of rows whose elements are equal, or far from zero: the mean is as exact as eager PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dcir


@pytest.mark.parametrize("columns", [3, 13, 48, 100, 769])
@pytest.mark.parametrize("value", [0.1, -3.3, 1e4 + 0.7, 3e-7])
def test_equal_elements(columns: int, value: float) -> None:
    """What is left of x - mean would be multiplied by 1 / sqrt(eps)."""
    x = torch.full((4, columns), value)
    m = nn.LayerNorm(columns)
    with torch.no_grad():
        assert not dcir.optimize(m)(x).any()


@pytest.mark.parametrize("shift", [0.0, 100.0, -1e4])
def test_far_from_zero(shift: float) -> None:
    x = torch.randn(20, 333, generator=torch.Generator().manual_seed(0)) + shift
    layer = nn.LayerNorm(333)
    with torch.no_grad():
        got, want = dcir.optimize(layer)(x), layer(x)
        exact = layer.double()(x.double())
    error, own = ((t.double() - exact).abs().max() for t in (got, want))
    assert error <= 3 * own + 1e-6
    assert torch.isnan(dcir.optimize(nn.LayerNorm(5))(torch.full((2, 5), float("nan")))).all()
