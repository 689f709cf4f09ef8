"""Batches that are taken for sizes that change once other sizes of an input do, so that one more trace serves both.

Dynamo takes for changing what it has seen change: images of another height and width are one trace, and the first batch of two of them
is another. Whoever calls with inputs of any size mostly has batches of any size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch


class MovingBatches:
    """What was seen of the sizes of one callable's tensors. Their first dimension is the batch, if it is one for all that changed."""

    def __init__(self) -> None:
        self._first: dict[str | int, tuple[int, ...]] = {}
        self._done = False

    def moving(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call whose batch is to be taken for a size that changes.

        There are some at most once, when other sizes are first seen to differ: a mark is a guard, too.
        """
        if self._done:
            return []
        given: Iterable[tuple[str | int, Any]] = itertools.chain(enumerate(args), kwargs.items())
        tensors = {k: t for k, t in given if isinstance(t, torch.Tensor) and not t.is_nested and t.ndim}
        batches: set[int] = set()
        changed = False
        for key, tensor in tensors.items():
            shape = tuple(tensor.shape)
            first = self._first.setdefault(key, shape)
            if len(first) != len(shape) or first == shape:
                continue
            # Where a size becomes 0 or 1 a program often does something else, such as the next token after a prompt.
            if any(new < 2 and new != old for new, old in zip(shape, first, strict=True)):
                return []
            changed = True
            batches |= {first[0], shape[0]}
        self._done = changed
        # A first dimension of another size beside it says that one of them is no batch: a cache may have keys and values in its first.
        return [t for t in tensors.values() if {t.shape[0]} == batches - {0}]
