"""A graph with symbolic sizes as one program for all sizes within bounds; for sizes beyond them, a program for wider ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.convert_frame import compile_lock

from dcir.errors import Unsupported
from dcir.frontends.torch.context import CompileGraph, GraphContext, OtherBounds
from dcir.frontends.torch.late_graph import in_torch
from dcir.frontends.torch.shapes.conditions import Conditions
from dcir.frontends.torch.shapes.given_sizes import symbols, values_at
from dcir.frontends.torch.shapes.met import Met
from dcir.frontends.torch.shapes.programs import Call, NoProgramForSizes, Programs, Span, extent_at
from dcir.ir.sizes import Bounds, Polynomial, bounds_of
from dcir.ops.analysis.size_axes import MOST_AXES

Later = Callable[[Callable[[], object]], None]
"""Has something done behind the calls."""

_REACHES = ((1, 4), (2, 4), (2, 1), (32, 4), (32, 1))
"""Bounds to try, the widest first: the least size, and how many times the sizes that were seen. Of few rows, or beyond the end of a table,
another program may be the right one."""
_HIGH, _HIGH_ALONE = 64, 1024
"""So far bounds reach at least, those of a size that moves alone further: memory is planned for the upper ends."""
_EDGE = 3
"""Sizes from the least on that a trace is for, to be left out where they are like no others."""
_TRIES = 5
"""Bounds that are refused before nothing more is tried."""
_TOO_MANY = f"more than {MOST_AXES} sizes move"
_LARGER = "a program for all sizes begins at larger ones"
_FEW_ROWS = 3
"""Where no product with weights has more rows than these, reading the weights is what takes time, and sizes of 1 are better constants."""
_OWN_FIRST = 3
"""Combinations of sizes of images in training that are compiled by themselves: their programs take two thirds of the time."""
_LARGEST = 2**24
"""Numbers beyond (seeds, times) are constants of programs; samples are primes, which take long to find there."""
_CONVOLUTION = torch.ops.aten.convolution.default


class MovingSizes(Programs):
    """The programs of one ATen graph, compiled when one of them is first wanted, and with each that of its backward.

    Attributes:
        backward: those of its backward, where there is one: a forward that has run has to be followed by it.
        in_torch: how many calls torch ran while a program was made.
        hears: is called when there is another program.
        refused: bounds that there is no program for, and what is equal there or follows.
        reason: why there is none for the last of them.
        hopeless: whether nothing more is tried.
    """

    def __init__(
        self, gm: fx.GraphModule, context: GraphContext, compile_graph: CompileGraph, names: Mapping[str, str],
        backward: Programs | None = None, later: Later | None = None,
    ) -> None:  # fmt: skip
        super().__init__(gm, context, compile_graph, names)
        self.backward, self._later = backward, later
        self._under_way, self._none_for = False, set[tuple[int, ...]]()
        self._failed: Exception | None = None
        # Dynamo asks for its own in every call.
        self._every = Conditions(gm, context.conditions)
        self._conditions = self._every if context.conditions else None
        self._traced = Conditions(gm, context.conditions, rests=False)
        self._limits, self._rows, self._together = _limits(gm), _rows_of_products(gm), _sizes_of_tensors(gm)
        self._of_layouts, self._met = _only_of_layouts(gm), Met()
        self.refused: set[tuple[Any, ...]] = set()
        self._begun: list[tuple[Span, Span]] = []  # what was asked for, and what there is
        self.reason, self.hopeless, self.in_torch = "", False, 0
        self.hears: Callable[[], None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """As of any programs."""
        return super().__getstate__() | {
            "_later": None,
            "_met": None,
            "_under_way": False,
            "_failed": None,
            "hears": None,
        }

    @property
    def conditional(self) -> bool:
        """Whether there are conditions on sizes besides Dynamo's and the bounds of programs."""
        return self._conditions is not None

    def values(self, args: Sequence[Any]) -> dict[str, int]:
        """Those of the graph's symbols in a list of arguments."""
        return dict(zip(self.places, values_at(self.places.values(), args), strict=True))

    def ready(self, values: Mapping[str, int]) -> Call | None:
        """What runs the graph at some values of its symbols, if it is there already."""
        if self._conditions is not None and self._conditions.unmet(values):
            return None
        return self.found(values, self._ones(values))

    def wanted(self, values: Mapping[str, int]) -> Call:
        """What runs the graph at some values of its symbols.

        Raises:
            NoProgramForSizes: nothing does, nor can it be made.
        """
        if self._conditions is not None and (condition := self._conditions.unmet(values)):
            self.reason = f"the trace is for sizes with {condition}"
            raise NoProgramForSizes(self.reason)
        ones = self._ones(values)
        if self.gm is None:  # of a kept trace, which has the programs that it has
            return self.found(values, ones) or super().wanted(values)
        self._met.note(values)
        if self._later is not None and (
            found := self.found(values, ones) or self._meanwhile(values, ones, self._later)
        ):
            return found
        with compile_lock:
            return self.found(values, ones) or self._new(values, ones)

    def lasts(self, call: Call) -> bool:
        """Whether what runs a call will run the next one of the same sizes."""
        return call != self._by_torch

    def _meanwhile(self, values: Mapping[str, int], ones: Collection[str], later: Later) -> Call | None:
        """What runs calls while a program is made behind them; None if it is known that there is none.

        Raises:
            Exception: what the last attempt ended with.
        """
        if self._failed is not None:
            raise self._failed
        key = tuple(values.values())
        if key in self._none_for or self.hopeless:
            return None
        if not self._under_way:
            self._under_way = True
            later(lambda: self._made_behind(key, values, ones))
        return self._by_torch

    def _made_behind(self, key: tuple[int, ...], values: Mapping[str, int], ones: Collection[str]) -> None:
        try:
            with compile_lock:
                self.found(values, ones) or self._new(values, ones)
        except NoProgramForSizes:
            self._none_for.add(key)
        except Exception as error:
            self._failed = error
        self._under_way = False

    def _by_torch(self, args: list[Any]) -> list[Any]:
        assert self.gm is not None, "who compiles has the graph"
        self.in_torch += 1
        return in_torch(self.gm, args)

    def _ones(self, values: Mapping[str, int]) -> frozenset[str]:
        """The sizes that are better constants in a program for these values."""
        if 1 not in values.values() or not self._rows or max(extent_at(r, values) for r in self._rows) > _FEW_ROWS:
            return frozenset()
        ones = frozenset(name for name, value in values.items() if value == 1)
        return ones if len(ones) < len(values) else frozenset()

    def _new(self, values: Mapping[str, int], ones: Collection[str]) -> Call:
        if (most := max(values.values(), default=0)) > _LARGEST:
            self.reason = f"{most} is no size"
            raise NoProgramForSizes(self.reason)
        # How a forward leaves what it keeps is asked for sizes that its backward has by themselves.
        follows = self._every.sums(values) if self.backward is None else {}
        first = self._met.equal({name: value for name, value in values.items() if name not in follows})
        first = {name: first.get(name, name) for name in values}
        for pair in self._traced.equal():
            if {*pair} <= values.keys() and pair[0] not in follows and pair[1] not in follows:
                head, other = (first[name] for name in sorted(pair, key=[*values].index))
                first = {name: head if of == other else of for name, of in first.items()}
        if any(len({first[name] for name in names}) < len(names) for names in self._together):
            self.reason, self.hopeless = "sizes of one input are equal", not self.made
            raise NoProgramForSizes(self.reason)
        for span in self._spans(values, first, follows, ones) if not self.hopeless else ():
            key = span.of(list(values))
            if key in self.refused or not span.holds(values):
                continue
            if self._begins_above(span, values):
                self.reason = _LARGER
                continue
            try:
                call, reach = self._both(span, values)
            except OtherBounds as e:
                self.refused.add(key)
                self.reason = str(e).splitlines()[0]
            except Unsupported as e:
                self.reason, self.hopeless = str(e).splitlines()[0], True
                break
            else:
                self.made.append((reach, call))
                if self.hears is not None:
                    self.hears()
                self._begun.append((span, reach))
                if reach.holds(values):
                    return call
                self.refused.add(key)
                self.reason = _LARGER
        if self.reason == _TOO_MANY:  # calls that PyTorch runs are not to pay for a search each
            self.refused.add(tuple(values.values()))
        self.hopeless |= not self.made and len(self.refused) >= _TRIES
        raise NoProgramForSizes(self.reason)

    def _begins_above(self, span: Span, values: Mapping[str, int]) -> bool:
        """Whether a program for sizes from the same ones on began above some values: wider ones will as well."""
        return any(
            asked.first == span.first
            and all(
                b == c or (b.low < b.high and c.low < c.high)
                for b, c in ((b, span.bounds[n]) for n, b in asked.bounds.items())
            )
            and any(values[n] < got.bounds[n].low and b.low <= span.bounds[n].low for n, b in asked.bounds.items())
            for asked, got in self._begun
        )

    def _both(self, span: Span, values: Mapping[str, int]) -> tuple[Call, Span]:
        """A program for sizes and that of its backward, which is noted, and for which they are; raises what ``compiled`` does.

        What the forward keeps lies as suits both, so its graph is rewritten first. Then the whole backward: where only one can be had,
        it is mostly the forward.
        """
        backward = self.backward
        if backward is None:
            return self.compiled(span, values)
        behind: list[tuple[Call, Span]] = []
        call, reach = self.compiled(
            span, values, settle=lambda layouts: behind.append(backward.compiled(span, values, layouts))
        )
        (made,) = behind
        reach = reach.within(made[1])
        backward.made.append((reach, made[0]))
        return call, reach

    def _spans(
        self, values: Mapping[str, int], first: Mapping[str, str], follows: Mapping[str, Polynomial], ones: Collection[str]
    ) -> Iterator[Span]:  # fmt: skip
        """What a program for some values may be for, the widest first; at last one with sizes of 1 as constants.

        Where too many move, those that were the same in all calls are constants, or those that only say how an input lies.
        """
        moves = {name: value for name, value in values.items() if name not in follows}

        def reach(name: str, least: int, times: int, most: int) -> Bounds:
            return self._bounds(name, values, first, follows, least, times, most)

        small = frozenset(name for name, value in moves.items() if value == 1)
        # A number that is 0 counts from a start, and is another one in all later calls.
        zeros = {name for name, value in moves.items() if value == 0}
        # The trace may have one value for a size, or none beyond it.
        free = {first[name] for name in moves.keys() - zeros if reach(name, 1, 1, _HIGH).high > 1}
        stills = [frozenset(n for n in ones if n in moves), small if len(small) < len(moves) else frozenset()]
        if all(len(free - still) > MOST_AXES for still in stills):
            stays = frozenset(n for n in moves if n not in self._met.moved) if self._met.moved else frozenset()
            laid = frozenset(n for n in moves if n in self._of_layouts)
            enough = (s for s in (stays, laid, stays | laid) if len(free - s) <= MOST_AXES and len(s) < len(moves))
            stills = [*itertools.islice(enough, 1)]
            if not stills:
                self.reason = _TOO_MANY
        for still in dict.fromkeys(stills):
            if len(free - still) > MOST_AXES:
                continue
            alone = len(free - still) == 1
            for least, times in _REACHES:
                bounds = {
                    name: Bounds(values[name], values[name])
                    if name in still | zeros
                    else reach(name, least, times, _HIGH_ALONE if alone else _HIGH)
                    for name in moves
                }
                # Equal sizes have equal bounds.
                for name in moves:
                    head = first[name]
                    low, high = bounds[head]
                    bounds[head] = Bounds(max(low, bounds[name].low), min(high, bounds[name].high))
                bounds = {name: bounds[first[name]] for name in moves}
                bounds |= {name: bounds_of(total, bounds) for name, total in follows.items()}
                yield Span({name: bounds[name] for name in values}, first, follows)

    def _bounds(
        self, name: str, values: Mapping[str, int], first: Mapping[str, str], follows: Mapping[str, Polynomial], least: int, times: int,
        reach: int,
    ) -> Bounds:  # fmt: skip
        """Those of a program that is made for the sake of some values."""
        low, high = self._limits[name]
        wanted = _above(max(reach, times * values[name]))
        most = _prime_below(wanted) if wanted <= high else high
        most = min(high, max(most, *(span.bounds[name].high for span, _ in self.made), 0))
        # Where a trace begins beyond the least sizes, its first ones may be an edge: of texts as long as a window, all is in it.
        low += _EDGE if 1 < least < low else 0
        return Bounds(max(least, low), self._allowed(name, values, first, follows, most))

    def _allowed(
        self, name: str, values: Mapping[str, int], first: Mapping[str, str], follows: Mapping[str, Polynomial], high: int
    ) -> int:  # fmt: skip
        """The largest number up to ``high`` that the trace allows for a size and its equals, beside the others as they are or follow.

        A table of positions has an end that no range says: ``x[:, :n]`` holds where n is min(n, 512).
        """
        value = least = values[name]

        def unmet(number: int) -> str:
            given = {n: number if first[n] == first[name] else value for n, value in values.items()}
            return self._traced.unmet(given | {n: total.at(given) for n, total in follows.items()})

        if high > value and unmet(high):
            while high - least > 1:
                middle = (least + high) // 2
                least, high = (least, middle) if unmet(middle) else (middle, high)
            high = least
        return max(high, value)


