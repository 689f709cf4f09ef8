"""The logit of numbers that are clamped to an empty range, as eager has it."""

from __future__ import annotations

import torch
from torch import nn

import dcir


class Logit(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.logit(x, 0.8)


def test_an_empty_range() -> None:
    x = torch.linspace(0, 1, 11)
    torch.testing.assert_close(dcir.optimize(Logit())(x), Logit()(x))
