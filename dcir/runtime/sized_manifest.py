"""What ``manifest.json`` of a .dcir file for sizes within bounds may say: its dimensions and programs, and what must hold between them.

Such a file has one program for every combination of sizes, except for one dimension, the batch, whose sizes are pieces: a call
runs as many pieces as cover it. Program n has the members ``n/manifest.json`` (as in a file for one size), ``n/network.so``,
``n/dcir.h`` and ``n/network.sdfgz``; all share the weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcir.dynamic import DynamicDim
from dcir.runtime.manifest import MAX_BYTES, FileEntry, Manifest, Place, broken, read_record

FORMAT = 1
MAX_PROGRAMS = 1024
_OF_A_PROGRAM = ("manifest.json", "network.so", "dcir.h", "network.sdfgz")
_SHARED = ("manifest.json", "weights.safetensors", "report.json")


def member(number: int, name: str) -> str:
    """The name of a member that belongs to program ``number``."""
    return f"{number}/{name}"


def members(programs: int) -> tuple[str, ...]:
    """All members of a file with so many programs."""
    return (*_SHARED, *(member(n, name) for n in range(programs) for name in _OF_A_PROGRAM))


def programs_in(members: int) -> int:
    """How many programs a file with so many members has, if it is one for sizes within bounds."""
    return (members - len(_SHARED)) // len(_OF_A_PROGRAM)


@dataclass(frozen=True)
class Dimension:
    """A size that may differ from call to call.

    Attributes:
        name: as the user calls it.
        least, most: its bounds, both included; most is None where there is none.
        places: (input, dimension) of every place where the size stands.
    """

    name: str
    least: int
    most: int | None
    places: tuple[Place, ...]

    @property
    def known(self) -> DynamicDim:
        """The bounds as what a call is held against."""
        return DynamicDim(self.name, self.least, self.most)


@dataclass(frozen=True)
class SizedManifest:
    """Which programs a file holds.

    Attributes:
        sized: the format.
        files: all members but the manifest itself.
        dimensions: the sizes that may differ.
        batch: number of the dimension that is run in pieces, or -1.
        programs: per program, a size per dimension.
    """

    sized: int
    files: dict[str, FileEntry]
    dimensions: tuple[Dimension, ...]
    batch: int
    programs: tuple[tuple[int, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data that ``read`` takes back."""
        return dataclasses.asdict(self)

    def others(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The sizes of all dimensions but the batch."""
        return tuple(s for d, s in enumerate(sizes) if d != self.batch)

    def pieces(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """The pieces of the batch, ascending, per combination of the other sizes."""
        found: dict[tuple[int, ...], list[int]] = {}
        for sizes in self.programs:
            found.setdefault(self.others(sizes), []).append(sizes[self.batch])
        return {others: tuple(sorted(pieces)) for others, pieces in found.items()}


def read(data: Any, programs: int) -> SizedManifest:
    """A manifest that is right in itself, of a file with so many programs; see `check_programs` for the rest.

    Raises:
        ArtefactInvalid: a field is missing, unknown, of another type, or holds a number that cannot be.
    """
    version = data.get("sized") if isinstance(data, dict) else None
    if version != FORMAT:
        raise broken("sized", f"{FORMAT}, as this dcir reads it")
    m: SizedManifest = read_record(SizedManifest, data, "manifest")
    names = [d.name for d in m.dimensions]
    if not names or len(set(names)) != len(names) or not all(names):
        raise broken("dimensions", "named differently")
    for i, d in enumerate(m.dimensions):
        if not 1 <= d.least <= MAX_BYTES or not d.least <= (d.least if d.most is None else d.most) <= MAX_BYTES:
            raise broken(f"dimensions[{i}]", "bounds from 1 up")
        if d.most is None and i != m.batch:
            raise broken(f"dimensions[{i}].most", "a bound: only a batch has none")
        if not d.places:
            raise broken(f"dimensions[{i}].places", "where the size stands")
    places = [p for d in m.dimensions for p in d.places]
    if len(set(places)) != len(places):
        raise broken("dimensions", "at places of their own")
    if not -1 <= m.batch < len(names):
        raise broken("batch", "the number of a dimension")
    if m.batch >= 0 and any(dim for _, dim in m.dimensions[m.batch].places):
        raise broken("batch", "the first dimension of inputs")
    if len(m.programs) != programs or len(set(m.programs)) != programs:
        raise broken("programs", "one per program in the file")
    if any(len(sizes) != len(names) or not all(1 <= s <= MAX_BYTES for s in sizes) for sizes in m.programs):
        raise broken("programs", "a possible size per dimension")
    _check_all_there(m)
    return m


def _check_all_there(m: SizedManifest) -> None:
    """Whether there is a program for every size within the bounds."""
    others = [d for i, d in enumerate(m.dimensions) if i != m.batch]
    combinations = {m.others(sizes) for sizes in m.programs}
    wanted = math.prod((d.most or d.least) - d.least + 1 for d in others)
    inside = all(d.known.holds(s) for sizes in combinations for d, s in zip(others, sizes, strict=True))
    if not inside or len(combinations) != wanted:
        raise broken("programs", "one for every size within the bounds")
    if m.batch >= 0 and any(pieces[0] > m.dimensions[m.batch].least for pieces in m.pieces().values()):
        raise broken("programs", "pieces for every batch within the bounds")


def check_programs(m: SizedManifest, programs: Sequence[Manifest]) -> None:
    """Whether the programs differ in nothing but the sizes that the manifest says.

    Raises:
        ArtefactInvalid: they do.
    """
    places = {place: number for number, d in enumerate(m.dimensions) for place in d.places}
    first = programs[0]
    for (i, dim), _ in places.items():
        if not 0 <= i < len(first.inputs) or not 0 <= dim < len(first.inputs[i].shape):
            raise broken("dimensions", "at dimensions of inputs")
    for number, (sizes, program) in enumerate(zip(m.programs, programs, strict=True)):
        if [(x.name, x.dtype) for x in program.inputs] != [(x.name, x.dtype) for x in first.inputs]:
            raise broken(f"program {number}", "one with the inputs of the others")
        for i, (x, like) in enumerate(zip(program.inputs, first.inputs, strict=True)):
            wanted = tuple(sizes[places[i, d]] if (i, d) in places else n for d, n in enumerate(like.shape))
            if x.shape != wanted:
                raise broken(f"program {number}: inputs[{i}].shape", f"{list(wanted)}")
        if program.result != first.result or [o.name for o in program.outputs] != [o.name for o in first.outputs]:
            raise broken(f"program {number}", "one with the results of the others")
    if m.batch >= 0:
        _check_pieces(m, programs)


def _check_pieces(m: SizedManifest, programs: Sequence[Manifest]) -> None:
    """Whether the results of pieces can be put together."""
    alike: dict[tuple[int, ...], list[Any]] = {}
    for number, (sizes, program) in enumerate(zip(m.programs, programs, strict=True)):
        described: list[Any] = []
        for i, out in enumerate(program.outputs):
            if out.source == "literal":
                described.append((type(out.literal), out.literal))
                continue
            whole = program.buffers[out.index] if out.source == "buffer" else None
            shape = () if whole is None else whole.shape if out.shape is None else out.shape
            if whole is None or shape[:1] != (sizes[m.batch],):
                raise broken(f"program {number}: outputs[{i}]", "a new tensor with the batch in front")
            described.append((whole.dtype, shape[1:]))
        if alike.setdefault(m.others(sizes), described) != described:
            raise broken(f"program {number}", "one with results like those of the other pieces")
