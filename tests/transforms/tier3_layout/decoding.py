"""Attention over a cache and what is new, as products and a softmax, and operands for it."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def pieces(
    m: int, kept: int, new: int, d: int = 16, h: int = 3, dtype: torch.dtype = torch.float32, rows: bool = False
) -> list[Tensor]:
    """A query, keys and values of a cache, and what is new; ``rows``: heads lie side by side in a position's row."""

    def heads(n: int, seed: int) -> Tensor:
        shape = (2, n, h, d) if rows else (2, h, n, d)
        made = values(*shape, seed=seed, dtype=dtype)
        return made.transpose(1, 2) if rows else made

    return [heads(m, 1), heads(kept, 2), heads(kept, 3), heads(new, 4), heads(new, 5)]


def written_out(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    k, v = torch.cat([k, k2 * 2], 2), torch.cat([v, v2], 2)
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    """All queries of several heads on one head of keys."""
    b, h, m, d = q.shape
    k, v = torch.cat([k[:, :1], k2[:, :1] * 2], 2), torch.cat([v[:, :1], v2[:, :1]], 2)
    s = q.reshape(b, 1, h * m, d) @ k.transpose(-1, -2)
    return (torch.softmax(s, -1) @ v).view(b, h, m, d)