def _only_of_layouts(gm: fx.GraphModule) -> frozenset[str]:
    """The symbols that say how inputs lie, and are no extent of any."""
    values = (node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder"))
    tensors = [v for v in values if isinstance(v, torch.Tensor)]

    def symbols_of(numbers: Iterable[Any]) -> set[str]:
        return {str(s) for n in numbers if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols}

    laid = symbols_of(n for t in tensors for n in (*t.stride(), t.storage_offset()))
    return frozenset(laid - symbols_of(n for t in tensors for n in t.shape))


def _sizes_of_tensors(gm: fx.GraphModule) -> list[set[str]]:
    """The symbols in the shape of each input; of what is traced as a square one."""
    values = (node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder"))
    shapes: list[list[Any]] = [list(v.shape) for v in values if isinstance(v, torch.Tensor)]
    return [{str(d.node.expr) for d in s if isinstance(d, torch.SymInt) and d.node.expr.is_symbol} for s in shapes]


def _above(n: int) -> int:
    """The power of two that is not less."""
    return 1 << (n - 1).bit_length()


def _prime_below(n: int) -> int:
    """The largest prime that is less than ``n``: samples are primes, and tables mostly have as many rows as a power of two."""
    return next((p for p in range(n - 1, 1, -1) if all(p % d for d in range(2, math.isqrt(p) + 1))), n - 1)


class Moving:
    """A graph of Dynamo's through programs for all sizes.

    Args:
        sizes: the programs of the ATen graph that it became.
        whole: runs the graph through those.

    Attributes:
        own_first: how many combinations of sizes had better have programs of their own, before all others are served by this one.
    """

    def __init__(self, sizes: MovingSizes, whole: Callable[..., Any]) -> None:
        self._sizes, self._whole = sizes, whole
        assert sizes.gm is not None, "who traces has the graph"
        convolves = sizes.gm.graph.find_nodes(op="call_function", target=_CONVOLUTION)
        self.own_first = _OWN_FIRST if convolves and sizes.backward is not None else 0

    def __call__(self, args: Sequence[Any]) -> Any:
        """Run it.

        Raises:
            NoProgramForSizes: there is no program for the sizes of the arguments, nor can one be made.
        """
        return self._whole(*args)

    @property
    def programs(self) -> int:
        """How many there are so far."""
        return len(self._sizes.made)

    @property
    def spans(self) -> list[Span]:
        """What each of them is for."""
        return [span for span, _ in self._sizes.made]

    @property
    def conditional(self) -> bool:
        """Whether there are conditions on sizes besides Dynamo's and those of ``spans``."""
        return self._sizes.conditional

    def when_made(self, hears: Callable[[], None]) -> None:
        """Have somebody hear of every further program."""
        self._sizes.hears = hears

    @property
    def reason(self) -> str:
        """Why there was no program when it was last looked for."""
        return self._sizes.reason

    @property
    def hopeless(self) -> bool:
        """Whether there is no program, and nothing more is tried."""
        return self._sizes.hopeless and not self._sizes.made


def _rows_of_products(gm: fx.GraphModule) -> list[Any]:
    """How many rows the products with matrices of constant sizes have."""
    found: dict[Any, None] = {}
    for name, operand in (("mm", 0), ("addmm", 1)):
        for node in gm.graph.find_nodes(op="call_function", target=getattr(torch.ops.aten, name).default):
            left, right = (n.meta["val"] for n in node.args[operand : operand + 2])
            if not any(isinstance(d, torch.SymInt) for d in right.shape):
                found[left.shape[0].node.expr if isinstance(left.shape[0], torch.SymInt) else left.shape[0]] = None
    return list(found)


def _limits(gm: fx.GraphModule) -> dict[str, Bounds]:
    """What the trace allows for each size."""
    found: dict[str, Bounds] = {}
    names = symbols(gm)
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for number in (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,):
            if not isinstance(number, torch.SymInt):
                continue
            for symbol in number.node.expr.free_symbols:
                span = number.node.shape_env.var_to_range.get(symbol)
                if str(symbol) in names and span is not None:
                    upper = 1 << 40 if span.upper > 1 << 40 else int(span.upper)
                    found[str(symbol)] = Bounds(int(max(span.lower, 0)), upper)
    return {name: found.get(name, Bounds(0, 1 << 40)) for name in names}
