"""A graph with symbolic sizes as one program for all sizes within bounds; for sizes beyond them, a program for wider ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._dynamo.convert_frame import compile_lock

from dcir.errors import Unsupported
from dcir.frontends.torch.context import CompileGraph, GraphContext, OtherBounds
from dcir.frontends.torch.shapes.given_sizes import Conditions, places, symbols
from dcir.ir.sizes import Bounds

Call = Callable[[list[Any]], list[Any]]

_REACHES = ((2, 4), (2, 1), (32, 4), (32, 1))
"""Bounds to try, the widest first: the least size, and how many times the sizes that were seen. Of few rows, or beyond the end of a table,
another program may be the right one. Torch has traces of their own for 0 and 1."""
_HIGH = 64
"""So far bounds reach at least."""
_TRIES = 4
"""Bounds that are refused before nothing more is tried."""


class NoProgramForSizes(Exception):
    """There is no program for all sizes that these are among."""


class MovingSizes:
    """The programs of one ATen graph, each for all sizes within its bounds, compiled when one of them is first wanted.

    Args:
        gm: traced with symbolic sizes.
        context: what is known of it.
        compile_graph: makes the program for the bounds in a context.
        names: where the user finds each symbol.

    Attributes:
        made: the bounds of each program by symbol, and the program.
        refused: bounds that there is no program for.
        reason: why there is none for the last of them.
        hopeless: whether nothing more is tried.
    """

    def __init__(
        self, gm: fx.GraphModule, context: GraphContext, compile_graph: CompileGraph, names: Mapping[str, str]
    ) -> None:
        self._places, self._limits = places(gm), _limits(gm)
        self._gm, self._compile = gm, compile_graph
        self._conditions = Conditions(gm, context.conditions) if context.conditions else None
        self._context = replace(context, bound_names=tuple(names.get(s, s) for s in self._places))
        self.made: list[tuple[dict[str, Bounds], Call]] = []
        self.refused: set[tuple[Bounds, ...]] = set()
        self.reason, self.hopeless = "", False

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run the graph.

        Raises:
            NoProgramForSizes: there is no program for the sizes of the arguments, nor can one be made.
        """
        values = {name: int(args[i] if d is None else args[i].shape[d]) for name, (i, d) in self._places.items()}
        if self._conditions is not None and (condition := self._conditions.unmet(values)):
            raise NoProgramForSizes(f"the trace is for sizes with {condition}")
        call = self._program(values)
        if call is None:
            with compile_lock:
                call = self._program(values) or self._made(values)
        return call(args)

    def _program(self, values: Mapping[str, int]) -> Call | None:
        for bounds, call in self.made:
            if all(bounds[name].low <= value <= bounds[name].high for name, value in values.items()):
                return call
        return None

    def _made(self, values: Mapping[str, int]) -> Call:
        for least, times in _REACHES if not self.hopeless else ():
            bounds = {name: self._bounds(name, value, least, times) for name, value in values.items()}
            key = tuple(bounds.values())
            if key in self.refused or not all(low <= values[name] <= high for name, (low, high) in bounds.items()):
                continue
            try:
                compiled = self._compile(self._gm, replace(self._context, bounds=key))
            except OtherBounds as e:
                self.refused.add(key)
                self.reason = str(e).splitlines()[0]
            except Unsupported as e:
                self.reason, self.hopeless = str(e).splitlines()[0], True
                break
            else:
                found = dict(zip(bounds, compiled.bounds, strict=True))
                self.made.append((found, compiled.call))
                if all(found[name].low <= value <= found[name].high for name, value in values.items()):
                    return compiled.call
                self.refused.add(key)
                self.reason = "a program for all sizes begins at larger ones"
                break
        self.hopeless |= not self.made and len(self.refused) >= _TRIES
        raise NoProgramForSizes(self.reason)

    def _bounds(self, name: str, value: int, least: int, times: int) -> Bounds:
        """Those of a program that is made for the sake of a value."""
        low, high = self._limits[name]
        wanted = max(_HIGH, times * value, *(bounds[name].high for bounds, _ in self.made))
        return Bounds(max(least, low), min(_prime_below(1 << (wanted - 1).bit_length()), high))


def _prime_below(n: int) -> int:
    """The largest prime that is less than ``n``: samples are primes, and tables mostly have as many rows as a power of two."""
    return next(p for p in range(n - 1, 1, -1) if all(p % d for d in range(2, math.isqrt(p) + 1)))


class Moving:
    """A graph of Dynamo's through programs for all sizes.

    Args:
        sizes: the programs of the ATen graph that it became.
        whole: runs the graph through those.
    """

    def __init__(self, sizes: MovingSizes, whole: Callable[..., Any]) -> None:
        self._sizes, self._whole = sizes, whole

    def __call__(self, args: Sequence[Any]) -> Any:
        """Run it.

        Raises:
            NoProgramForSizes: there is no program for the sizes of the arguments, nor can one be made.
        """
        return self._whole(*args)

    @property
    def reason(self) -> str:
        """Why there was no program when it was last looked for."""
        return self._sizes.reason

    @property
    def hopeless(self) -> bool:
        """Whether there is no program, and nothing more is tried."""
        return self._sizes.hopeless and not self._sizes.made


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
