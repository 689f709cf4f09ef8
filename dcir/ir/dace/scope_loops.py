"""The loops of a scope of maps: what parameters are in them, tiles put together again, and addresses as steps along them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import dace
import sympy

from dcir.errors import Unsupported
from dcir.ir.dace.tasklet_values import Affine
from dcir.ir.statements import Statement

Point = tuple[Any, ...]
"""A place in an array: sympy expressions in loops, one for each dimension."""


class Loop(NamedTuple):
    """A loop of the nest: its number and its extent."""

    number: int
    extent: int


@dataclass
class Frame:
    """What is known inside a map: its loops and those around it, and what its parameters and the others are in loops."""

    loops: tuple[Loop, ...] = ()
    meaning: dict[str, Any] = field(default_factory=dict)
    tiles: dict[str, tuple[int, Loop]] = field(default_factory=dict)


class ScopeLoops:
    """Loops found on the way into maps.

    Attributes:
        sdfg: whose constants ranges may name.
        where: what is read, for errors.
        symbols: of each loop, by number.
        absorbed: loops over tiles, which are part of other loops.
    """

    def __init__(self, sdfg: Any) -> None:
        self.sdfg, self.where = sdfg, ""
        self.symbols: list[Any] = []
        self.absorbed: set[int] = set()
        self._loops: dict[tuple[Any, ...], tuple[Loop, ...]] = {}

    def refuse(self, what: str) -> Unsupported:
        """An error that says what has no form in loop nests."""
        return Unsupported.collect([(what, self.where)])

    def enter(self, entry: Any, outside: Frame) -> Frame:
        """The frame of a map."""
        meaning, tiles, loops = dict(outside.meaning), dict(outside.tiles), list(outside.loops)
        made: list[tuple[str, Any, int, Any]] = []  # parameter, first, step, extent
        for param, (first, last, step) in zip(entry.map.params, entry.map.range.ranges, strict=True):
            a, b, s = (self.said(x, outside.meaning) for x in (first, last, step))
            if not s.is_Integer or int(s) < 1:
                raise self.refuse("a map whose step is no constant as a loop nest")
            tile = self._tile_of(a, b, outside)
            if tile is not None:
                whole_first, whole_last, loop = tile
                self.absorbed.add(loop.number)
                loops = [x for x in loops if x.number != loop.number]
                a, b = whole_first, whole_last
            extent = sympy.expand((b - a) / s)
            if not extent.is_number:
                raise self.refuse(f"a map over a range that moves with the loops around it ({first}:{last})")
            made.append((param, a, int(s), max(int(sympy.floor(extent)) + 1, 0)))
        # Loops of one point are none, so that maps with and without them have the same loops inside.
        moving = [x for x in made if x[3] != 1]
        key = (tuple(n for *_, n in moving), tuple(loops))
        if key not in self._loops:
            self._loops[key] = tuple(self.new_loop(n) for *_, n in moving)
        meaning |= {param: a for param, a, _, _ in made}
        for (param, a, step, _), loop in zip(moving, self._loops[key], strict=True):
            meaning[param] = a + step * self.symbols[loop.number]
            tiles[param] = (step, loop)
        return Frame((*loops, *self._loops[key]), meaning, tiles)

    def new_loop(self, extent: int) -> Loop:
        """A loop with a number of its own."""
        self.symbols.append(sympy.Symbol(f"dcir_loop{len(self.symbols)}", integer=True))
        return Loop(len(self.symbols) - 1, extent)

    def _tile_of(self, first: Any, last: Any, outside: Frame) -> tuple[Any, Any, Loop] | None:
        """(first, last, loop) of the whole range, where this one is the tile that a loop around it has come to."""
        for step, loop in outside.tiles.values():
            symbol = self.symbols[loop.number]
            if (
                loop.number in self.absorbed
                or sympy.expand(first).coeff(symbol) != step
                or not isinstance(last, sympy.Min)
            ):
                continue
            start = first.subs(symbol, 0)
            bounds = [sympy.expand(x) for x in last.args]
            fixed = [x for x in bounds if x.is_Integer]
            others = [x for x in bounds if not x.is_Integer]
            if len(fixed) != 1 or len(others) != 1 or not start.is_Integer:
                continue
            length = sympy.expand(others[0] - first) + 1
            if length == step and step * loop.extent >= fixed[0] - start + 1 > step * (loop.extent - 1):
                return start, fixed[0], loop
        return None

    def said(self, x: Any, meaning: Mapping[str, Any]) -> Any:
        """An expression of parameters as one of loops."""
        x = sympy.sympify(x.expr if isinstance(x, dace.symbolic.SymExpr) else x)
        known = {}
        for symbol in x.free_symbols:
            name = str(symbol)
            if name in meaning:
                known[symbol] = meaning[name]
            elif name in self.sdfg.constants:
                known[symbol] = sympy.Integer(int(self.sdfg.constants[name]))
            else:
                raise self.refuse(f"the symbol {name} in a loop nest")
        return sympy.expand(x.subs(known)) if known else x

    def point(self, subset: Any, frame: Frame) -> Point:
        """Where a subset begins."""
        return tuple(self.said(a, frame.meaning) for a, _, _ in subset.ranges)

    def address(self, name: str, point: Point) -> tuple[dict[int, int], int]:
        """Steps by loop and the constant part of a place's address."""
        desc = self.sdfg.arrays[name]
        at = sympy.expand(
            sum((p * s for p, s in zip(point, desc.strides, strict=True)), start=sympy.sympify(desc.start_offset))
        )
        steps: dict[int, int] = {}
        for symbol in at.free_symbols:
            number = self.symbols.index(symbol) if symbol in self.symbols else -1
            step = at.coeff(symbol)
            if number < 0 or not step.is_Integer:
                raise self.refuse(f"an address that does not move in whole steps with the loops ({at})")
            if number in self.absorbed:
                raise self.refuse("a tile's own variable in an address")
            steps[number] = int(step)
            at = sympy.expand(at - step * symbol)
        if not at.is_Integer:
            raise self.refuse(f"an address that does not move in whole steps with the loops ({at})")
        return steps, int(at)

    def affine(self, x: Any) -> Affine | None:
        """An expression as an index, None where it does not move in whole steps."""
        x = sympy.expand(x)
        loops = []
        for symbol in x.free_symbols:
            step = x.coeff(symbol)
            number = self.symbols.index(symbol)
            if not step.is_Integer or number in self.absorbed:
                return None
            loops.append((number, int(step)))
            x = sympy.expand(x - step * symbol)
        return Affine(int(x), tuple(sorted(loops))) if x.is_Integer else None


def stride_pairs(steps: Mapping[int, int]) -> tuple[int, ...]:
    """Steps by loop, until all loops are known: pairs one after the other."""
    return tuple(x for d in sorted(steps) if steps[d] for x in (d, steps[d]))


def over_loops(s: Statement, order: Sequence[Loop]) -> Statement:
    """The statement with strides over these loops in place of pairs."""
    where = {x.number: i for i, x in enumerate(order)}

    def strides(pairs: tuple[int, ...]) -> tuple[int, ...]:
        steps = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return tuple(steps.get(x.number, 0) for x in order)

    return s.over_loops(strides, lambda d: where.get(d, 0))
