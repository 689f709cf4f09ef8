"""The programs of one ATen graph with symbolic sizes, each for all sizes within its bounds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from dcir.frontends.torch.as_laid_out import Laid, as_laid_out
from dcir.frontends.torch.context import CompileGraph, GraphContext, LayoutsAt
from dcir.frontends.torch.shapes.given_sizes import places, tensor_places, values_at
from dcir.ir.sizes import Bounds, Polynomial

Call = Callable[[list[Any]], list[Any]]

_KNOWN = 1024
"""Sizes of calls whose programs are remembered."""


class NoProgramForSizes(Exception):
    """There is no program for all sizes that these are among."""


@dataclass(frozen=True)
class Span:
    """The sizes that a program is for.

    Attributes:
        bounds: of each symbol.
        first: of each symbol the first one that it is equal to.
        follows: those that are sums of others, and of which.
    """

    bounds: Mapping[str, Bounds]
    first: Mapping[str, str]
    follows: Mapping[str, Polynomial] = field(default_factory=dict)

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether values of the symbols, or of some of them, are among them."""
        of_group: dict[str, int] = {}
        return all(
            self.bounds[name].low <= value <= self.bounds[name].high
            and value == of_group.setdefault(self.first[name], value)
            for name, value in values.items()
        ) and all(
            values[name] == total.at(values)
            for name, total in self.follows.items()
            if {name, *total.names()} <= values.keys()
        )

    def condition(self, paths: Mapping[str, str]) -> str:
        """What it asks of values, as code, without those that have no path; empty if that is nothing.

        Args:
            paths: of each symbol where its value is found, as code.
        """
        rows = [f"{low} <= {paths[name]} <= {high}" for name, (low, high) in self.bounds.items() if name in paths]
        heads: dict[str, str] = {}
        for name, head in self.first.items():
            if name in paths and heads.setdefault(head, name) != name:
                rows.append(f"{paths[heads[head]]} == {paths[name]}")
        for name, total in self.follows.items():
            if {name, *total.names()} <= paths.keys():
                products = [[str(c), *(paths[s] for s, p in monomial for _ in range(p))] for monomial, c in total.terms]
                rows.append(f"{paths[name]} == {' + '.join(map(' * '.join, products))}")
        return " and ".join(rows)

    def within(self, other: Span) -> Span:
        """What both are for; the other may have less symbols."""
        bounds = dict(self.bounds)
        for name, (low, high) in other.bounds.items():
            bounds[name] = Bounds(max(low, bounds[name].low), min(high, bounds[name].high))
        return Span(bounds, self.first, self.follows)

    def of(
        self, names: Sequence[str]
    ) -> tuple[tuple[Bounds, ...], tuple[int, ...], tuple[tuple[int, Polynomial], ...]]:
        """Bounds, what is equal, and what follows from others, of symbols in order."""
        heads: dict[str, int] = {}
        same = tuple(heads.setdefault(self.first[name], i) for i, name in enumerate(names))
        follows = tuple((i, self.follows[name]) for i, name in enumerate(names) if name in self.follows)
        return tuple(self.bounds[name] for name in names), same, follows


