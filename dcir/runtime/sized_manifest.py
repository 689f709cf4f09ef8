"""What ``manifest.json`` of a .dcir file for sizes within bounds may say: its dimensions and programs, and what must hold between them.

A program is for one combination of sizes, or for all within bounds of its own (``moving_manifest.py``); together they are for every
combination. Or one dimension, the batch, has pieces for sizes: a call runs as many pieces as cover it. Program n has the members
``n/manifest.json`` (as in a file for one size), ``n/network.so``, ``n/dcir.h`` and ``n/network.sdfgz``; all share the weights.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dcir.dynamic import DynamicDim
from dcir.runtime.manifest import MAX_BYTES, FileEntry, Manifest, Place, broken, read_record
from dcir.runtime.moving_manifest import Moving, check_moving

FORMAT = 2
MAX_PROGRAMS = 1024
MAX_FACTOR = 1 << 20
_MOST_CELLS = 1 << 16
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
        related: (input, dimension, factor, summand) of every place where a size stands that follows from it.
    """

    name: str
    least: int
    most: int | None
    places: tuple[Place, ...]
    related: tuple[tuple[int, int, int, int], ...] = ()

    @property
    def known(self) -> DynamicDim:
        """The bounds as what a call is held against."""
        return DynamicDim(self.name, self.least, self.most)

    @property
    def everywhere(self) -> dict[Place, DynamicDim]:
        """What a call is held against at every place."""
        found = dict.fromkeys(self.places, self.known)
        return found | {(i, d): replace(self.known, factor=f, summand=s) for i, d, f, s in self.related}

    def at(self, size: int) -> dict[Place, int]:
        """What stands at every place where the size is this one."""
        return dict.fromkeys(self.places, size) | {(i, d): f * size + s for i, d, f, s in self.related}


