"""One ATen graph for all sizes within bounds: imported and rewritten at samples, and unified to a network whose sizes move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from dcir.cost.target import Target
from dcir.errors import InvalidGraph
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.importer import Imported, import_graph
from dcir.frontends.torch.shapes.given_sizes import (
    Conditions,
    divisions,
    extents,
    fractions,
    given_sizes,
    places,
    symbols,
    value_of,
)
from dcir.ir.moving_network import MovingNetwork, set_floats
from dcir.ir.refusal import Refusal
from dcir.ir.sizes import Bounds, Sizes
from dcir.ir.verify_moving import verify_moving
from dcir.ops.analysis.size_axes import MOST_AXES, Axes, Axis, axis, near
from dcir.ops.analysis.size_ladders import ladder
from dcir.ops.analysis.size_unification import MOST_SIZES, chosen_samples, few, unified, unified_rows, unlike
from dcir.transforms.base import Pass
from dcir.transforms.pipelines import same_at_all_sizes
from dcir.transforms.runner import PassRecord, run_passes

# Floats that are quotients of sizes are made a little different from each other, and from what else they may be equal to at a sample, as
# 1/4 is: passes that merge what is equal then do the same at all samples. It is undone when they have run, and what was computed from a
# float by then is refused, since it is no quotient of the graph.
_MARK = 2.0**-20


@dataclass(frozen=True)
class MovingGraph:
    """A network whose sizes move and what is needed to call it.

    Attributes:
        network: its sizes are called s0, s1, … in the order of ``symbols``.
        widest: the graph at the upper ends, rewritten.
        operators, bytes_before, passes: what the graph was there before the passes, and what these did.
        symbols: what the graph calls them.
        places: of each symbol in the arguments.
        constants: as in ``Imported``, the same at all sizes.
        outputs: as in ``Imported``; a literal may be a ``Polynomial``.
        axes: of each symbol what the network has of it, where that is not the symbol itself.
    """

    network: MovingNetwork
    widest: Imported
    operators: int
    bytes_before: int
    passes: list[PassRecord]
    symbols: tuple[str, ...]
    places: dict[str, tuple[int, int | None]]
    constants: dict[str, torch.Tensor]
    outputs: tuple[tuple[str, Any], ...]
    axes: tuple[Axis, ...] = ()

    @property
    def bounds(self) -> tuple[Bounds, ...]:
        """The values that each symbol may have."""
        return tuple(a.reach for a in self.axes) if self.axes else tuple(self.network.sizes.values())

    def sizes(self, values: Sequence[int]) -> dict[str, int] | None:
        """The sizes of the network for values of the symbols; None if it is not for these."""
        if not self.axes:
            return dict(zip(self.network.sizes, values, strict=True))
        if not all(a.has(v) for a, v in zip(self.axes, values, strict=True)):
            return None
        return {name: p for a, v in zip(self.axes, values, strict=True) for name, p in a.parts(v).items()}


def moving_graph(
    gm: fx.GraphModule, context: GraphContext, bounds: Sequence[Bounds], passes: Sequence[Pass], target: Target
) -> MovingGraph | Refusal:
    """The graph for all sizes, or why it has to be compiled for each combination of them.

    Args:
        gm: an ATen graph traced with symbolic sizes.
        context: what is known of it besides. Inputs that may be overwritten are kept: their memory moves.
        bounds: of its symbols, in the order of the inputs.
        passes: the pipeline; those that decide by the sizes themselves are left out (``same_at_all_sizes``).
        target: what it is compiled for.

    Raises:
        InvalidInput: the bounds hold too few values.
    """
    names = symbols(gm)
    if not 1 <= len(names) <= MOST_AXES:
        return Refusal(f"{len(names)} sizes move")
    conditions = Conditions(gm, context.conditions)
    seeing = _images(gm, bounds, conditions)
    if seeing is None:
        sizes, chosen = chosen_samples({f"s{i}": b for i, b in enumerate(bounds)}, extents(gm))
        seeing = _Seeing(sizes, [tuple(s.values()) for s in chosen], (few(chosen), range(len(chosen))))
    if isinstance(seeing, Refusal):
        return seeing

    for sample in seeing.samples:
        condition = conditions.unmet(dict(zip(names, sample, strict=True)))
        if condition:
            return Refusal(f"the trace is for sizes with {condition}")

    divided = _fractions(gm, seeing.samples)
    images = any(node.target is torch.ops.aten.convolution.default for node in gm.graph.nodes)

    def rewritten(sample: tuple[int, ...]) -> _Sample:
        exact = {pair: over / under for pair, values in divided.items() for over, under in [values[sample]]}
        marked = {pair: v * (1 + (k + 1) * _MARK) for k, (pair, v) in enumerate(exact.items())}
        graph = given_sizes(gm, dict(zip(names, sample, strict=True)), marked)
        made = import_graph(graph, replace(context, donated={}))
        net = made.network
        net.target = target
        operators, traffic = len(net.ops()), net.bytes_moved()
        done = run_passes(net, same_at_all_sizes(passes, images=images))
        set_floats(net, {mark: exact[pair] for pair, mark in marked.items()})
        return _Sample(sample, made, operators, traffic, done)

    # Both ends first: where the networks differ, they mostly do there.
    samples = seeing.samples
    ends = [rewritten(samples[0]), rewritten(samples[-1])]
    refusal = unlike([e.done.network for e in ends], [seeing.parts(samples[0]), seeing.parts(samples[-1])])
    if refusal is not None:
        return refusal
    seen = {0: ends[0], len(samples) - 1: ends[1]}
    found: MovingGraph | Refusal = Refusal("")
    for numbers in seeing.turns:
        seen |= {i: rewritten(samples[i]) for i in numbers if i not in seen}
        found = _joined(gm, [seen[i] for i in numbers], seeing, numbers, list(divided.values()))
        if isinstance(found, MovingGraph):
            break
    return found


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


def _images(gm: fx.GraphModule, bounds: Sequence[Bounds], conditions: Conditions) -> _Seeing | Refusal | None:
    """How a graph is looked at some of whose extents are quotients of others, or three of which move; None for another one."""
    names, quotients = symbols(gm), divisions(gm)
    if len(names) <= MOST_SIZES and not any(quotients[name] for name in names):
        return None
    made: list[Axis] = []
    taken = extents(gm)
    for name, asked in zip(names, bounds, strict=True):

        def holds(value: int, name: str = name) -> bool:
            return not conditions.unmet({name: value})

        found = axis(ladder(quotients[name], asked.low), asked, sum(len(a.sizes) for a in made), holds, taken)
        if isinstance(found, str):
            return Refusal(found)
        made.append(found)
        taken |= near(found.ladder.rungs(found.reach.high))

    def all_hold(values: Sequence[int]) -> bool:
        return not conditions.unmet(dict(zip(names, values, strict=True)))

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


def _fractions(
    gm: fx.GraphModule, samples: Sequence[tuple[int, ...]]
) -> dict[Any, dict[tuple[int, ...], tuple[int, int]]]:
    """What a graph divides by what, to a float that moves, at every sample."""
    names = symbols(gm)
    found = {}
    for pair in fractions(gm):
        values = {}
        for s in samples:
            over, under = (value_of(n, dict(zip(names, s, strict=True))) for n in pair)
            values[s] = over, under
        if len({over / under for over, under in values.values()}) > 1:
            found[pair] = values
    return found


def _joined(
    gm: fx.GraphModule,
    given: Sequence[_Sample],
    seeing: _Seeing,
    numbers: Sequence[int],
    divided: Sequence[Mapping[tuple[int, ...], tuple[int, int]]],
) -> MovingGraph | Refusal:
    """What a graph is at samples as what it is at all sizes."""
    names, widest, axes = symbols(gm), given[-1], seeing.axes
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
    try:
        verify_moving(found)
    except InvalidGraph as e:
        return Refusal(f"what cannot be shown to hold for all sizes: {e.message}")
    return MovingGraph(
        found, done, widest.operators, widest.bytes_before, widest.passes, tuple(names), places(gm),
        done.constants, outputs, axes.axes if axes is not None else (),
    )  # fmt: skip
