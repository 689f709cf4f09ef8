"""Under which conditions on its sizes a trace holds: Dynamo's guards, and what a further trace of the graph asks for."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
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
        for node in gm.graph.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            numbers = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
            environment = next((n.node.shape_env for n in numbers if isinstance(n, _SYMBOLIC)), None)
            if environment is not None:
                guards = dict.fromkeys(guard.expr for guard in environment.guards if not _chooses_kernel(guard))
                asked = [g for g in (*guards, *more) if rests or not _divides(g)]
                self._all = [(g, sorted(g.free_symbols, key=str)) for g in asked]
                break

    def __getstate__(self) -> dict[str, Any]:
        """The conditions, not what was asked of them."""
        return self.__dict__ | {"_known": {}}

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


class OneSize(Exception):
    """A trace asks for a size itself."""


@contextlib.contextmanager
def asked_sizes(environment: Any) -> Iterator[list[Any]]:
    """While a graph is traced: the conditions on its sizes that are met then and that Dynamo's own trace does not have.

    Dynamo would compile the graph again where one of them does not hold, and again. So it does not hear of them, and who runs the trace
    has to ask for them.

    Raises:
        OneSize: one holds for a single size.
    """
    found: list[Any] = []

    def note(condition: Any, answer: Any) -> None:
        if environment._suppress_guards_tls():  # torch asks for itself
            return
        if answer == sympy.false:
            condition = sympy.Not(condition)
        elif answer != sympy.true:
            condition = sympy.Eq(condition, answer)
        if isinstance(condition, sympy.Eq):
            raise OneSize(str(condition))
        if condition not in found:
            found.append(condition)

    known, guards, ranges = environment._check_frozen, len(environment.guards), dict(environment.var_to_range)
    frozen, environment.frozen, environment._check_frozen = environment.frozen, True, note
    _LOG.addFilter(_not_ours)
    try:
        yield found
    finally:
        _LOG.removeFilter(_not_ours)
        environment.frozen, environment._check_frozen = frozen, known
        # Of these Dynamo makes its guards.
        del environment.guards[guards:]
        environment.var_to_range.update(ranges)


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