@dataclass(frozen=True)
class SizedManifest:
    """Which programs a file holds.

    Attributes:
        sized: the format.
        files: all members but the manifest itself.
        dimensions: the sizes that may differ.
        batch: number of the dimension that is run in pieces, or -1.
        programs: per program, a size per dimension: the greatest where it is for several.
        moving: per program, what moves of it; None for one that is for these sizes alone.
    """

    sized: int
    files: dict[str, FileEntry]
    dimensions: tuple[Dimension, ...]
    batch: int
    programs: tuple[tuple[int, ...], ...]
    moving: tuple[Moving | None, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data that ``read`` takes back."""
        return dataclasses.asdict(self)

    def others(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The sizes of all dimensions but the batch."""
        return tuple(s for d, s in enumerate(sizes) if d != self.batch)

    def box(self, number: int) -> tuple[tuple[int, int], ...]:
        """Per dimension, the least and the greatest size that a program is for."""
        moving = self.moving[number]
        least = {} if moving is None else {axis.dimension: axis.least for axis in moving.axes}
        return tuple((least.get(d, most), most) for d, most in enumerate(self.programs[number]))

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
        if any(not 1 <= factor <= MAX_FACTOR or abs(summand) > MAX_BYTES for *_, factor, summand in d.related):
            raise broken(f"dimensions[{i}].related", "possible sizes")
    places = [p for d in m.dimensions for p in d.everywhere]
    if len(places) != sum(len(d.places) + len(d.related) for d in m.dimensions):
        raise broken("dimensions", "at places of their own")
    if len(set(places)) != len(places):
        raise broken("dimensions", "at places of their own")
    if not -1 <= m.batch < len(names):
        raise broken("batch", "the number of a dimension")
    if m.batch >= 0 and any(dim for _, dim in m.dimensions[m.batch].everywhere):
        raise broken("batch", "the first dimension of inputs")
    if len(m.programs) != programs or len(set(m.programs)) != programs:
        raise broken("programs", "one per program in the file")
    if any(len(sizes) != len(names) or not all(1 <= s <= MAX_BYTES for s in sizes) for sizes in m.programs):
        raise broken("programs", "a possible size per dimension")
    if len(m.moving) != programs or (m.batch >= 0 and any(m.moving)):
        raise broken("moving", "one per program, and none of pieces")
    for sizes, moving in zip(m.programs, m.moving, strict=True):
        for axis in () if moving is None else moving.axes:
            if not 0 <= axis.dimension < len(names) or not axis.least < axis.most == sizes[axis.dimension]:
                raise broken("moving.axes", "up to the greatest sizes of the program")
    if m.batch >= 0:
        _check_all_pieces(m)
    else:
        _check_all_sizes(m)
    return m


def _check_all_sizes(m: SizedManifest) -> None:
    """Whether every combination of sizes within the bounds has a program."""
    boxes = [m.box(number) for number in range(len(m.programs))]
    # Between two sizes at which some program begins or ends, all combinations are alike.
    cells = []
    for d, dimension in enumerate(m.dimensions):
        most = dimension.most or dimension.least
        cuts = {dimension.least, *(box[d][0] for box in boxes), *(box[d][1] + 1 for box in boxes)}
        cells.append([cut for cut in sorted(cuts) if dimension.least <= cut <= most])
    if math.prod(map(len, cells)) > _MOST_CELLS:
        raise broken("programs", "one for every size within the bounds")
    alone = {tuple(low for low, _ in box) for box in boxes if all(low == high for low, high in box)}
    wide = [box for box in boxes if any(low < high for low, high in box)]
    for sizes in itertools.product(*cells):
        if sizes not in alone and not any(holds(box, sizes) for box in wide):
            raise broken("programs", "one for every size within the bounds")


def holds(box: Sequence[tuple[int, int]], sizes: Sequence[int]) -> bool:
    """Whether a program with such a ``box`` is for these sizes."""
    return all(low <= s <= high for (low, high), s in zip(box, sizes, strict=True))


def _check_all_pieces(m: SizedManifest) -> None:
    """Whether there are pieces for every size within the bounds."""
    others = [d for i, d in enumerate(m.dimensions) if i != m.batch]
    combinations = {m.others(sizes) for sizes in m.programs}
    wanted = math.prod((d.most or d.least) - d.least + 1 for d in others)
    inside = all(d.known.holds(s) for sizes in combinations for d, s in zip(others, sizes, strict=True))
    if not inside or len(combinations) != wanted:
        raise broken("programs", "one for every size within the bounds")
    if any(pieces[0] > m.dimensions[m.batch].least for pieces in m.pieces().values()):
        raise broken("programs", "pieces for every batch within the bounds")


def check_programs(m: SizedManifest, programs: Sequence[Manifest]) -> None:
    """Whether the programs differ in nothing but the sizes that the manifest says.

    Raises:
        ArtefactInvalid: they do.
    """
    first = programs[0]
    for i, dim in (place for d in m.dimensions for place in d.everywhere):
        if not 0 <= i < len(first.inputs) or not 0 <= dim < len(first.inputs[i].shape):
            raise broken("dimensions", "at dimensions of inputs")
    for number, (sizes, program) in enumerate(zip(m.programs, programs, strict=True)):
        if [(x.name, x.dtype) for x in program.inputs] != [(x.name, x.dtype) for x in first.inputs]:
            raise broken(f"program {number}", "one with the inputs of the others")
        places = _placed(m, sizes)
        for i, (x, like) in enumerate(zip(program.inputs, first.inputs, strict=True)):
            wanted = tuple(places.get((i, d), n) for d, n in enumerate(like.shape))
            if x.shape != wanted:
                raise broken(f"program {number}: inputs[{i}].shape", f"{list(wanted)}")
        if program.result != first.result or [o.name for o in program.outputs] != [o.name for o in first.outputs]:
            raise broken(f"program {number}", "one with the results of the others")
        moving = m.moving[number]
        if moving is not None:
            _check_program(m, number, moving, program)
    if m.batch >= 0:
        _check_pieces(m, programs)


def _check_program(m: SizedManifest, number: int, moving: Moving, program: Manifest) -> None:
    """Whether a program for several sizes is the one that its manifest describes at the greatest, and inputs are as the sizes say."""
    check_moving(moving, program, len(m.dimensions))
    ends = [[low for low, _ in m.box(number)], list(m.programs[number])]
    least, most = (moving.at(program, sizes) for sizes in ends)
    if (most.inputs, most.buffers) != (program.inputs, program.buffers):
        raise broken(f"program {number}", "what moves of it at its greatest sizes")
    places = _placed(m, ends[0])
    for i, (x, like) in enumerate(zip(least.inputs, program.inputs, strict=True)):
        if x.shape != tuple(places.get((i, d), n) for d, n in enumerate(like.shape)):
            raise broken(f"program {number}: inputs[{i}].shape", "the sizes of the dimensions")


def _placed(m: SizedManifest, sizes: Sequence[int]) -> dict[Place, int]:
    """What stands at which place of the inputs for sizes of all dimensions."""
    return {place: n for d, s in zip(m.dimensions, sizes, strict=True) for place, n in d.at(s).items()}


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