class Programs:
    """The programs of one ATen graph, each for all sizes within its bounds.

    Args:
        gm: traced with symbolic sizes.
        context: what is known of it.
        compile_graph: makes the program for the bounds in a context.
        names: where the user finds each symbol.

    Attributes:
        places: of each symbol in the arguments.
        made: what each program is for, and the program.

    Raises:
        Unsupported: a size shows in no argument by itself.
    """

    def __init__(
        self, gm: fx.GraphModule, context: GraphContext, compile_graph: CompileGraph, names: Mapping[str, str]
    ) -> None:
        self.gm: fx.GraphModule | None = gm
        self.places, self.tensor_places, self._compile = places(gm), tensor_places(gm), compile_graph
        self._arguments = _forms(gm)
        self._context = replace(context, bound_names=tuple(names.get(s, s) for s in self.places))
        self._known: dict[tuple[int, ...], Call] = {}
        self._layouts: dict[Call, LayoutsAt] = {}
        self.made: list[tuple[Span, Call]] = []

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run the graph with one of the programs.

        Raises:
            NoProgramForSizes: there is none for the sizes of the arguments, nor can one be made.
        """
        key = values_at(self.places.values(), args)
        call = self._known.get(key)
        if call is None:
            values = dict(zip(self.places, key, strict=True))
            call = self.wanted(values)
            if call in self._layouts:
                call = as_laid_out(call, self._laid(values, self._layouts[call](values)))
            if len(self._known) >= _KNOWN:
                self._known.clear()
            if self.lasts(call):
                self._known[key] = call
        return call(args)

    def lasts(self, call: Call) -> bool:
        """Whether what runs a call will run the next one of the same sizes."""
        return True

    def _laid(self, values: Mapping[str, int], strides: Mapping[int, tuple[int, ...]]) -> dict[int, Laid]:
        """How the program expects its arguments: those of its forward as that leaves them, the rest as in the trace."""

        def given(numbers: Sequence[Any]) -> tuple[int, ...]:
            return tuple([extent_at(n, values) for n in numbers])

        return {
            i: Laid(t, given(shape), strides.get(i) or given(own)) for i, (t, shape, own) in self._arguments.items()
        }

    def wanted(self, values: Mapping[str, int]) -> Call:
        """What runs the graph at some values of its symbols.

        Raises:
            NoProgramForSizes: nothing does.
        """
        found = self.found(values)
        if found is None:
            raise NoProgramForSizes(f"none of {len(self.made)} programs is for {dict(values)}")
        return found

    def found(self, values: Mapping[str, int], ones: Collection[str] = ()) -> Call | None:
        """The program for some values, which has those of ``ones`` as constants."""
        for span, call in self.made:
            if span.holds(values) and all(span.bounds[name].high == 1 for name in ones):
                return call
        return None

    def compiled(
        self, span: Span, values: Mapping[str, int], layouts: LayoutsAt | None = None,
        settle: Callable[[LayoutsAt], None] | None = None,
    ) -> tuple[Call, Span]:  # fmt: skip
        """A program for sizes, and for which it is; it is not noted among ``made``.

        Args:
            values: of the call that it is made for.
            layouts: of a backward, how the results of its forward lie.
            settle: of a forward, called with how its results lie before it is there.

        Raises:
            OtherBounds: there is none for these.
            Unsupported: there is none.
        """
        if self.gm is None:
            raise NoProgramForSizes("a kept trace has no graph to compile")
        bounds, same, follows = span.of(list(self.places))
        context = replace(self._context, bounds=bounds, same=same, follows=dict(follows), settle=settle, needed=values)
        if layouts is not None:
            context = replace(context, layouts=_Behind(context.first_read, layouts))
        made = self._compile(self.gm, context)
        if context.layouts is not None:
            self._layouts[made.call] = context.layouts
        first = {name: span.first[name] for name in self.places}
        return made.call, Span(dict(zip(self.places, made.bounds, strict=True)), first, span.follows)

    def __getstate__(self) -> dict[str, Any]:
        """What other processes can use: the programs there are, not what makes more."""
        return self.__dict__ | {"gm": None, "_compile": None, "_context": None, "_known": {}}


@dataclass(frozen=True)
class _Behind:
    """How the arguments of a backward lie, from how the results of its forward do.

    Attributes:
        first: number of the forward's result that is the first argument, or would be.
        laid: of the forward.
    """

    first: int
    laid: LayoutsAt

    def __call__(self, values: Mapping[str, int]) -> dict[int, tuple[int, ...]]:
        return {i - self.first: strides for i, strides in self.laid(values).items()}


def _forms(gm: fx.GraphModule) -> dict[int, tuple[torch.dtype, tuple[Any, ...], tuple[Any, ...]]]:
    """Type, shape and strides of the tensors among the arguments, by number; what moves as an expression."""

    def numbers(of: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([n.node.expr if isinstance(n, torch.SymInt) else n for n in of])

    values = enumerate(node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder"))
    return {i: (v.dtype, numbers(v.shape), numbers(v.stride())) for i, v in values if isinstance(v, torch.Tensor)}


def extent_at(number: Any, values: Mapping[str, int]) -> int:
    """An extent of the graph for some values of its symbols."""
    return number if isinstance(number, int) else int(number.xreplace({s: values[str(s)] for s in number.free_symbols}))
