"""Under which conditions on its sizes a trace holds: Dynamo's guards, and what a further trace of the graph asks for."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import sympy
import torch
from torch import fx
from torch._guards import TracingContext
from torch.fx.experimental import proxy_tensor
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.utils._sympy.functions import (
    CeilToInt,
    CleanDiv,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    LShift,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PythonMod,
    RoundToInt,
    RShift,
    TruncToInt,
)
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from dcir.frontends.torch.shapes.given_sizes import expressions
from dcir.frontends.torch.shapes.sums import sums
from dcir.ir.sizes import Polynomial

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
# Of every node it is noted whether its result is contiguous, which nobody reads; of a cache that was cut, it is a condition on strides.
_noted = functools.partial(_extract_tensor_metadata, include_contiguity=False)
_ROUNDED_BY = (FloorDiv, CleanDiv, Mod, PythonMod, ModularIndexing, LShift, RShift)
_ROUNDED_TO = (CeilToInt, FloorToInt, RoundToInt, TruncToInt)
_FAR = (2**20 + 7, 2**20 + 10, 2**20 + 24, 2**20 + 33, 2**20 + 60)
"""Sizes that are larger than what numbers in graphs are, odd and even ones."""
_LOG = logging.getLogger("torch.fx.experimental.symbolic_shapes")


class Conditions:
    """What the trace of a graph holds under, but for what chooses among torch's own kernels.

    Args:
        gm: an ATen graph traced with symbolic sizes.
        more: what ``asked_sizes`` found besides.
        rests: with those on what a division gives or leaves over, which sizes may not meet here and there.
    """

    def __init__(self, gm: fx.GraphModule, more: Sequence[Any] = (), *, rests: bool = True) -> None:
        self._known: dict[tuple[Any, tuple[int, ...]], bool] = {}
        self._all: list[tuple[Any, list[Any]]] = []
        environment = next((n.node.shape_env for n in _symbolic(gm)), None)
        if environment is not None:
            guards = dict.fromkeys(guard.expr for guard in environment.guards if not _chooses_kernel(guard))
            asked = [g for g in (*guards, *more) if rests or not _divides(g)]
            self._all = [(g, sorted(g.free_symbols, key=str)) for g in asked]

    def __getstate__(self) -> dict[str, Any]:
        """The conditions, not what was asked of them."""
        return self.__dict__ | {"_known": {}}

    def sums(self, values: Mapping[str, int]) -> dict[str, Polynomial]:
        """The sizes that are sums of others as far as the trace allows at some values."""
        return sums((condition for condition, _ in self._all), values)

    def equal(self) -> list[tuple[str, str]]:
        """The sizes that have to be one, in pairs."""
        pairs = [c for c, _ in self._all if isinstance(c, sympy.Eq) and _equates(c)]
        return [(str(pair.lhs), str(pair.rhs)) for pair in pairs]

    def unmet(self, values: Mapping[str, int]) -> str:
        """One that does not hold for some values of the sizes; empty if all do.

        Args:
            values: of symbols, by name; a condition on others as well is none on these.
        """
        for condition, names in self._all:
            if any(str(s) not in values for s in names):
                continue
            given = tuple(values[str(s)] for s in names)
            known = self._known.get((condition, given))
            if known is None:
                known = self._known[condition, given] = holds(condition, values)
            if not known:
                return str(condition)
        return ""


def holds(condition: Any, values: Mapping[str, int]) -> bool:
    """Whether a condition of a trace holds for some values of its symbols, by name; one on symbols without a value is none."""
    known = {s: sympy.Integer(values[str(s)]) for s in condition.free_symbols if str(s) in values}
    if len(known) < len(condition.free_symbols):
        return True
    try:
        return bool(condition.xreplace(known))
    except ZeroDivisionError:  # there is nothing that it could be asked of
        return False


def branches(gm: fx.GraphModule) -> list[Any]:
    """What holds at the sizes of a trace wherever a number in its graph is another function of them beyond some size.

    ``min(3, n)`` is traced without a guard; at many sizes it is 3, of which nothing shows that it is not so at all of them. ``10 // n``
    is 0 at all sizes but the first ten, which samples may not show.
    """
    environment = next((n.node.shape_env for n in _symbolic(gm)), None)
    if environment is None:
        return []
    hints = _hints(environment)
    # A quotient that a guard says to be a size is asked for with that one.
    equations = [g.expr.args for g in environment.guards if isinstance(g.expr, sympy.Eq)]
    sizes = {side for a, b in equations for side, other in ((a, b), (b, a)) if other.is_symbol}
    found: dict[Any, None] = {}

    def here(expression: Any) -> Any:
        return expression.xreplace(hints)

    for expression in expressions(gm):
        for part in sympy.preorder_traversal(expression):
            if not part.free_symbols <= hints.keys():  # for these there is no program for all sizes
                continue
            if isinstance(part, (Min, Max, sympy.Min, sympy.Max)):
                least = isinstance(part, (Min, sympy.Min))
                chosen = (min if least else max)(part.args, key=here)
                found |= {(sympy.Le if least else sympy.Ge)(chosen, other): None for other in part.args}
            elif isinstance(part, sympy.Abs):
                found[(sympy.Ge if here(part.args[0]) >= 0 else sympy.Le)(part.args[0], 0)] = None
            elif isinstance(part, sympy.core.relational.Relational):
                found[part if here(part) == sympy.true else sympy.Not(part)] = None
            elif _divided_by_sizes(part) and part not in sizes and not _comes_out(part):
                far = _far_away(part)
                # A size over another one is no function of one; a remainder is one where the quotient stays.
                stays = FloorDiv(*part.args) if isinstance(part, (Mod, PythonMod)) and far is None else part
                found[sympy.Eq(stays, here(stays) if far is None else far)] = None
    return [c for c in found if c != sympy.true and not _always(c)]


def _hints(environment: Any) -> dict[Any, Any]:
    return {s: sympy.Integer(int(v)) for s, v in environment.backed_var_to_val.items()}


def only_beyond_one(gm: fx.GraphModule, found: Sequence[Any]) -> Any:
    """One of the conditions of ``branches`` that the trace does not meet itself, of a size that is 1 there; None if there is none.

    ``16 // n`` is 0 at all sizes but the first ones, so that is what programs are for; where n is 1, as it may always be, there is none.
    """
    environment = next((n.node.shape_env for n in _symbolic(gm)), None)
    hints = {} if environment is None else _hints(environment)
    for condition in found:
        ones = any(hints.get(s) == 1 for s in condition.free_symbols)
        if ones and not holds(condition, {str(s): int(v) for s, v in hints.items()}):
            return condition
    return None


def _divided_by_sizes(part: Any) -> bool:
    """Whether a part of an expression is rounded, and another size is another divisor."""
    if isinstance(part, _ROUNDED_TO):
        return any(p.args[1].free_symbols for p in part.atoms(IntTrueDiv, FloatTrueDiv))
    return isinstance(part, _ROUNDED_BY) and any(a.free_symbols for a in part.args[1:])


def _comes_out(part: Any) -> bool:
    """Whether what is divided is a multiple of its divisor, at all of some sizes."""
    if not isinstance(part, FloorDiv | CleanDiv | Mod | PythonMod):
        return False
    names = sorted(part.free_symbols, key=str)
    for start in range(1, 12):
        given = {name: sympy.Integer((start + 5 * i) % 11 + 1) for i, name in enumerate(names)}
        over, under = (int(a.xreplace(given)) for a in part.args)
        if not under or over % under:
            return False
    return True


def _far_away(part: Any) -> Any:
    """The polynomial that a rounded quotient is at all large sizes; None if it is none."""
    names = sorted(part.free_symbols, key=str)
    try:
        if len(names) > 1:
            values = {part.xreplace(dict(zip(names, far, strict=True))) for far in _corners_far_away(len(names))}
            return next(iter(values)) if len(values) == 1 else None
        points = [(n, part.xreplace({names[0]: sympy.Integer(n)})) for n in _FAR]
        found = sympy.interpolate(points[:3], names[0])
        fits = all(found.xreplace({names[0]: sympy.Integer(n)}) == value for n, value in points)
    except (ZeroDivisionError, TypeError):
        return None
    return found if fits else None


def _corners_far_away(count: int) -> Iterator[list[sympy.Integer]]:
    """Sizes that are large, each of them the larger one of any two in turn."""
    for turn in range(count):
        for n in _FAR:
            yield [sympy.Integer(n * (1 + (i + turn) % count * n)) for i in range(count)]


def _always(condition: Any) -> bool:
    """Whether a condition holds for all sizes from 1 on, as far as one glance tells."""
    if not isinstance(condition, sympy.Le | sympy.Ge):
        return False
    more, less = (condition.lhs, condition.rhs) if isinstance(condition, sympy.Ge) else (condition.rhs, condition.lhs)
    spans = dict.fromkeys(condition.free_symbols, ValueRanges(1, int_oo))
    return bool(bound_sympy(more - less, spans).lower >= 0)


def few(environment: Any) -> frozenset[Any]:
    """The sizes that have few values by a guard of a trace: those in a product of functions of one size each that is a number.

    ``(h // 4 - 3) * (w // 4 - 3) == 16`` is what a linear layer asks of the images that are flattened before it.
    """
    found: set[Any] = set()
    for guard in environment.guards:
        if not isinstance(guard.expr, sympy.Eq) or not any(side.is_Integer and side != 0 for side in guard.expr.args):
            continue
        product = next((side for side in guard.expr.args if not side.is_Integer), sympy.S.One)
        factors = [f for f in sympy.Mul.make_args(sympy.factor_terms(product)) if f.free_symbols]
        if all(_grows(f) for f in factors):
            found |= product.free_symbols
    return frozenset(found)


def _grows(factor: Any) -> bool:
    """Whether something is a function of one size that has no value again beyond some size: sums of quotients by numbers."""
    if len(factor.free_symbols) != 1:
        return False
    if factor.is_symbol:
        return True
    if isinstance(factor, FloorDiv):
        return bool(factor.args[1].is_Integer) and _grows(factor.args[0])
    parts = [p for p in sympy.Add.make_args(factor) if p.free_symbols]
    terms = [p.as_coeff_Mul() for p in parts]
    return all(c.is_Integer and c > 0 and p != factor and _grows(p) for c, p in terms)


def _symbolic(gm: fx.GraphModule) -> Iterator[Any]:
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for n in (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,):
            if isinstance(n, _SYMBOLIC):
                yield n


class OneSize(Exception):
    """A trace asks for a size itself.

    Attributes:
        sizes: the symbols that the condition is on, without those that both sides are multiples of.
    """

    def __init__(self, condition: Any) -> None:
        super().__init__(str(condition))
        difference = sympy.factor_terms(condition.lhs - condition.rhs) if isinstance(condition, sympy.Eq) else condition
        around = [f for f in sympy.Mul.make_args(difference) if not f.is_symbol]
        self.sizes: frozenset[Any] = frozenset().union(*(f.free_symbols for f in around))


@contextlib.contextmanager
def asked_sizes(environment: Any) -> Iterator[list[Any]]:
    """While a graph is traced: the conditions on its sizes that are met then and that Dynamo's own trace does not have.

    Dynamo would compile the graph again where one of them does not hold, and again. So it does not hear of them, and who runs the trace
    has to ask for them. What numbers that are no sizes are asked for is left to Dynamo's guards.

    Raises:
        OneSize: one holds for a single size, or is one on other numbers, and Dynamo has its guards already.
    """
    found: list[Any] = []

    def note(condition: Any, answer: Any) -> None:
        if environment._suppress_guards_tls():  # torch asks for itself
            return
        if answer == sympy.false:
            condition = sympy.Not(condition)
        elif answer != sympy.true:
            condition = sympy.Eq(condition, answer)
        numbers = _is_on_numbers(condition)
        one = isinstance(condition, sympy.Eq) and not _equates(condition)
        if one or (numbers and TracingContext.try_get() is None):
            raise OneSize(condition)
        if condition not in found and not numbers:
            found.append(condition)

    def learn(condition: Any) -> None:
        if not isinstance(condition, sympy.Eq):  # or one of two sizes would be the other one from here on
            learned(condition)

    known, guards, ranges = environment._check_frozen, len(environment.guards), dict(environment.var_to_range)
    learned, axioms = environment._maybe_guard_rel, dict(environment.axioms)
    frozen, environment.frozen, environment._check_frozen = environment.frozen, True, note
    _LOG.addFilter(_not_ours)
    try:
        with (
            mock.patch.object(proxy_tensor, "_extract_tensor_metadata", _noted),
            mock.patch.object(environment, "_maybe_guard_rel", learn),
        ):
            yield found
    finally:
        _LOG.removeFilter(_not_ours)
        environment.frozen, environment._check_frozen = frozen, known
        # Of these Dynamo makes its guards.
        environment.guards[guards:] = [g for g in environment.guards[guards:] if _is_on_numbers(g.expr)]
        environment.var_to_range.update(ranges)
        environment.axioms.clear()
        environment.axioms.update(axioms)


def _equates(condition: Any) -> bool:
    """Whether a condition says that two sizes are one: in the gradient of a scatter its indices are as many as what it adds."""
    return bool(condition.lhs.is_symbol and condition.rhs.is_symbol)


def asked_numbers(environment: Any) -> list[str]:
    """What has been asked of the values of numbers that are no sizes: a scale that Dynamo takes for a symbol, say."""
    guards = [] if environment is None else environment.guards
    return [str(guard.expr) for guard in guards if _is_on_numbers(guard.expr)]


def _is_on_numbers(condition: Any) -> bool:
    """Whether a condition is on numbers that are no sizes."""
    return any(symbol_is_type(s, SymT.FLOAT) for s in condition.free_symbols)


def _not_ours(record: logging.LogRecord) -> bool:
    """Keep what is heard here out of torch's log: it is no failure."""
    return not str(record.msg).startswith("failed during evaluate_expr")


def _divides(condition: Any) -> bool:
    return any(isinstance(f, FloorDiv | Mod | PythonMod) for f in condition.atoms(sympy.Function))


def _chooses_kernel(guard: Any) -> bool:
    """Whether a condition comes of the question which of torch's kernels a convolution of this size would run.

    It settles how the result lies at most; of sizes that it does not hold for Dynamo makes another trace, whatever a program is for.
    """
    place = getattr(getattr(guard, "sloc", None), "framework_loc", None)
    asked = getattr(place, "name", "") == "conv" and str(getattr(place, "filename", "")).endswith("fake_impls.py")
    return asked and isinstance(
        guard.expr, sympy.StrictGreaterThan | sympy.StrictLessThan | sympy.GreaterThan | sympy.LessThan
    )
