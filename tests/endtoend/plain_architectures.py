"""Architectures in plain torch, for which nothing else need be installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class LanguageModel(nn.Module):
    """Embedding, two layers of LSTM, and scores over the vocabulary."""

    def __init__(self, tokens: int = 50, size: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, size)
        self.layers = nn.LSTM(size, size, 2, batch_first=True)
        self.head = nn.Linear(size, tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(tokens))[0])


class CellsLanguageModel(nn.Module):
    """The same with cells, called for every step."""

    def __init__(self, tokens: int = 50, size: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, size)
        self.cells = nn.ModuleList(nn.LSTMCell(size, size) for _ in range(2))
        self.head = nn.Linear(size, tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = self.embed(tokens)
        for cell in self.cells:
            state, steps = None, []
            for step in values.unbind(1):
                state = cell(step, state)
                steps.append(state[0])
            values = torch.stack(steps, 1)
        return self.head(values)


def _twice(ins: int, outs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(ins, outs, 3, padding=1),
        nn.BatchNorm2d(outs),
        nn.ReLU(),
        nn.Conv2d(outs, outs, 3, padding=1),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Down by pooling, up by transposed convolution, joined by concatenation."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = _twice(3, width), _twice(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join, self.head = _twice(2 * width, width), nn.Conv2d(width, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = self.first(x)
        low = self.second(F.max_pool2d(high, 2))
        return self.head(self.join(torch.cat([high, self.up(low)], 1)))


class SelectiveScan(nn.Module):
    """A block of Mamba: causal depthwise convolution, and a recurrence whose coefficients depend on the input."""

    def __init__(self, size: int = 16, state: int = 4) -> None:
        super().__init__()
        self.size, self.state = size, state
        self.enter, self.leave = nn.Linear(size, 2 * size), nn.Linear(size, size)
        self.mix = nn.Conv1d(size, size, 4, groups=size, padding=3)
        self.select, self.step = nn.Linear(size, 2 * state), nn.Linear(size, size)
        self.decay = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(size, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, gate = self.enter(x).chunk(2, -1)
        values = F.silu(self.mix(values.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        into, out = self.select(values).chunk(2, -1)
        step = F.softplus(self.step(values))
        state, results = x.new_zeros(x.shape[0], self.size, self.state), []
        for t in range(x.shape[1]):
            kept = torch.exp(-step[:, t, :, None] * self.decay.exp())
            state = kept * state + (step * values)[:, t, :, None] * into[:, t, None, :]
            results.append((state * out[:, t, None, :]).sum(-1))
        return self.leave(torch.stack(results, 1) * F.silu(gate))


class ShiftedWindows(nn.Module):
    """A block of Swin: the image rolled, cut into windows, attention within each, and rolled back."""

    def __init__(self, size: int = 16, heads: int = 2, window: int = 4) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm, self.qkv, self.out = nn.LayerNorm(size), nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.bias = nn.Parameter(0.1 * torch.randn(heads, window**2, window**2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, h, w, c = x.shape
        k, shift = self.window, self.window // 2
        rolled = torch.roll(self.norm(x), (-shift, -shift), (1, 2))
        windows = rolled.view(n, h // k, k, w // k, k, c).transpose(2, 3).reshape(-1, k * k, c)
        q, key, v = self.qkv(windows).view(-1, k * k, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, key, v, attn_mask=self.bias).transpose(1, 2).reshape(-1, k * k, c)
        back = self.out(mixed).view(n, h // k, w // k, k, k, c).transpose(2, 3).reshape(n, h, w, c)
        return x + torch.roll(back, (shift, shift), (1, 2))


PLAIN: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "lstm-language-model": lambda: (LanguageModel(), {"tokens": torch.randint(0, 50, (3, 5))}),
    "lstm-cells": lambda: (CellsLanguageModel(), {"tokens": torch.randint(0, 50, (3, 5))}),
    "unet": lambda: (UNet(), {"x": torch.randn(2, 3, 20, 12)}),
    "selective-scan": lambda: (SelectiveScan(), {"x": torch.randn(2, 6, 16)}),
    "shifted-windows": lambda: (ShiftedWindows(), {"x": torch.randn(2, 8, 12, 16)}),
}
