"""An example call whose sizes may differ: where they stand, and the call at other sizes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.runtime.sized_manifest import Dimension


@dataclass(frozen=True)
class SizedCall:
    """An example call, and where its sizes may differ."""

    module: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    dimensions: tuple[Dimension, ...]

    def like(self, sizes: Sequence[int]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The call with tensors of other sizes, dense and of zeros."""
        places = {p: n for d, s in zip(self.dimensions, sizes, strict=True) for p, n in d.at(s).items()}
        leaves, spec = pytree.tree_flatten((tuple(self.args), dict(self.kwargs)))
        count = itertools.count()
        made = [_resized(v, next(count), places) if isinstance(v, torch.Tensor) else v for v in leaves]
        args, kwargs = pytree.tree_unflatten(made, spec)
        return args, kwargs


def _resized(t: torch.Tensor, number: int, places: Mapping[tuple[int, int], int]) -> torch.Tensor:
    shape = [places.get((number, d), n) for d, n in enumerate(t.shape)]
    strides = t.stride()
    order = sorted(range(t.ndim), key=lambda d: (-strides[d], d))
    dense = torch.zeros([shape[d] for d in order], dtype=t.dtype)
    return dense.permute([order.index(d) for d in range(t.ndim)])
