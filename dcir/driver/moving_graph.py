"""One ATen graph for all sizes within bounds: imported and rewritten at samples, and unified to a network whose sizes move."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from dcir.cost.target import Target
from dcir.errors import InvalidGraph
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.importer import Imported, import_graph
from dcir.frontends.torch.shapes.conditions import Conditions, branches, holds
from dcir.frontends.torch.shapes.given_sizes import (
    GivenSizes,
    divisions,
    extents,
    fractions,
    places,
    pool_windows,
    symbols,
    unknown_sizes,
    value_of,
)
from dcir.ir.cost_answers import CostAnswers, repeating, taking
from dcir.ir.many_sizes import for_many_sizes
from dcir.ir.moving_network import MovingNetwork, fixed, set_floats, usual_sizes
from dcir.ir.refusal import Refusal
from dcir.ir.sizes import Bounds, Polynomial, Sizes, bounds_of, corners, never_negative
from dcir.ir.verify_moving import verify_moving
from dcir.ops.analysis.size_axes import MOST_AXES, Axes, Axis, axis, near
from dcir.ops.analysis.size_ladders import ladder
from dcir.ops.analysis.size_unification import (
    MOST_SIZES,
    Through,
    chosen_samples,
    few,
    unified,
    unified_rows,
    unlike,
)
from dcir.transforms.base import Pass
from dcir.transforms.pipelines import same_at_all_sizes
from dcir.transforms.runner import PassRecord, run_passes

# Floats that are quotients of sizes are made a little different from each other, and from what else they may be equal to at a sample, as
# 1/4 is: passes that merge what is equal then do the same at all samples. It is undone when they have run, and what was computed from a
# float by then is refused, since it is no quotient of the graph.
_MARK = 2.0**-20
_CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)


@dataclass(frozen=True)
class MovingGraph:
    """A network whose sizes move and what is needed to call it.

    Attributes:
        network: its sizes are called s0, s1, … in the order of ``symbols``.
        widest: the graph at the upper ends, rewritten.
        operators, bytes_before, passes: what the graph was there before the passes, and what these did.
        first: of every symbol of the graph the first one that it is equal to.
        follows: those that are sums of others, and of which.
        symbols: those that move, each by itself.
        places: of each of them in the arguments.
        constants: as in ``Imported``, the same at all sizes.
        outputs: as in ``Imported``; a literal may be a ``Polynomial``.
        bounds: the values that each size of the graph may have, those that do not move included.
        axes: of each symbol what the network has of it, where that is not the symbol itself.
        free: numbers of the network's results that passes were free to lay out.
    """

    network: MovingNetwork
    widest: Imported
    operators: int
    bytes_before: int
    passes: list[PassRecord]
    first: Mapping[str, str]
    symbols: tuple[str, ...]
    places: dict[str, tuple[int, int | None]]
    constants: dict[str, torch.Tensor]
    outputs: tuple[tuple[str, Any], ...]
    bounds: tuple[Bounds, ...]
    axes: tuple[Axis, ...] = ()
    free: frozenset[int] = frozenset()
    follows: Mapping[str, Polynomial] = field(default_factory=dict)

    def sizes(self, values: Sequence[int]) -> dict[str, int] | None:
        """The sizes of the network for values of the symbols; None if it is not for these."""
        if self.axes and not all(a.has(v) for a, v in zip(self.axes, values, strict=True)):
            return None
        return self._parts(values)

    def values(self, key: Sequence[int]) -> dict[str, int]:
        """Of every symbol of the graph, for values of those that move."""
        given = {head: bounds.low for head, bounds in zip(self.first.values(), self.bounds, strict=True)}
        given |= dict(zip(self.symbols, key, strict=True))
        given = {name: given[head] for name, head in self.first.items()}
        return given | {name: total.at(given) for name, total in self.follows.items()}

    def _parts(self, values: Sequence[int]) -> dict[str, int]:
        if not self.axes:
            return dict(zip(self.network.sizes, values, strict=True))
        return {name: p for a, v in zip(self.axes, values, strict=True) for name, p in a.parts(v).items()}

    def layouts(self, values: Mapping[str, int]) -> dict[int, tuple[int, ...]]:
        """Strides of the outputs that passes were free to lay out, by number.

        Args:
            values: of symbols of the graph, on which alone these outputs depend; those at which another graph is looked at may lie
                beyond the bounds.
        """
        given = {head: bounds.high for head, bounds in zip(self.first.values(), self.bounds, strict=True)}
        given |= {self.first[name]: value for name, value in values.items() if name in self.first}
        sizes = self._parts([given[name] for name in self.symbols])
        return {
            number: fixed(self.network.results[value].strides, sizes)
            for number, (kind, value) in enumerate(self.outputs)
            if kind == "result" and value in self.free
        }


def moving_graph(
    gm: fx.GraphModule, context: GraphContext, bounds: Sequence[Bounds], passes: Sequence[Pass], target: Target, *,
    remarks: bool = False, skip: Sequence[str] = (),
) -> MovingGraph | Refusal:  # fmt: skip
    """The graph for all sizes, or why it has to be compiled for each combination of them.

    Args:
        gm: an ATen graph traced with symbolic sizes.
        context: what is known of it besides, such as which sizes are equal. Inputs that may be overwritten are kept: their memory
            moves.
        bounds: of its symbols, in the order of the inputs. Those with one value do not move.
        passes: the pipeline; those that decide by the sizes themselves are left out (``same_at_all_sizes``).
        target: what it is compiled for.
        remarks, skip: as for ``run_passes``.

    Raises:
        InvalidInput: the bounds hold too few values.
    """
    if unknown_sizes(gm):
        return Refusal(
            "the trace does not know the size of a slice whose bound is a difference of sizes; their least values may tell"
        )
    moving = _Symbols.of(gm, bounds, context)
    names = moving.names
    if not 1 <= len(names) <= MOST_AXES:
        return Refusal(f"{len(names)} sizes move")
    ends = corners({n: Bounds(*bounds) for n, bounds in moving.bounds.items() if n in names})
    for branch in branches(gm):
        # Of conditions of the context every call is asked; of a file's, none is.
        if branch not in context.conditions and not all(holds(branch, moving.values(list(e.values()))) for e in ends):
            return Refusal(f"the trace is for sizes with {branch}")
    conditions = Conditions(gm, context.conditions)
    seeing = _images(gm, moving, conditions)
    if seeing is None:
        held = [b for b in branches(gm) if b not in context.conditions]

        def right(name: str, value: int) -> bool:
            given = moving.alone(names[int(name[1:])], value)
            return not conditions.unmet(given) and all(holds(branch, given) for branch in held)

        asked = {f"s{i}": moving.bounds[n] for i, n in enumerate(names)}
        sizes, chosen = chosen_samples(asked, extents(gm), right)
        seeing = _Seeing(sizes, [tuple(s.values()) for s in chosen], (few(chosen), range(len(chosen))))
    if isinstance(seeing, Refusal):
        return seeing
    tops = [b.high for b in seeing.sizes.values()] if seeing.axes is None else [a.reach.high for a in seeing.axes.axes]
    for name, top in zip(names, tops, strict=True):
        if context.needed.get(name, top) > top:
            return Refusal(f"what all sizes have in common can be looked at up to {top}")

    for sample in seeing.samples:
        condition = conditions.unmet(moving.values(sample))
        if condition:
            return Refusal(f"the trace is for sizes with {condition}")

    divided = _fractions(gm, moving, seeing.samples)
    images = any(node.target in _CONVOLUTIONS for node in gm.graph.nodes)
    sized, windows = GivenSizes(gm), pool_windows(gm)

    def rewritten(sample: tuple[int, ...], costs: AbstractContextManager[None], *, believing: bool) -> _Sample:
        exact = {pair: over / under for pair, values in divided.items() for over, under in [values[sample]]}
        marked = {pair: v * (1 + (k + 1) * _MARK) for k, (pair, v) in enumerate(exact.items())}
        given = moving.values(sample)
        laid = None if context.layouts is None else context.layouts(given)
        graph = sized.at(given, marked, laid)
        with for_many_sizes(believing=believing, windows=windows) as many:
            made = import_graph(graph, replace(context, donated={}))
            net = made.network
            net.target = target
            operators, traffic = len(net.ops()), net.bytes_moved()
            with costs:
                done = run_passes(net, same_at_all_sizes(passes, images=images), remarks=remarks, skip=skip)
        set_floats(net, {mark: exact[pair] for pair, mark in marked.items()})
        return _Sample(sample, made, operators, traffic, done, tuple(many.margins), tuple(many.inside))

    try:
        try:
            return _seen(gm, partial(rewritten, believing=True), moving, seeing, list(divided.values()))
        except _NotEverywhere:
            return _seen(gm, partial(rewritten, believing=False), moving, seeing, list(divided.values()))
    except InvalidGraph as e:
        # Dynamo keeps calls of such sizes away, by guards that tell of several sizes at once and are not looked at here.
        return Refusal(f"the graph is none at some sizes within the bounds: {e.message}")


def _seen(
    gm: fx.GraphModule,
    rewritten: Callable[..., _Sample],
    moving: _Symbols,
    seeing: _Seeing,
    divided: Sequence[Mapping[tuple[int, ...], tuple[int, int]]],
) -> MovingGraph | Refusal:
    """The graph for all sizes, from what it becomes at samples.

    Raises:
        _NotEverywhere: a rewriting was right at the samples, and may not be at other sizes.
    """
    answers = CostAnswers()
    # What pays is decided near the usual sizes, for all. Then both ends: where the networks differ, they mostly do there.
    samples, last = seeing.samples, len(seeing.samples) - 1
    usual = min(seeing.turns[0], key=lambda i: _apart(seeing.parts(samples[i]), usual_sizes(seeing.sizes)))
    seen = {usual: rewritten(samples[usual], taking(answers))}
    seen |= {i: rewritten(samples[i], repeating(answers)) for i in (0, last) if i not in seen}
    refusal = unlike([seen[i].done.network for i in (0, last)], [seeing.parts(samples[i]) for i in (0, last)])
    if refusal is not None:
        return refusal
    found: MovingGraph | Refusal = Refusal("")
    for numbers in seeing.turns:
        seen |= {i: rewritten(samples[i], repeating(answers)) for i in numbers if i not in seen}
        found = _joined(gm, [seen[i] for i in numbers], moving, seeing, numbers, divided)
        if isinstance(found, MovingGraph):
            break
    return found


@dataclass(frozen=True)
class _Symbols:
    """The sizes of a graph.

    Attributes:
        names: those that move, each by itself.
        bounds: of every symbol.
        first: of every symbol the first one that it is equal to.
        follows: those that are sums of others, and of which.
    """

    names: list[str]
    bounds: dict[str, Bounds]
    first: dict[str, str]
    follows: dict[str, Polynomial]

    @staticmethod
    def of(gm: fx.GraphModule, bounds: Sequence[Bounds], context: GraphContext) -> _Symbols:
        """Those of a graph within bounds."""
        every = symbols(gm)
        spans = dict(zip(every, bounds, strict=True))
        first = {name: every[i] for name, i in zip(every, context.same or range(len(every)), strict=True)}
        follows = {every[i]: total for i, total in context.follows.items()}
        moving = [n for n in every if first[n] == n and n not in follows and spans[n].low < spans[n].high]
        return _Symbols(moving, spans, first, follows)

    def values(self, sample: Sequence[int]) -> dict[str, int]:
        """Of every symbol, for values of those that move."""
        given = {name: b.low for name, b in self.bounds.items()} | dict(zip(self.names, sample, strict=True))
        given = {name: given[head] for name, head in self.first.items()}
        return given | {name: total.at(given) for name, total in self.follows.items()}

    def alone(self, name: str, value: int) -> dict[str, int]:
        """Of the symbols that follow from one that moves, for a value of it."""
        given = dict.fromkeys(self.equal(name), value)
        return given | {n: total.at(given) for n, total in self.follows.items() if {*total.names()} <= given.keys()}

    def equal(self, name: str) -> list[str]:
        """The symbols that are equal to one that moves."""
        return [n for n, head in self.first.items() if head == name]


def _apart(sizes: Mapping[str, int], others: Mapping[str, int]) -> float:
    """How far sizes are from others, by their ratios."""
    return sum(abs(math.log((n + 1) / (others[name] + 1))) for name, n in sizes.items())


@dataclass(frozen=True)
class _Seeing:
    """How a graph is looked at.

    Attributes:
        sizes: of the network that it becomes.
        samples: values of its symbols, of which the last are the upper ends.
        turns: numbers of the samples to look at, few and then more.
        axes: what the sizes of the network are, if they are parts of the symbols.
    """

    sizes: Sizes
    samples: Sequence[tuple[int, ...]]
    turns: tuple[Sequence[int], ...]
    axes: Axes | None = None

    def parts(self, sample: Sequence[int]) -> dict[str, int]:
        """The sizes of the network for values of the symbols."""
        return self.axes.parts(sample) if self.axes is not None else dict(zip(self.sizes, sample, strict=True))


def _images(gm: fx.GraphModule, moving: _Symbols, conditions: Conditions) -> _Seeing | Refusal | None:
    """How a graph is looked at some of whose extents are quotients of others, or three of which move; None for another one."""
    of_symbol = divisions(gm)
    if any(of_symbol[name] for name in moving.follows):
        return Refusal("something is divided that is a sum of sizes")
    quotients = {name: [q for n in moving.equal(name) for q in of_symbol[n]] for name in moving.names}
    if len(moving.names) <= MOST_SIZES and not any(quotients.values()):
        return None
    made: list[Axis] = []
    taken = extents(gm)
    for name in moving.names:
        asked = moving.bounds[name]

        def holds(value: int, name: str = name) -> bool:
            return not conditions.unmet(dict.fromkeys(moving.equal(name), value))

        try:
            steps = ladder(quotients[name], asked.low)
        except ZeroDivisionError:
            return Refusal("something is divided by a size that may be 0")
        found = axis(steps, asked, sum(len(a.sizes) for a in made), holds, taken)
        if isinstance(found, str):
            return Refusal(found)
        made.append(found)
        taken |= near(found.ladder.rungs(found.reach.high))

    def all_hold(values: Sequence[int]) -> bool:
        return not conditions.unmet(moving.values(values))

    axes = Axes(made, extents(gm), all_hold)
    return _Seeing(axes.sizes, axes.samples, axes.turns, axes)


@dataclass(frozen=True)
class _Sample:
    """The graph for some sizes: rewritten, with what it was before, and what the passes did."""

    sizes: tuple[int, ...]
    done: Imported
    operators: int
    bytes_before: int
    passes: list[PassRecord]
    margins: tuple[int, ...]
    inside: tuple[int, ...]


def _beginning(
    inside: Sequence[tuple[int, ...]], samples: Sequence[Mapping[str, int]], fit: Through | None, sizes: Sizes
) -> Sizes | None:
    """The sizes from those on at which no number is negative; None if no least value of one size sees to that.

    Args:
        inside: the numbers at each of the samples, of which none is. Those that are no polynomials wander, and are left alone.
    """
    if len({len(numbers) for numbers in inside}) > 1:
        return sizes
    for numbers in dict.fromkeys(zip(*inside, strict=True)):
        row = unified_rows([(n,) for n in numbers], samples, fit) if len({*numbers}) > 1 else None
        if row is None or never_negative(row[0], sizes):
            continue
        tried = (
            {**sizes, name: Bounds(low, sizes[name].high)}
            for name in sorted(row[0].names())
            for low in range(sizes[name].low + 1, min(s[name] for s in samples) + 1)
        )
        found = next((t for t in tried if never_negative(row[0], t)), None)
        if found is None:
            return None
        sizes = found
    return sizes


class _NotEverywhere(Exception):
    """A rewriting is right at the samples, and may not be at other sizes."""


def _fractions(
    gm: fx.GraphModule, moving: _Symbols, samples: Sequence[tuple[int, ...]]
) -> dict[Any, dict[tuple[int, ...], tuple[int, int]]]:
    """What a graph divides by what, to a float that moves, at every sample."""
    found = {}
    for pair in fractions(gm):
        values = {}
        for s in samples:
            over, under = (value_of(n, moving.values(s)) for n in pair)
            values[s] = over, under
        if len({over / under for over, under in values.values()}) > 1:
            found[pair] = values
    return found


def _joined(
    gm: fx.GraphModule,
    given: Sequence[_Sample],
    moving: _Symbols,
    seeing: _Seeing,
    numbers: Sequence[int],
    divided: Sequence[Mapping[tuple[int, ...], tuple[int, int]]],
) -> MovingGraph | Refusal:
    """What a graph is at samples as what it is at all sizes."""
    names, widest, axes = moving.names, given[-1], seeing.axes
    seen, samples = [s.done for s in given], [seeing.parts(s.sizes) for s in given]
    done = widest.done
    fit = None if axes is None else axes.fit(numbers).through
    if any(s.subgraphs for s in seen):
        return Refusal("an operator calls a graph")
    outputs = unified_rows([tuple(s.outputs) for s in seen], samples, fit)
    if outputs is None:
        return Refusal("what the graph returns changes with the sizes")
    for other in seen:
        if other.constants.keys() != done.constants.keys() or not all(
            torch.equal(other.constants[n], c) for n, c in done.constants.items()
        ):
            return Refusal("a constant changes with the sizes")
    pairs = [tuple(zip(*(values[s.sizes] for s in given), strict=True)) for values in divided]
    remainders = () if axes is None else [name for a in axes.axes for name in a.names[1:] if name]
    found = unified([s.network for s in seen], samples, seeing.sizes, fit, pairs, remainders)  # type: ignore[arg-type]
    if isinstance(found, Refusal):
        return found
    margins = unified_rows([tuple(m for m in s.margins if m) for s in given], samples, fit)
    if margins is None or not all(never_negative(m, seeing.sizes) for m in margins):
        raise _NotEverywhere
    begins = _beginning([s.inside for s in given], samples, fit, found.sizes)
    if begins != found.sizes:
        if begins is None or axes is not None:
            return Refusal("a value that is read is another one at the least sizes")
        found = replace(found, sizes=begins)
    try:
        verify_moving(found)
    except InvalidGraph as e:
        return Refusal(f"what cannot be shown to hold for all sizes: {e.message}")
    reach = [a.reach for a in axes.axes] if axes is not None else list(found.sizes.values())
    bounds = moving.bounds | dict(zip(names, reach, strict=True))
    bounds = {name: bounds[head] for name, head in moving.first.items()}
    bounds |= {name: bounds_of(total, bounds) for name, total in moving.follows.items()}
    where = places(gm)
    return MovingGraph(
        found, done, widest.operators, widest.bytes_before, widest.passes, moving.first, tuple(names), {n: where[n] for n in names},
        done.constants, outputs, tuple(bounds.values()), axes.axes if axes is not None else (), frozenset(done.network.free),
        moving.follows,
    )  # fmt: skip
