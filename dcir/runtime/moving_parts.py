"""The programs of one library for all sizes within bounds: what calls it at the sizes of a call."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dcir.runtime.blocks import Arenas
from dcir.runtime.buffers import SizedBuffers
from dcir.runtime.model import Loaded, fitted, program_of
from dcir.runtime.moving_manifest import Moving
from dcir.runtime.program import Program
from dcir.runtime.sized_manifest import holds

MOST_KEPT = 64
"""Sizes that are known how to call, the last ones that came: each holds a table of pointers."""


class MovingParts:
    """Calls one library at any sizes that it is for.

    Args:
        loaded: the library, and its manifest at the greatest sizes.
        moving: what of it moves.
        box: the least and the greatest size of each dimension.
        tensors: one per constant of the manifest.
        arenas: where scratch memory is taken from, which others may share.
    """

    def __init__(
        self, loaded: Loaded, moving: Moving, box: Sequence[tuple[int, int]], tensors: Sequence[Tensor], arenas: Arenas
    ) -> None:
        self._loaded, self._moving, self._box, self._tensors = loaded, moving, box, list(tensors)
        self._arenas, self._buffers = arenas, SizedBuffers()
        self._kept: dict[tuple[int, ...], _Part] = {}
        self._first: Program | None = None
        self._lock = threading.Lock()

    def holds(self, sizes: Sequence[int]) -> bool:
        """Whether it is for these sizes of all dimensions."""
        return holds(self._box, sizes)

    def results(self, sizes: tuple[int, ...], inputs: Sequence[Any]) -> list[Any]:
        """The results of a call of these sizes, in the order of the manifest; raises what ``CompiledModel.results`` does."""
        part = self._kept.get(sizes)
        if part is None:
            part = self._at(sizes)
        return part.results(inputs)

    def _at(self, sizes: tuple[int, ...]) -> _Part:
        with self._lock:
            found = self._kept.get(sizes)
            if found is None:
                manifest = self._moving.at(self._loaded.manifest, sizes)
                program = program_of(
                    manifest, self._loaded.library, self._tensors, self._arenas, like=self._first, buffers=self._buffers,
                    sizes=(self._moving.slot, self._moving.sizes(sizes)),
                )  # fmt: skip
                self._first = self._first or program
                found = self._kept[sizes] = _Part(manifest.inputs, program)
                if len(self._kept) > MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
            return found


class _Part:
    """What runs calls of certain sizes."""

    def __init__(self, inputs: Sequence[Any], program: Program) -> None:
        self._inputs, self._program = inputs, program

    def results(self, inputs: Sequence[Any]) -> list[Any]:
        return self._program([fitted(spec, x) for spec, x in zip(self._inputs, inputs, strict=True)])
