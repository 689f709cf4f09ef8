"""What a node asks of the schedule of the kernel that is being planned, and how an emitter answers or refuses it.

Emitters take what is asked for in place of what their cost models would choose, and say in the plan what they have printed. ``answered``
holds the two against each other, so that nothing that was asked for is lost on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from dcir.codegen.plan import KernelPlan
from dcir.codegen.symbolic import Undecided, usual
from dcir.errors import InvalidSchedule
from dcir.ir.schedule import NESTS, OPEN, Schedule, Sizes

NEAR_BYTES = 1 << 20
"""Of near memory that a job's blocks may take: they lie on a thread's stack."""

_CURRENT: ContextVar[Schedule] = ContextVar("schedule", default=OPEN)


def asked() -> Schedule:
    """The schedule that the node asks for."""
    return _CURRENT.get()


@contextmanager
def asking(schedule: Schedule) -> Iterator[None]:
    """Emitters called inside are asked for this schedule."""
    token = _CURRENT.set(schedule)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def as_known(make: Callable[[], Schedule]) -> Schedule:
    """What a kernel says of its schedule; nothing where that depends on sizes which only a call has: a report refuses no program."""
    try:
        return make()
    except Undecided:
        return OPEN


def answered(plan: KernelPlan, kind: str) -> KernelPlan:
    """A plan, if its schedule is what was asked for.

    Raises:
        InvalidSchedule: it is another one.
    """
    wanted = asked()
    if wanted == OPEN:
        return plan
    if plan.schedule is None:
        raise InvalidSchedule(f"the kernel of {kind} takes no schedule", hint="leave this operator to the target")
    if field := wanted.missed(plan.schedule):
        raise InvalidSchedule(
            f"the kernel of {kind} cannot have {field} as asked",
            details=[("asked", str(wanted)), ("kernel", str(plan.schedule))],
            hint=f"leave {field} to the target, or take the kernel's own"
            if field != "method"
            else _other(plan.schedule),
        )
    return plan


def _other(made: Schedule) -> str:
    return " or ".join(map(repr, dict.fromkeys((made.method, *NESTS)))) + ", or leave it to the target"


def listed(**sizes: int) -> Sizes:
    """Loops with numbers, the usual ones of those that move."""
    return tuple((loop, usual(n)) for loop, n in sizes.items())


def wish(field: str, loop: str) -> int | None:
    """The size that a field of the asked schedule has for a loop; 0 if it leaves the loop whole, None if the field is left open."""
    sizes: Sizes | None = getattr(asked(), field)
    return None if sizes is None else dict(sizes).get(loop, 0)


def check_near(what: str, nbytes: int, hint: str) -> None:
    """Refuse blocks that near memory has no room for, if they were asked for.

    Raises:
        InvalidSchedule: they are too large.
    """
    if nbytes > NEAR_BYTES and asked().tiles is not None:
        raise InvalidSchedule(
            f"{what} takes {nbytes >> 10} KB of near memory, a job has {NEAR_BYTES >> 10} KB", hint=hint
        )


def register_tile(down: str, along: str, width: int, registers: int) -> tuple[int, int] | None:
    """The register tile that is asked for: points of ``down``, vectors of ``along``. None if that is left open.

    Raises:
        InvalidSchedule: it is made of other loops or of parts of vectors, or registers do not hold its sums.
    """
    if asked().registers is None:
        return None
    sizes = dict(asked().registers or ())
    if sizes.keys() != {down, along}:
        raise InvalidSchedule(
            f"a register tile of this kernel is made of {down} and {along}, not of {', '.join(sizes) or 'nothing'}",
            hint=f"registers={{{down!r}: 4, {along!r}: {width}}}",
        )
    rows, columns = sizes[down], sizes[along]
    if columns % width:
        raise InvalidSchedule(
            f"{along} {columns} of a register tile is no number of whole vectors, which have {width} elements",
            hint=f"{along!r}: {-(-columns // width) * width}",
        )
    vectors = columns // width
    if rows * vectors + 2 > registers:
        fits = (registers - 2) // vectors
        raise InvalidSchedule(
            f"a register tile of {rows} by {columns} has {rows * vectors} vectors of sums; of {registers} registers two are taken",
            hint=f"{down!r}: {fits}" if fits else f"{along!r}: {width}",
        )
    return rows, vectors


def grid_of_jobs(rows: int, columns: int) -> tuple[int, int] | None:
    """Into how many parts ``m`` and ``n`` are to be dealt, which have so many tiles; None if that is left open.

    Raises:
        InvalidSchedule: there are fewer tiles.
    """
    if asked().parallel is None:
        return None
    found = []
    for loop, tiles in (("m", rows), ("n", columns)):
        parts = max(1, wish("parallel", loop) or 1)
        if parts > usual(tiles):
            raise InvalidSchedule(
                f"{loop} has {usual(tiles)} tiles, which cannot be dealt to {parts} jobs",
                hint=f"parallel={{{loop!r}: {usual(tiles)}}}, or a smaller register tile",
            )
        found.append(parts)
    return found[0], found[1]
