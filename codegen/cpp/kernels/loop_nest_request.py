"""What a node's schedule asks of a loop nest: read and checked before the nest is scheduled, and told of the one that is printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dcir.codegen.asked import asked
from dcir.codegen.schedule import ScheduledLoopNest
from dcir.codegen.symbolic import usual
from dcir.errors import InvalidSchedule
from dcir.ir.loop_nest import LoopNest
from dcir.ir.schedule import COLLAPSED, Schedule
from dcir.ir.statements import Reduce

LANES = (4, 8, 16, 32, 64, 128)
"""Partial results of a reduction along a row that its text can fold."""
WIDEST_TILE = 2048  # columns whose sums lie side by side on the stack


@dataclass(frozen=True)
class Request:
    """What is asked for, by the loops of a nest that are in their final order.

    Attributes:
        schedule: as the node has it.
        names: of the nest's loops.
        n_outer: how many of them are outer ones.
    """

    schedule: Schedule
    names: tuple[str, ...]
    n_outer: int

    @property
    def last(self) -> str:
        """The last outer loop, "" if there is none."""
        return self.names[self.n_outer - 1] if self.n_outer else ""

    def vector(self) -> int | None:
        """The loop whose points lie in lanes, -1 for none; None if that is left open."""
        wanted = self.schedule.vector
        if wanted is None:
            return None
        if wanted == "":
            return -1
        able = [n for n in (self.last, self.names[-1] if len(self.names) > self.n_outer else "") if n]
        if wanted not in able:
            raise InvalidSchedule(
                f"loop {wanted} cannot be the vector loop, which is the last of the outer or of the inner loops",
                hint=(" or ".join(f"vector={n!r}" for n in able) or "vector=''") + ", or another order",
            )
        return self.names.index(wanted)

    def jobs(self, nest: LoopNest, lanes: bool, block: int) -> tuple[int, int, int, bool] | None:
        """Outer loops dealt to jobs, points of a tile or 0, jobs of those loops, whether tiles are jobs too; None if that is left open.

        Args:
            nest: with its loops in order.
            lanes: whether the last outer loop is the vector's, and so is dealt in tiles or not at all.
            block: points of a tile if none are asked for.
        """
        if self.schedule.parallel is None and not self._tile_asked(lanes):
            return None
        dealt = dict(self.schedule.parallel or ())
        rows = self.n_outer - lanes if self.n_outer else 0
        prefix = next((d for d in range(rows) if self.names[d] not in dealt), rows)
        tiled = bool(lanes and self.last and self.last in dealt)
        wrong = [n for n in dealt if n not in self.names[:prefix] and not (tiled and n == self.last)]
        if wrong:
            raise InvalidSchedule(
                f"loop {wrong[0]} cannot be dealt to jobs before the loops around it, nor if a reduction runs over it",
                hint=f"parallel={{{', '.join(f'{n!r}: {usual(e)}' for n, e in zip(self.names[:1], nest.outer, strict=False))}}}",
            )
        for d, name in enumerate(self.names[:prefix]):
            if dealt[name] != usual(nest.outer[d]):
                raise InvalidSchedule(
                    f"loop {name} is dealt point by point, to {usual(nest.outer[d])} jobs and not to {dealt[name]}",
                    hint=f"{name!r}: {usual(nest.outer[d])}",
                )
        size = dict(self.schedule.tiles or ()).get(self.last, 0) if lanes else 0
        if tiled and not size:
            size = block or -(-usual(nest.outer[-1]) // dealt[self.last])
        if size and not tiled and not block:
            raise InvalidSchedule(
                f"blocks of loop {self.last} are jobs of their own",
                hint=f"parallel={{{self.last!r}: …}} as well, or no tile",
            )
        if size > WIDEST_TILE and block:
            raise InvalidSchedule(
                f"a tile of {size} sums side by side is too wide", hint=f"{self.last!r}: {WIDEST_TILE}"
            )
        return prefix, size or block, math.prod(nest.outer[:prefix]), tiled

    def _tile_asked(self, lanes: bool) -> bool:
        return bool(lanes and self.last and self.last in dict(self.schedule.tiles or ()))

    def lanes(self) -> int | None:
        """Partial results along a row; None if that is left open."""
        if self.schedule.registers is None:
            return None
        sizes = dict(self.schedule.registers)
        if not sizes:
            return 0
        if set(sizes) != {self.names[-1]} or sizes[self.names[-1]] not in LANES:
            raise InvalidSchedule(
                f"registers hold {', '.join(map(str, LANES))} partial results along loop {self.names[-1]} of this loop nest, or one",
                hint=f"registers={{{self.names[-1]!r}: {LANES[0]}}}",
            )
        return sizes[self.names[-1]]

    def block(self, able: Sequence[int]) -> tuple[int, int] | None:
        """(loop, points) of a block of sums, (-1, 0) for none; None if that is left open. ``able``: loops that may have one."""
        if self.schedule.tiles is None:
            return None
        inner = {n: size for n, size in self.schedule.tiles if n != self.last}
        if not inner:
            return -1, 0
        name, size = next(iter(inner.items()))
        if len(inner) > 1 or name not in self.names or self.names.index(name) not in able:
            found = ", ".join(self.names[d] for d in able) or "none"
            raise InvalidSchedule(
                f"loops {', '.join(inner)} cannot run in blocks of sums; of this loop nest that can be: {found}",
                hint=f"tiles={{{self.names[able[0]]!r}: {size}}}" if able else "tiles={}",
            )
        return self.names.index(name), size

    def near(self, able: Sequence[int], best: Sequence[int]) -> list[int]:
        """Values that wait in near memory: those asked for, or the ``best``."""
        if self.schedule.near is None:
            return list(best)
        named = {f"v{i}": i for i in able}
        unknown = [n for n in self.schedule.near if n not in named]
        if unknown:
            raise InvalidSchedule(
                f"value {unknown[0]} cannot wait in near memory: it is no value that two sweeps need, or takes too much room",
                hint=f"of {', '.join(named)}" if named else "near=()",
            )
        return [named[n] for n in self.schedule.near]


def requested(p: LoopNest) -> tuple[LoopNest, Request]:
    """A loop nest with its loops in the order that the node asks for, and what else it asks.

    Raises:
        InvalidSchedule: a loop that is not there, or an order that a reduction does not allow.
    """
    wanted, names, n = asked(), [f"i{d}" for d in range(len(p.dims))], len(p.outer)
    order = wanted.order or ()
    unknown = [name for name in order if name not in names]
    if unknown or len(set(order)) != len(order):
        raise InvalidSchedule(
            f"order names {(unknown or order)[0]}, which is no loop or is named twice", hint="of " + ", ".join(names)
        )
    first = [names.index(name) for name in order]
    if not first:
        return p, Request(wanted, tuple(names), n)
    places = [*first, *(d for d in range(len(names)) if d not in first)]
    outer, inner = [d for d in places if d < n], [d for d in places if d >= n]
    if first != (outer + inner)[: len(first)]:
        late = next(d for at, d in enumerate(places) if d < n and any(e >= n for e in places[:at]))
        raise InvalidSchedule(
            f"loop {names[late]} cannot run inside loops that a reduction runs over",
            hint=f"order={[names[d] for d in outer + inner]}",
        )
    if inner != sorted(inner) and any(isinstance(s, Reduce) and s.is_place for s in p.body):
        raise InvalidSchedule(
            "of equal values the first one is asked for, so its loops stay in order", hint="outer loops"
        )
    return p.reorder(outer, inner), Request(wanted, tuple(names[d] for d in outer + inner), n)


def told(made: ScheduledLoopNest, request: Request) -> Schedule:
    """The schedule of a loop nest in the words of a node."""
    p, names, tile = made.nest, request.names, made.tile
    parallel = [(names[d], usual(p.outer[d])) for d in range(made.prefix)]
    tiles = []
    if tile is not None:
        tiles.append((request.last, tile.size))
        if tile.parallel:
            parallel.append((request.last, -(-usual(p.outer[-1]) // usual(tile.size))))
    lanes = max((s.lanes for s in made.sweeps), default=0)
    blocks = {(s.block.loop, s.block.size) for s in made.sweeps if s.block is not None}
    tiles += [(names[loop], size) for loop, size in sorted(blocks)]
    return Schedule(
        request.schedule.method or COLLAPSED,
        tuple((name, usual(n)) for name, n in zip(names, p.dims, strict=True)),
        order=names,
        parallel=tuple(parallel),
        tiles=tuple(tiles),
        registers=((names[-1], lanes),) if lanes else (),
        vector="" if made.vector is None else names[made.vector],
        packed=(),
        near=tuple(f"v{i}" for i, _ in made.near),
    )
