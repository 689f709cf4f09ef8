"""Schedules that somebody asks for, set at the operators that a pattern names.

    product m512 n768 k3072   -->   runs as tiles: parallel m 2, registers m 4 n 16

    from dcir.ir.schedule import Schedule
    mine = Schedule.of(method="tiles", registers={"m": 4, "n": 16}, parallel={"m": 2})
    fast = dcir.optimize(model, schedule={"product m512 *": mine})
    fast.dcir.explain()                     # every kernel with the schedule that it was printed from

A pattern is a shell's: ``*`` and ``?`` stand for what they do in names of files. It is held against an operator's description (as
``explain`` has it), its kind, its label, and its place in the user's model; the first that fits counts. What a schedule leaves open is the
target's to decide. Whether the kernel can have it is known, and told, when that is made: another one than was asked for never runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from dcir.errors import InvalidSchedule
from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network
from dcir.ir.schedule import Schedule
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class SetSchedules(Pass):
    """Set schedules by pattern.

    Attributes:
        schedules: patterns with what they set. What no operator of a graph fits is told as not done.
    """

    tier: ClassVar[int] = 1
    schedules: tuple[tuple[str, Schedule], ...] = ()

    def __post_init__(self) -> None:
        for pattern, schedule in self.schedules:
            if not isinstance(schedule, Schedule):
                raise InvalidSchedule(
                    f"{schedule!r} is no schedule",
                    where=pattern,
                    hint="dcir.ir.schedule.Schedule.of(parallel={'m': 2})",
                )

    def apply(self, net: Network) -> PassResult:
        """Visit every operator that has code of its own."""
        outcome, idle = PassResult.of(net), dict.fromkeys(pattern for pattern, _ in self.schedules)
        for op in net.ops():
            if op.spec.calls_out or op.spec.bodies():
                continue
            found = next(((p, s) for p, s in self.schedules if _fits(p, op)), None)
            if found is None:
                continue
            idle.pop(found[0], None)
            if op.own_schedule != found[1]:
                op.own_schedule = found[1]
                outcome.passed((op,))
        for pattern in idle:
            outcome.missed(f"no operator fits {pattern!r}")
        return outcome


def _fits(pattern: str, op: Op) -> bool:
    names = (op.spec.describe(), op.spec.kind, op.label, op.origin, op.origin.split(" ")[0])
    return any(fnmatchcase(name, pattern) for name in names)


def with_schedules(passes: Sequence[Pass], schedules: Sequence[tuple[str, Schedule]]) -> tuple[Pass, ...]:
    """A pipeline that also sets schedules: behind all passes that make operators, in front of those that settle their order."""
    at = next((i for i, p in enumerate(passes) if p.final), len(passes))
    return (*passes[:at], SetSchedules(tuple(schedules)), *passes[at:])
