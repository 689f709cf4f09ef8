"""Scheduled loop nests: how the points of a loop nest run on a target, before anybody prints a line.

    loop nest  -->  what is parallel   the first outer loops, and tiles of the last one, are dealt to jobs
                    what is tiled      the last outer loop, in blocks
                    what is a vector   the loop whose neighbouring points lie in lanes
                    what is near       values that wait in near memory from one sweep to the next
                    in which order     sweeps: stores before and after the inner loops, passes over these

A target derives one from a loop nest by what its machine likes and prints it in its own words; one that has neither threads nor
vectors takes `in_order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Reduce, Store

Levels = Sequence[tuple[int, bool]]
"""Of every statement: for how many sweeps it waits, and whether it is at inner points (``LoopNest.levels``)."""


@dataclass(frozen=True)
class Tile:
    """The last outer loop in blocks.

    Attributes:
        size: points of a block; the last may have fewer.
        parallel: whether every block is a job of its own.
    """

    size: int
    parallel: bool


@dataclass(frozen=True)
class Block:
    """An inner loop in blocks, each with partial sums of its own: the error grows with the block, not with the length.

    Attributes:
        loop, size: the loop, and how many points of it a block has.
        sums: the reduces that have partial sums.
    """

    loop: int
    size: int
    sums: tuple[int, ...]


@dataclass(frozen=True)
class Sweep:
    """A pass over the points of a job, for some statements.

    Attributes:
        stage: how many reduces it has to wait for, one after the other.
        inner: whether over the inner loops; else once for each outer point.
        stores, reduces: the statements it is for, by number. What they need is computed in it.
        lanes: partial results of every reduce along the vector, which do not wait for each other; 0: one.
        block: of partial sums; None: one sum.
        vector: whether neighbouring points may run at once.
    """

    stage: int
    inner: bool
    stores: tuple[int, ...]
    reduces: tuple[int, ...] = ()
    lanes: int = 0
    block: Block | None = None
    vector: bool = True


@dataclass(frozen=True)
class ScheduledLoopNest:
    """A loop nest, and how it runs.

    Attributes:
        nest: what is computed.
        prefix: so many outer loops, the first ones, are dealt to jobs; the others run inside a job, in order.
        jobs: independent jobs, tiles included.
        tile: of the last outer loop.
        vector: the loop whose neighbouring points lie in lanes; None: none.
        near: values that wait in near memory for a later sweep, by statement, with the stage in which they are born.
        sweeps: in order.
    """

    nest: LoopNest
    prefix: int
    jobs: int
    tile: Tile | None
    vector: int | None
    near: tuple[tuple[int, int], ...]
    sweeps: tuple[Sweep, ...]

    @property
    def columns(self) -> bool:
        """Whether lanes hold neighbouring outer points of a reduction, each with a result of its own."""
        reduces = any(s.reduces for s in self.sweeps)
        return reduces and self.vector is not None and self.vector < len(self.nest.outer)


def needed(p: LoopNest, roots: Sequence[int], known: set[int]) -> list[int]:
    """Everything to compute for ``roots`` (reduces themselves stay names) that is not ``known``, in order."""
    seen: set[int] = set()
    stack = [a for r in roots for a in p.body[r].args]
    while stack:
        i = stack.pop()
        if i in seen or i in known or isinstance(p.body[i], Reduce):
            continue
        seen.add(i)
        stack.extend(p.body[i].args)
    return sorted(seen)


def roots_of(p: LoopNest, levels: Levels, stage: int) -> list[int]:
    """Statements that the sweep over the inner loops of a stage is for: its reduces and its stores at inner points."""
    return [
        i
        for i, s in enumerate(p.body)
        if (isinstance(s, Reduce) and levels[i][0] == stage + 1)
        or (isinstance(s, Store) and levels[i] == (stage, True))
    ]


def stages_of(levels: Levels) -> int:
    """How many sweeps over the inner loops wait for others."""
    return max((stage for stage, _ in levels), default=0)


def outer_stores(p: LoopNest, levels: Levels, stage: int) -> list[int]:
    """Stores at outer points that wait for ``stage`` sweeps."""
    return [
        i
        for i, (s, level) in enumerate(zip(p.body, levels, strict=True))
        if isinstance(s, Store) and level == (stage, False)
    ]


def in_order(p: LoopNest) -> ScheduledLoopNest:
    """One job that runs all points in order: no vector, no tile, nothing near."""
    sweeps, levels = [], p.levels()
    for stage in range(stages_of(levels) + 1):
        if stores := outer_stores(p, levels, stage):
            sweeps.append(Sweep(stage, False, tuple(stores), vector=False))
        if roots := roots_of(p, levels, stage):
            reduces = tuple(r for r in roots if isinstance(p.body[r], Reduce))
            sweeps.append(Sweep(stage, True, tuple(r for r in roots if r not in reduces), reduces, vector=False))
    return ScheduledLoopNest(p, 0, 1, None, None, (), tuple(sweeps))
