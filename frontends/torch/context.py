"""What goes with an ATen graph from its capture to its program: what the graph itself does not say, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from dcir.errors import Unsupported
from dcir.frontends.torch.gates import Gates
from dcir.frontends.torch.partition.cut import Partition
from dcir.ir.memory_plan import BufferPart
from dcir.ir.sizes import Bounds, Polynomial

Sizes = tuple[tuple[str, int], ...]
"""(place of a symbolic size in the inputs, its value)."""
LayoutsAt = Callable[[Mapping[str, int]], Mapping[int, tuple[int, ...]]]
"""From values of a graph's symbols to the strides of those arguments or results, by number, whose layout is not the graph's to say."""


@dataclass(frozen=True)
class CompiledGraph:
    """What became of an ATen graph.

    Attributes:
        call: from a list of arguments to a list of results.
        strides: of the results; None for those that are no tensors, or are laid out as the graph says.
        parts: where the results lie that lie in buffers of the call, by number.
        donation: of a forward, what the compilation of its backward settles with it; capture only hands it on.
        bounds: of one program for all sizes, those that it is for, in the order of the inputs.
    """

    call: Callable[[list[Any]], list[Any]]
    strides: tuple[tuple[int, ...] | None, ...] = ()
    parts: Mapping[int, BufferPart] = field(default_factory=dict)
    donation: Any = None
    bounds: tuple[Bounds, ...] = ()


@dataclass(frozen=True)
class GraphContext:
    """What capture knows of an ATen graph.

    Attributes:
        kind: "inference", "forward", "backward", "training step" or "update" (of parameters alone).
        pair: a number that a forward and its backward have in common.
        sizes: the symbolic sizes that it was specialised to.
        remark: how it comes to be compiled for those sizes.
        static: numbers of the placeholders that are parameters or buffers of the user's modules.
        updates: from the number of a result to that of the placeholder whose contents it replaces.
        first_saved: of a forward, number of its first result that only the backward graph reads.
        first_read: of a backward, the number of the forward's result that its first argument would be, were that one.
        partition: of a forward, what was decided under a limit of memory.
        donated: of a backward, the placeholders that nobody reads once the call has begun, and where they lie.
        forward: of a backward, what became of its forward.
        bounds: of its symbolic sizes, in the order of the inputs, where it is to be one program for all of them.
        layouts: of a backward with ``bounds``, how its forward lays out what it keeps.
        settle: of a forward with ``bounds``, called with how it lays out what it keeps before it has a library.
        same: for each of those sizes the number of the first one that it is equal to; empty: they have nothing to do with each other.
        follows: which of those sizes are sums of others, by number, and of which, by name.
        bound_names: where those sizes are in the user's inputs.
        needed: by name, those of the call that the program is made for: one that ends before is none.
        conditions: of its symbolic sizes, which it was traced under and Dynamo does not know of.
        gates: of a backward, what its gradients pass through part by part; None: all at once.
        gathered: whether parameters are gathered from other processes for every call.
    """

    kind: str = "inference"
    pair: int | None = None
    sizes: Sizes = ()
    remark: str = ""
    static: frozenset[int] = frozenset()
    updates: Mapping[int, int] = field(default_factory=dict)
    first_saved: int | None = None
    first_read: int = 0
    partition: Partition | None = None
    donated: Mapping[int, BufferPart] = field(default_factory=dict)
    forward: CompiledGraph | None = None
    bounds: tuple[Bounds, ...] = ()
    layouts: LayoutsAt | None = None
    settle: Callable[[LayoutsAt], None] | None = None
    same: tuple[int, ...] = ()
    follows: Mapping[int, Polynomial] = field(default_factory=dict)
    bound_names: tuple[str, ...] = ()
    needed: Mapping[str, int] = field(default_factory=dict)
    conditions: tuple[Any, ...] = ()
    gates: Gates | None = None
    gathered: bool = False


class OtherBounds(Unsupported):
    """There is no program for the bounds in a context; there may be one for others."""


class TooFewValues(OtherBounds):
    """Between the bounds in a context there are too few values to look at a graph at; there may be enough between wider ones."""


CompileGraph = Callable[[fx.GraphModule, GraphContext], CompiledGraph]
"""From a graph and what is known of it to its compiled form."""
