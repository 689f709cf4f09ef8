"""Arguments of a backward in the layout it was compiled for: hooks on saved tensors may give back what lies otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Call = Callable[[list[Any]], list[Any]]
Strides = tuple[int, ...]


def as_laid_out(call: Call, expected: Mapping[int, Strides]) -> Call:
    """``call`` with those arguments copied that do not have the strides expected of them, by number."""
    rows = list(expected.items())

    def run(args: list[Any]) -> list[Any]:
        for i, strides in rows:
            if args[i].stride() != strides and _differs(args[i], strides):
                args[i] = _copied(args[i], strides)
        return call(args)

    return run


def strides_of(values: Sequence[Any]) -> dict[int, Strides]:
    """Those of the tensors in a list, by number."""
    return {i: tuple(v.stride()) for i, v in enumerate(values) if isinstance(v, torch.Tensor)}


def _differs(value: torch.Tensor, strides: Strides) -> bool:
    return any(n > 1 and a != b for n, a, b in zip(value.shape, value.stride(), strides, strict=True))


def _copied(value: torch.Tensor, strides: Strides) -> torch.Tensor:
    # What repeats one element is written once.
    once = value[tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)]
    made = torch.empty_strided(once.shape, strides, dtype=value.dtype, device=value.device).copy_(once)
    return made.expand(value.shape)
