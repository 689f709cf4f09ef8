"""Arguments of a backward as it was compiled for them: hooks on saved tensors may give back others, or in another layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from dcir.errors import InvalidInput

Call = Callable[[list[Any]], list[Any]]
Strides = tuple[int, ...]


class Laid(NamedTuple):
    """A tensor as a program expects it: its strides are in elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: Strides


def as_laid_out(call: Call, expected: Mapping[int, Laid]) -> Call:
    """``call`` for arguments that may lie otherwise, which are copied, by number.

    Raises:
        InvalidInput: by the call; an argument has another type or shape.
    """
    rows = [(i, *laid) for i, laid in expected.items()]

    def run(args: list[Any]) -> list[Any]:
        for i, dtype, shape, strides in rows:
            given = args[i]
            if given is None:  # the token of an effect is a tensor only while it is traced
                continue
            if given.dtype is not dtype or given.shape != shape:
                raise _other(given, dtype, shape)
            if given.stride() != strides and _differs(given, strides):
                args[i] = _copied(given, strides)
        return call(args)

    return run


def laid_out(values: Sequence[Any]) -> dict[int, Laid]:
    """How the tensors in a list lie, by number."""
    return {
        i: Laid(v.dtype, tuple(v.shape), tuple(v.stride()))
        for i, v in enumerate(values)
        if isinstance(v, torch.Tensor) and v.layout is torch.strided
    }


def _differs(value: torch.Tensor, strides: Strides) -> bool:
    return any(n > 1 and a != b for n, a, b in zip(value.shape, value.stride(), strides, strict=True))


def _copied(value: torch.Tensor, strides: Strides) -> torch.Tensor:
    # What repeats one element is written once.
    once = value[tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)]
    made = torch.empty_strided(once.shape, strides, dtype=value.dtype, device=value.device).copy_(once)
    return made.expand(value.shape)


def _other(value: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]) -> InvalidInput:
    return InvalidInput(
        "the backward was given another tensor than its forward saved",
        details=[
            ("saved", f"{dtype} of shape {list(shape)}"),
            ("given", f"{value.dtype} of shape {list(value.shape)}"),
        ],
        hint="have hooks on saved tensors (torch.autograd.graph.saved_tensors_hooks) give back the type and shape they were given",
    )
