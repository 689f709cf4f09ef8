"""Small models that the tests of `dcir view` look at, as a user's file would have them."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions, added, and a product of what is left of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 16, 1)
        self.last = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        h = torch.relu(self.second(h) + h)
        return torch.softmax(self.last(h.mean((2, 3))), -1)


def mlp(batch: int = 4) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Two linear layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).eval(), (torch.randn(batch, 32),)


def block(batch: int = 2) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """A block of convolutions."""
    torch.manual_seed(0)
    return Block().eval(), (torch.randn(batch, 8, 10, 10),)
