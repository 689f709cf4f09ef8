"""Predicts the bytes that a model moves on a target: of what is left of its graphs after the passes, which are neither compiled nor run.

    moved  = what kernels and calls read and write, by the graph's edges
           + images that a library has to turn around, results that it makes elsewhere than they are wanted
           + what a loop nest reads again where its rows are more than a cache holds
    floor  = operands and results of products and convolutions, once;   activations = results of those in the forward

Tensors may be fake: a step for which this machine has no memory is predicted as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from dcir.cost.target import target_of
from dcir.driver.compile import rewritten
from dcir.driver.placement import chosen_strides
from dcir.driver.session import Session
from dcir.frontends.torch.capture import dynamo_backend
from dcir.frontends.torch.context import CompiledGraph, GraphContext
from dcir.frontends.torch.gpu_forms import in_gpu_forms
from dcir.frontends.torch.partition.cut_for import cuts_for
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_forms import side_by_side
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network
from dcir.ir.operator import Operator
from dcir.ir.statements import Reduce, Store
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.fused_product import FusedProduct
from dcir.ops.library.library_call import LibraryCall
from dcir.ops.library.library_layouts import turned_bytes
from dcir.ops.library.library_memory import copied_bytes
from dcir.ops.reach import never_run
from dcir.options import Options
from dcir.targets import target_class

PRODUCTS, TURNED, COPIED, REDUCTIONS, POINTWISE, AGAIN, OTHERS = KINDS = (
    "products", "turned", "copied", "reductions", "pointwise", "again", "others",
)  # fmt: skip
"""What bytes belong to: products and convolutions; their images turned around; their results copied; loop nests with and without
reductions; what those read again; all else."""


@dataclass(frozen=True)
class Step:
    """Bytes of one operator.

    Attributes:
        graph: kind of its graph.
        what: it, in words.
        kind: one of ``KINDS``.
        nbytes: read and written.
    """

    graph: str
    what: str
    kind: str
    nbytes: int


@dataclass
class Traffic:
    """Bytes of a call of a model, in training with its backward.

    Attributes:
        steps: all of its operators.
        floor: of products and convolutions alone.
        activations: of what products and convolutions write in the forward.
    """

    steps: list[Step] = field(default_factory=list)
    floor: int = 0
    activations: int = 0

    @property
    def moved(self) -> int:
        """All bytes."""
        return sum(s.nbytes for s in self.steps)

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes by kind."""
        found = dict.fromkeys(KINDS, 0)
        for s in self.steps:
            found[s.kind] += s.nbytes
        return found

    @property
    def sweeps(self) -> float:
        """How many times the activations are moved."""
        return self.moved / max(self.activations, 1)

    def largest(self, count: int) -> list[tuple[str, int, int]]:
        """(what and where, how often, bytes in all) of the operators beside products that move most."""
        nbytes, times = Counter[str](), Counter[str]()
        for s in self.steps:
            if s.kind != PRODUCTS:
                nbytes[f"{s.graph}: {s.kind}: {s.what}"] += s.nbytes
                times[f"{s.graph}: {s.kind}: {s.what}"] += 1
        return [(what, times[what], n) for what, n in nbytes.most_common(count)]


def predicted_bytes(model: nn.Module, inputs: Sequence[Any], options: Options) -> Traffic:
    """What a call of a model moves; with its backward where its result asks for gradients.

    Args:
        model: which returns a loss where it is to be trained.
        inputs: of the call.
        options: of the compilation.

    Raises:
        DcirError: as a compilation does.
    """
    found = Traffic()
    for kind, net in rewritten_graphs(model, inputs, options):
        _count(found, kind, net)
    return found


def rewritten_graphs(model: nn.Module, inputs: Sequence[Any], options: Options) -> list[tuple[str, Network]]:
    """Kind and network, after all passes, of each graph of a call; tensors of both may be fake."""
    session = Session(options)
    found: list[tuple[str, Network]] = []

    def compiled(gm: fx.GraphModule, context: GraphContext) -> CompiledGraph:
        done = rewritten(session, gm, context)
        found.append((context.kind, done.network))

        def call(args: Sequence[Any]) -> list[Any]:
            return list(gm(*args))

        return CompiledGraph(call, chosen_strides(done))

    torch._dynamo.reset()
    target = target_class(options.target)
    with never_run(), cuts_for(target.cuts), in_gpu_forms(wanted=not target.attends):
        torch.compile(model, backend=dynamo_backend(compiled), dynamic=False)(*inputs)
    return found


def _count(found: Traffic, graph: str, net: Network) -> None:
    costs = target_of(net).costs
    last_alone = costs.layout.last_alone or frozenset()
    prepared = net.prepared_ops()
    for op in net.ops():
        if op in prepared:
            continue
        spec, moved = op.spec, net.moved_by(op)
        product = spec.of if isinstance(spec, LibraryCall) else spec
        rows = {_kind(product): moved}
        if isinstance(product, FusedProduct):
            product, rows = product.product, {PRODUCTS: moved}
        if isinstance(product, ConvolutionSpec | ContractionSpec):
            found.floor += product.bytes_moved() if isinstance(spec, FusedProduct) else moved
            if graph != "backward":
                found.activations += sum(product.footprint()[1])
        if isinstance(spec, LibraryCall) and isinstance(product, ConvolutionSpec):
            rows[TURNED] = turned_bytes(product, last_alone=product.dtype in last_alone)
            rows[COPIED] = 0 if _in_place(net, op, spec) else 2 * sum(product.footprint()[1])
        if isinstance(spec, LibraryCall) and isinstance(product, ContractionSpec):
            rows[COPIED] = 2 * copied_bytes(product)
        if isinstance(spec, LoopNest):
            rows[AGAIN] = _again(spec, costs.memory.row_bytes, costs.memory.far_bytes)
        found.steps += [Step(graph, spec.describe(), kind, n) for kind, n in rows.items() if n]


def _kind(spec: Operator) -> str:
    if isinstance(spec, ConvolutionSpec | ContractionSpec):
        return PRODUCTS
    if not isinstance(spec, LoopNest):
        return OTHERS
    return REDUCTIONS if any(isinstance(s, Reduce) for s in spec.body) else POINTWISE


def _in_place(net: Network, op: Op, spec: LibraryCall) -> bool:
    """Whether what a library makes is a container of its own."""
    (out,) = net.outs(op)
    c, (shape, strides, _) = net.containers[out.data], spec.outs[0]
    return (c.role, out.offset, c.shape, c.strides) == ("result", 0, shape, strides)


def _again(p: LoopNest, row_bytes: int, cache_bytes: int) -> int:
    """Bytes that later stages of a loop nest read once more."""
    sweeps = {
        stage - isinstance(s, Reduce)
        for s, (stage, full) in zip(p.body, p.levels(), strict=True)
        if isinstance(s, Reduce) or (isinstance(s, Store) and full)
    }
    reads = sum(p.footprint()[0])
    held = side_by_side(p) == 1 and 8 * math.prod(p.inner) <= row_bytes
    return 0 if held or reads <= cache_bytes else max(len(sweeps) - 1, 0) * reads
