"""Schedules: how the loops of one operator run, as data that a node may carry and that every tiled kernel is printed from.

    c[m, n] += a[m, k] b[k, n]     tiles: m 512, n 768, k 3072; order k n m; parallel m 2; blocks k 384, n 96; registers m 6, n 16;
                                   vector n; packed A

What a node leaves open the target decides, by its cost models; what it says is checked when the kernel is made, and never ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dcir.errors import InvalidSchedule
from dcir.ir.serialize import register

Names = tuple[str, ...]
Sizes = tuple[tuple[str, int], ...]
"""Loops by name, with a number for each."""

AS_WRITTEN, COLLAPSED = "loops", "collapsed"
"""Methods of a loop nest: its loops as the operator has them, or in the order of memory and joined where addresses allow."""
NESTS = (AS_WRITTEN, COLLAPSED)


@register
@dataclass(frozen=True)
class Schedule:
    """How an operator's loops run. A field that is None (a method that is "") is the target's to decide; one that is not says all of it.

    Loops have the names that a kernel's own schedule lists: ``i0``, ``i1``, … of a loop nest, ``b``, ``m``, ``n`` and ``k`` of a product,
    ``n``, ``g``, ``d``, ``h``, ``w``, ``co`` and ``ci`` of a convolution (``pixels``: ``n``, ``d``, ``h`` and ``w`` as one). Sizes are the
    most that a part has: parts are evened out, and blocks have whole register tiles.

    Attributes:
        method: which of the ways to compute it, as the target calls them. Those of ``NESTS`` run any operator that is equal to a loop nest.
        loops: the loops and their extents; only in the schedule of a kernel, which says them.
        order: loops from the outermost to the innermost; loops that are not named follow in their own order.
        parallel: loops that are dealt to jobs, and into how many parts. Empty: one job.
        tiles: loops that run in blocks, and points of a block.
        registers: the register tile: loops, and how many points of each have sums of their own that stay in registers.
        vector: the loop whose neighbouring points lie in lanes; "": none.
        packed: operands that are first copied into the order in which they are read.
        near: values that wait in near memory until they are read again.
    """

    method: str = ""
    loops: Sizes = ()
    order: Names | None = None
    parallel: Sizes | None = None
    tiles: Sizes | None = None
    registers: Sizes | None = None
    vector: str | None = None
    packed: Names | None = None
    near: Names | None = None

    def __post_init__(self) -> None:
        for name in ("parallel", "tiles", "registers"):
            sizes = getattr(self, name)
            if sizes is not None and not _are_sizes(sizes):
                raise InvalidSchedule(
                    f"{name} cannot be {sizes!r}", hint=f"Schedule.of({name}={{'m': 4}}), numbers from 1 up"
                )
        for name in ("order", "packed", "near"):
            names = getattr(self, name)
            if names is not None and not (isinstance(names, tuple) and all(type(n) is str for n in names)):
                raise InvalidSchedule(f"{name} cannot be {names!r}", hint=f"Schedule.of({name}=['m'])")
        for name in ("method", "vector"):
            if not isinstance(getattr(self, name), str | None):
                raise InvalidSchedule(f"{name} cannot be {getattr(self, name)!r}", hint="a string")

    @staticmethod
    def of(**values: Any) -> Schedule:
        """A schedule from what people write: dictionaries of sizes, lists of names.

        Raises:
            InvalidSchedule: an unknown field, or a value that it cannot take.
        """
        known = [f.name for f in fields(Schedule) if f.name != "loops"]
        for name in values:
            if name not in known:
                raise InvalidSchedule(f"a schedule has no {name!r}", hint="one of " + ", ".join(known))
        return Schedule(**{name: _plain(value) for name, value in values.items()})

    def renamed(self, names: Mapping[str, str]) -> Schedule:
        """The same with other names of loops and operands."""

        def of(sizes: Sizes | None) -> Sizes | None:
            return None if sizes is None else tuple((names.get(loop, loop), n) for loop, n in sizes)

        def listed(found: Names | None) -> Names | None:
            return None if found is None else tuple(names.get(n, n) for n in found)

        return replace(
            self, loops=of(self.loops) or (), order=listed(self.order), parallel=of(self.parallel), tiles=of(self.tiles),
            registers=of(self.registers), vector=None if self.vector is None else names.get(self.vector, self.vector),
            packed=listed(self.packed), near=listed(self.near),
        )  # fmt: skip

    def missed(self, made: Schedule) -> str:
        """The field in which a kernel's schedule is not what this one asks for, "" if it is all of it."""
        if self.method and self.method != made.method:
            return "method"
        if self.order is not None and (made.order or ())[: len(self.order)] != self.order:
            return "order"
        if self.vector is not None and self.vector != (made.vector or ""):
            return "vector"
        for name in ("packed", "near"):
            if getattr(self, name) is not None and set(getattr(self, name)) != set(getattr(made, name) or ()):
                return name
        extents = dict(made.loops)
        for name in ("parallel", "tiles", "registers"):
            asked = getattr(self, name)
            if asked is not None and not _agree(name, asked, made, extents):
                return name
        return ""

    def __str__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self)[2:]]
        parts = [_shown(self.loops)] * bool(self.loops) + [f"{name} {_shown(value)}" for name, value in given if value]
        return f"{self.method or 'any'}: {', '.join(parts)}" if parts else self.method or "any"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(tuple(v) if isinstance(v, list) else v for v in value)
    return value


def _shown(value: str | Names | Sizes) -> str:
    if isinstance(value, str):
        return value
    return " ".join(v if isinstance(v, str) else f"{v[0]} {v[1]}" for v in value)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(v, tuple) and len(v) == 2 and type(v[0]) is str and type(v[1]) is int and v[1] > 0 for v in value
    )


def _agree(name: str, asked: Sizes, made: Schedule, extents: Mapping[str, int]) -> bool:
    """Whether sizes are those that were asked for, or parts evened out, or blocks of whole register tiles."""
    a, b = dict(asked), dict(getattr(made, name) or ())
    each = dict(made.registers or ()) if name == "tiles" else {}
    if name == "parallel":  # one part is all of a loop
        return {k: v for k, v in a.items() if v > 1} == {k: v for k, v in b.items() if v > 1}

    def whole(loop: str, size: int) -> bool:
        return name == "tiles" and loop in extents and size >= extents[loop]

    a = {loop: n for loop, n in a.items() if not whole(loop, n)}
    b = {loop: n for loop, n in b.items() if not whole(loop, n)}
    return a.keys() == b.keys() and all(
        b[loop] <= a[loop]
        and (a[loop] < b[loop] + each.get(loop, 1) or _parts(extents, loop, a) == _parts(extents, loop, b))
        for loop in a
    )


def _parts(extents: Mapping[str, int], loop: str, sizes: Mapping[str, int]) -> int:
    return -(-extents.get(loop, 0) // sizes[loop])


OPEN = Schedule()
"""Everything is the target's to decide."""
PLAIN = Schedule(AS_WRITTEN, order=(), parallel=(), registers=(), vector="", packed=(), near=())
"""One job that runs all loops as the operator has them, without vectors. Long sums are taken in blocks, as at every level: how large an
error is, is no matter of schedules."""
