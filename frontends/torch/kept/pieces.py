"""A batch of any size in pieces of constant sizes (``shapes/batch_buckets.py``) as data, and as something to call again.

Before that is shown of a graph, its programs are for the batches that they were compiled for. A kept one compiles no further pieces: it
covers a batch with those that there are, and one that would take very many is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dcir.batch_buckets import SIZES
from dcir.frontends.torch.kept.descriptions import Unkept
from dcir.frontends.torch.kept.wrappers import KeptWrappers
from dcir.frontends.torch.shapes.batch_buckets import Batch, BatchBuckets, Traced
from dcir.frontends.torch.shapes.programs import NoProgramForSizes
from dcir.frontends.torch.shapes.specialize_shapes import BySize, kind_of_call

_RUNS = 8
"""Runs of the largest piece that a batch is still done in."""
_ANY = 1 << 62


@dataclass(frozen=True)
class KeptPiece:
    """The graph for one number of images: AOTAutograd's findings, and what it became."""

    wrappers: KeptWrappers
    graph: Any


@dataclass(frozen=True)
class KeptPieces:
    """A graph that does the same to every image.

    Attributes:
        batch: where the images are.
        floats: numbers of the arguments that are tensors in the place of Python's numbers.
        kind: what all else in a call has to be (``kind_of_call``).
        pieces: by their number of images.
        whole: whether they are for whole batches alone, since nothing shows that the graph does the same to every image.
    """

    batch: Batch
    floats: tuple[int, ...]
    kind: Any
    pieces: Mapping[int, KeptPiece]
    whole: bool

    def runs(self) -> Callable[..., Any]:
        """The graph as Dynamo calls it; a call that there are no pieces for ends in ``NoProgramForSizes``."""
        return _Covered(self)


class Pieces:
    """The pieces that there are so far of a graph in which a batch moves.

    Args:
        by_size: the graph.
        traces: of its programs what was noted when they were traced.
    """

    def __init__(self, by_size: BySize, traces: Mapping[Any, KeptPiece]) -> None:
        self._by_size, self._traces = by_size, traces
        shown = (kind for kind, found in by_size.pieces.items() if isinstance(found, BatchBuckets))
        kind = next(shown, None)
        self._whole = kind is None
        self._kind = next(iter(by_size.by_batch), None) if kind is None else kind

    @property
    def floats(self) -> tuple[int, ...]:
        """Numbers of the arguments that are tensors in the place of Python's numbers, which no guard asks for."""
        return self._by_size.floats

    @property
    def programs(self) -> int:
        """How many there are."""
        return len(self._found())

    @property
    def condition(self) -> str:
        """On the batch of a call, as code; empty where that has no path."""
        paths, sizes = list(self._by_size.paths.values()), list(self._found())
        if not sizes or len(paths) != 1:
            return ""
        least, most = reach(sizes)
        return " or ".join(f"{paths[0]} == {n}" for n in sizes) if self._whole else f"{least} <= {paths[0]} <= {most}"

    def kept(self) -> KeptPieces:
        """All of them.

        Raises:
            Unkept: there are none.
        """
        found, batch = self._found(), self._by_size.batch
        if not found or not isinstance(batch, Batch):
            raise Unkept("none of its programs is for a piece of any batch")
        return KeptPieces(batch, self.floats, self._kind, found, self._whole)

    def _found(self) -> dict[int, KeptPiece]:
        made = {} if self._kind is None else self._by_size.by_batch.get(self._kind, {})
        return {n: self._traces[p] for n, p in sorted(made.items()) if p in self._traces and n > 1}


def reach(sizes: Sequence[int]) -> tuple[int, int]:
    """The least and the largest batch that pieces of some sizes are used for."""
    return min(sizes), _ANY if max(sizes) >= max(SIZES) else _RUNS * max(sizes)


class _Covered:
    def __init__(self, kept: KeptPieces) -> None:
        sizes = tuple(sorted(kept.pieces))
        self._kept, self._reach = kept, reach(sizes)
        self._buckets = BatchBuckets(kept.batch, {}, _none, sizes)
        self._buckets.programs |= {n: p.wrappers.around(p.graph.boxed(), None) for n, p in kept.pieces.items()}

    def __call__(self, *args: Any) -> Any:
        kept, (least, most) = self._kept, self._reach
        images = kept.batch.size(args)
        if not (images in kept.pieces if kept.whole else least <= images <= most):
            raise NoProgramForSizes(f"there are no pieces for {images} images")
        if kind_of_call(args, kept.floats, kept.batch.tensors, kept.batch.numbers) != kept.kind:
            raise NoProgramForSizes("the pieces are for arguments of other forms")
        return self._buckets(*args)


def _none(args: Sequence[Any], images: int, traced: Traced | None) -> Callable[..., Any]:
    raise NoProgramForSizes(f"there is no piece of {images} images")
