"""One ATen graph for all sizes within bounds: imported and rewritten at samples, and unified to a network whose sizes move."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from dcir.cost.target import Target
from dcir.errors import InvalidGraph
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.importer import Imported, import_graph
from dcir.frontends.torch.shapes.given_sizes import extents, given_sizes, places, symbols, unmet
from dcir.ir.cost_answers import CostAnswers, repeating, taking
from dcir.ir.moving_network import MovingNetwork, usual_sizes
from dcir.ir.refusal import Refusal
from dcir.ir.sizes import Bounds, Sizes
from dcir.ir.verify_moving import verify_moving
from dcir.ops.analysis.size_unification import MOST_SIZES, chosen_samples, few, unified, unified_rows, unlike
from dcir.transforms.base import Pass
from dcir.transforms.pipelines import same_at_all_sizes
from dcir.transforms.runner import PassRecord, run_passes


@dataclass(frozen=True)
class MovingGraph:
    """A network whose sizes move and what is needed to call it.

    Attributes:
        network: its sizes are called s0, s1, … in the order of ``symbols``.
        widest: the graph at the upper ends, rewritten.
        operators, bytes_before, passes: what the graph was there before the passes, and what these did.
        symbols: what the graph calls those that move.
        places: of each of them in the arguments.
        constants: as in ``Imported``, the same at all sizes.
        outputs: as in ``Imported``; a literal may be a ``Polynomial``.
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


def moving_graph(
    gm: fx.GraphModule, context: GraphContext, bounds: Sequence[Bounds], passes: Sequence[Pass], target: Target
) -> MovingGraph | Refusal:
    """The graph for all sizes, or why it has to be compiled for each combination of them.

    Args:
        gm: an ATen graph traced with symbolic sizes.
        context: what is known of it besides. Inputs that may be overwritten are kept: their memory moves.
        bounds: of its symbols, in the order of the inputs. Those with one value do not move.
        passes: the pipeline; those that decide by the sizes themselves are left out (``same_at_all_sizes``).
        target: what it is compiled for.

    Raises:
        InvalidInput: the bounds hold too few values.
    """
    spans = dict(zip(symbols(gm), bounds, strict=True))
    still = {name: low for name, (low, high) in spans.items() if low == high}
    names = [name for name in spans if name not in still]
    if not 1 <= len(names) <= MOST_SIZES:
        return Refusal(f"{len(names)} sizes move")
    sizes, samples = chosen_samples({f"s{i}": spans[name] for i, name in enumerate(names)}, extents(gm))

    def values(sample: Mapping[str, int]) -> dict[str, int]:
        return still | dict(zip(names, sample.values(), strict=True))

    for sample in samples:
        condition = unmet(gm, values(sample))
        if condition:
            return Refusal(f"the trace is for sizes with {condition}")

    answers = CostAnswers()

    def rewritten(sample: Mapping[str, int], costs: Callable[[CostAnswers], AbstractContextManager[None]]) -> _Sample:
        graph = given_sizes(gm, values(sample))
        made = import_graph(graph, replace(context, donated={}))
        net = made.network
        net.target = target
        operators, traffic = len(net.ops()), net.bytes_moved()
        with costs(answers):
            done = run_passes(net, same_at_all_sizes(passes))
        return _Sample(sample, made, operators, traffic, done)

    # What pays is decided near the usual sizes, for all. Then both ends: where the networks differ, they mostly do there.
    usual = min(few(samples), key=lambda i: _apart(samples[i], usual_sizes(sizes)))
    seen = {usual: rewritten(samples[usual], taking)}
    last = len(samples) - 1
    seen |= {i: rewritten(samples[i], repeating) for i in (0, last) if i not in seen}
    refusal = unlike([seen[i].done.network for i in (0, last)], [samples[0], samples[last]])
    if refusal is not None:
        return refusal
    found: MovingGraph | Refusal = Refusal("")
    for numbers in (few(samples), range(len(samples))):
        seen |= {i: rewritten(samples[i], repeating) for i in numbers if i not in seen}
        found = _joined([seen[i] for i in numbers], sizes, {name: places(gm)[name] for name in names})
        if isinstance(found, MovingGraph):
            break
    return found


def _apart(sizes: Mapping[str, int], others: Mapping[str, int]) -> float:
    """How far sizes are from others, by their ratios."""
    return sum(abs(math.log(n / others[name])) for name, n in sizes.items())


@dataclass(frozen=True)
class _Sample:
    """The graph for some sizes: rewritten, with what it was before, and what the passes did."""

    sizes: Mapping[str, int]
    done: Imported
    operators: int
    bytes_before: int
    passes: list[PassRecord]


def _joined(given: Sequence[_Sample], sizes: Sizes, where: dict[str, tuple[int, int | None]]) -> MovingGraph | Refusal:
    """What a graph is at samples as what it is at all sizes, which are somewhere in its arguments."""
    seen, samples, widest = [s.done for s in given], [s.sizes for s in given], given[-1]
    done = widest.done
    if any(s.subgraphs for s in seen):
        return Refusal("an operator calls a graph")
    outputs = unified_rows([tuple(s.outputs) for s in seen], samples)
    if outputs is None:
        return Refusal("what the graph returns changes with the sizes")
    for other in seen:
        if other.constants.keys() != done.constants.keys() or not all(
            torch.equal(other.constants[n], c) for n, c in done.constants.items()
        ):
            return Refusal("a constant changes with the sizes")
    found = unified([s.network for s in seen], samples, sizes)
    if isinstance(found, Refusal):
        return found
    try:
        verify_moving(found)
    except InvalidGraph as e:
        return Refusal(f"what cannot be shown to hold for all sizes: {e.message}")
    return MovingGraph(
        found, done, widest.operators, widest.bytes_before, widest.passes, tuple(where), where, done.constants,
        outputs,
    )  # fmt: skip
