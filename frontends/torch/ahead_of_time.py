"""A graph of Dynamo's through AOTAutograd, for constant sizes or with symbols for them, and what becomes of the ATen graphs."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses import FakeTensorMode

from dcir.errors import Unsupported
from dcir.frontends.torch.arguments import lazy_places
from dcir.frontends.torch.as_eager import decomposed_as_eager
from dcir.frontends.torch.as_laid_out import laid_out
from dcir.frontends.torch.constant_sizes import constant_sizes, is_symbolic, without_unknown_sizes
from dcir.frontends.torch.context import CompiledGraph, CompileGraph, GraphContext, Sizes
from dcir.frontends.torch.decompose import decompositions
from dcir.frontends.torch.forward_and_backward import donated, first_read, lay_out, report_strides
from dcir.frontends.torch.gates import gates_of_call
from dcir.frontends.torch.gpu_forms import gpu_forms
from dcir.frontends.torch.importer import import_graph
from dcir.frontends.torch.kept.graph_text import graph_text
from dcir.frontends.torch.kept.graphs import GraphKeeper, GraphNotes, address_in
from dcir.frontends.torch.kept.recording import KeptGraph, recording
from dcir.frontends.torch.kept.wrappers import listening
from dcir.frontends.torch.late_graph import LateGraph
from dcir.frontends.torch.overlapping import gradients_of_overlapping_outputs
from dcir.frontends.torch.overlapping_inputs import Overlaps
from dcir.frontends.torch.partition.cut import Cut, Limited, Partition
from dcir.frontends.torch.partition.expose_norms import expose_norms
from dcir.frontends.torch.partition.keep_random import keep_random
from dcir.frontends.torch.partition.recompute import recompute_cheap
from dcir.frontends.torch.partition.rematerialize_large import GOAL, eager_peak, rematerialize_large
from dcir.frontends.torch.scalar_tensors import remainders_stay_numbers
from dcir.frontends.torch.shapes.batch_buckets import Trace, Traced
from dcir.frontends.torch.shapes.conditions import OneSize, asked_numbers, asked_sizes, branches, few, only_beyond_one
from dcir.frontends.torch.shapes.given_sizes import symbols
from dcir.frontends.torch.shapes.kept_moving import KeptMoving
from dcir.frontends.torch.shapes.moving_sizes import Later, Moving, MovingSizes
from dcir.frontends.torch.shapes.programs import Programs
from dcir.frontends.torch.shapes.size_one import set_one_apart
from dcir.frontends.torch.shapes.specialize_shapes import trains
from dcir.frontends.torch.transform_levels import levels_end_with_errors
from dcir.frontends.torch.written_inputs import WrittenElsewhere, updates_at_the_end
from dcir.ir.refusal import Refusal

_NUMBERS = itertools.count()
# Made once: each patch leaves a variable in the thread's context for ever.
_AS_WRITTEN = torch._functorch.config.patch(cse=False)
# The first forward writes what it keeps to where its backward wants it.
_BOTH_AT_ONCE = torch._functorch.config.patch(force_non_lazy_backward_lowering=True)


def new_pair() -> int:
    """A number that a forward and its backward have in common, and no others."""
    return next(_NUMBERS)


def ahead_of_time(
    gm: fx.GraphModule, inputs: Sequence[Any], compile_graph: CompileGraph, limited: Limited | None,
    settled: bool, context: GraphContext, overlaps: Overlaps, keeper: GraphKeeper | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """What runs a graph of constant sizes, or at the sizes of its inputs.

    Args:
        gm: Dynamo's graph.
        inputs: what it is traced for.
        compile_graph: compiles what AOTAutograd makes of the graph.
        limited: cuts a joint graph under a limit of memory.
        settled: whether somebody counts the writes to every input.
        context: what is known of all graphs that are made here.
        overlaps: hears whether the graph writes inputs.
        keeper: keeps what becomes of graphs.
    """
    known = _known(settled, context.sizes, context.remark)
    address = address_in(keeper, lambda: (*known, *graph_text(gm, inputs)))
    if keeper is not None and address is not None:
        found = keeper.found(address)
        if found:
            overlaps.matter |= found[0].kept.apart
            return found[0].whole

    def traced(in_place: bool) -> Callable[..., Any]:
        notes = None if address is None else GraphNotes(overlaps)
        tracing = _Tracing(compile_graph, limited, context, overlaps, notes, settled=settled, in_place=in_place)
        whole = tracing.traced(gm, inputs)
        if keeper is not None and address is not None and notes is not None:
            keeper.made(address, notes)
        return whole

    if settled and not trains(gm, inputs):
        with contextlib.suppress(WrittenElsewhere):
            return traced(in_place=True)
    return traced(in_place=False)


class _Tracing:
    """One run of AOTAutograd over a graph of Dynamo's, and what its forward and its backward must know of each other.

    Args:
        compile_graph: compiles what AOTAutograd makes of the graph.
        limited: cuts a joint graph under a limit of memory.
        context: what is known of all graphs that are made here.
        overlaps: hears whether the graph writes inputs.
        notes: are taken on what becomes of it, if they are wanted.
        settled: whether somebody counts the writes to every input.
        in_place: whether the graph itself writes the inputs that change, which is tried in inference; else AOTAutograd does so
            when the graph is done.
    """

    def __init__(
        self,
        compile_graph: CompileGraph,
        limited: Limited | None,
        context: GraphContext,
        overlaps: Overlaps | None = None,
        notes: GraphNotes | None = None,
        *,
        settled: bool,
        in_place: bool,
    ) -> None:
        self._compile_graph, self._limited = compile_graph, limited
        self._base = replace(context, pair=new_pair())
        self._settled, self._in_place, self._overlaps, self._notes = settled, in_place, overlaps, notes
        self._partition: Partition | None = None
        self._forward: CompiledGraph | None = None
        self._gates = gates_of_call()

    def traced(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """What runs the graph.

        Raises:
            WrittenElsewhere: the graph cannot write the inputs that change.
        """
        notes = recording()
        notes.trace()
        if self._gates is not None:
            notes.refuse("gradients pass gates")
        # AOTAutograd leaves what it finds out about the inputs in the context that Dynamo opened, or in ours.
        opened = TracingContext.try_get()
        context = contextlib.nullcontext(opened) if opened else tracing(TracingContext(_fake_mode(gm, inputs)))
        hearing: Any = contextlib.nullcontext([]) if self._notes is None else listening()
        asked = len(opened.guards_context.aotautograd_guards) if opened else 0
        environment = opened.fake_mode.shape_env if opened and opened.fake_mode else None
        known = asked_numbers(environment)
        with (
            context, hearing as heard, without_unknown_sizes(gm, inputs), gradients_of_overlapping_outputs(), decomposed_as_eager(),
            gpu_forms(), levels_end_with_errors(), remainders_stay_numbers(), _BOTH_AT_ONCE,
        ):  # fmt: skip
            compiled: Callable[..., Any] = aot_module_simplified(
                gm,
                list(inputs),
                fw_compiler=self._compiler("forward"),
                bw_compiler=self._compiler("backward"),
                inference_compiler=self._compiler("inference"),
                decompositions=decompositions(),
                partition_fn=self._cut,
                keep_inference_input_mutations=self._in_place,
            )
            if self._gates is not None:
                compiled = self._gates.forward(compiled)
            found = TracingContext.get().fw_metadata
            if self._overlaps is not None and (found is None or any(i.mutates_data for i in found.input_info)):
                self._overlaps.matter = True
        if self._notes is not None:
            self._notes.heard = heard
            if opened is not None and len(opened.guards_context.aotautograd_guards) > asked:
                self._notes.reason = "AOTAutograd has guards of its own"
            if asked_numbers(environment) != known:
                self._notes.reason = "its trace is for one value of a number that may be another one in other calls"
        notes.traced(compiled)
        return compiled

    def _compiler(self, kind: str) -> Any:
        def run(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
            updates = updates_at_the_end(graph, kind) if self._in_place else {}
            if kind == "backward":
                lay_out(graph, examples)
            compiled = self._compile_graph(graph, self._context(kind, updates))
            settled = kind == "backward" and not isinstance(compiled.call, LateGraph)
            if kind == "forward":
                report_strides(compiled.strides)
                self._forward = compiled
            made = KeptGraph(
                compiled.call, lazy_places(graph), tuple(updates.values()), laid_out(examples) if settled else {}
            )
            recording().graph(kind, made)
            if self._notes is not None:
                self._notes.graphs[kind] = made
            return made.boxed(behind=kind == "backward")

        return run

    def _context(self, kind: str, updates: Mapping[int, int]) -> GraphContext:
        """What the importer cannot see: which inputs are parameters, which results are saved, how saved tensors lie."""
        made = replace(self._base, kind=kind, updates=updates)
        context = TracingContext.try_get()
        metadata = context.fw_metadata if context is not None else None
        if kind == "forward":
            made = replace(made, partition=self._partition)
            if metadata is not None and context is not None and context.output_strides is not None:
                first = len(metadata.tokens) + metadata.tensors_saved_for_backwards_slice.start
                made = replace(made, first_saved=first)
        elif metadata is None:
            return made
        elif kind == "backward":
            parts = self._forward.parts if self._forward is not None else {}
            given = donated(metadata, parts)
            made = replace(
                made, donated=given, forward=self._forward, first_read=first_read(metadata), gates=self._gates
            )
        elif self._settled:
            written = {*metadata.mutated_inp_runtime_indices, *updates.values()}
            made = replace(made, static=frozenset(metadata.static_input_indices) - written)
        return made

    def _cut(self, joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Cut:
        """Forward and backward of a joint graph."""
        if self._in_place:
            raise WrittenElsewhere
        if self._limited is None:
            return _partition(joint, *args, **kwargs)
        cut, self._partition = self._limited(_partition, (expose_norms,), joint, *args, **kwargs)
        return cut


def traced_late(
    gm: fx.GraphModule, compile_graph: CompileGraph, settled: bool, overlaps: Overlaps, keeper: GraphKeeper | None
) -> Trace:  # fmt: skip
    """What traces a graph now that may be compiled later, and kept then as ``ahead_of_time`` does."""

    def trace(args: Sequence[Any]) -> list[Traced]:
        late: list[LateGraph] = []
        notes = GraphNotes(overlaps)
        rows: list[str] = []

        def text() -> list[str]:
            rows.extend(graph_text(gm, args))
            return rows

        kept = address_in(keeper, text) is not None

        def keep(graph: fx.GraphModule, context: GraphContext) -> CompiledGraph:
            late.append(LateGraph(graph, context))
            return CompiledGraph(late[-1])

        tracing = _Tracing(keep, None, GraphContext(), None, notes if kept else None, settled=settled, in_place=False)
        whole = tracing.traced(gm, args)

        def compiled(sizes: Sizes, remark: str) -> Callable[..., Any]:
            (only,) = late
            only.program = compile_graph(only.graph, replace(only.context, sizes=sizes, remark=remark)).call
            address = address_in(keeper if kept else None, lambda: (*_known(settled, sizes, remark), *rows))
            if keeper is not None and address is not None:
                keeper.made(address, notes)
            return whole

        return [Traced(import_graph(g.graph, g.context), g.context.kind, compiled) for g in late]

    return trace


def judged(
    gm: fx.GraphModule, like: Sequence[Any], judge: Callable[[], dict[int, Traced] | Refusal], keeper: GraphKeeper | None
) -> dict[int, Traced] | Refusal:  # fmt: skip
    """Whether a graph is one function of every image, as ``judge`` finds it, or found it in an earlier process for such inputs."""
    address = address_in(keeper, lambda: ("in pieces", *graph_text(gm, like)))
    if keeper is None or address is None:
        return judge()
    known = keeper.verdict(address)
    if known is not None:
        return Refusal(known) if known else {}
    found = judge()
    keeper.judge(address, found.reason if isinstance(found, Refusal) else "")
    return found


def _known(settled: bool, sizes: Sizes, remark: str) -> tuple[str, ...]:
    return (f"settled {settled}", f"{sizes} {remark}")


def moving(
    gm: fx.GraphModule, inputs: Sequence[Any], compile_graph: CompileGraph, settled: bool, names: Mapping[str, str],
    overlaps: Overlaps, later: Later | None, keeper: GraphKeeper | None = None,
) -> Moving | Refusal:  # fmt: skip
    """One program for all sizes of a graph, traced with symbols for them, to be compiled when it is first wanted; or why there is none.

    Args:
        names: where the user finds each symbol.
        later: has programs made behind the calls.
        others: see ``ahead_of_time``.

    Raises:
        TraceAnew: Dynamo is to trace once more.
    """
    if TracingContext.try_get() is not None:  # else Dynamo has its guards
        for environment in _environments(inputs):
            _made_constant(inputs, few(environment))
    symbolic = _with_symbols(gm, inputs)
    address = address_in(keeper, lambda: (f"moving, settled {settled}", f"{names}", *graph_text(gm, symbolic)))

    def traced(given: Sequence[Any]) -> Moving | Refusal:
        notes = None if address is None else GraphNotes(overlaps)
        made = _traced_with_symbols(gm, given, compile_graph, settled, names, overlaps, later, notes)
        if made is None:  # with other guards, which are part of the address
            return moving(gm, given, compile_graph, settled, names, overlaps, later, keeper)
        if keeper is not None and address is not None and notes is not None and isinstance(made, Moving):
            notes.moving = made
            keeper.made(address, notes)
        return made

    found = [] if keeper is None or address is None else keeper.found(address)
    overlaps.matter |= any(kept.apart for kept, _ in found)
    if not found or overlaps.traced:
        return traced(inputs)
    # Dynamo has forgotten what moves in its inputs when this is asked for.
    return KeptMoving([(kept.sizes, whole) for kept, whole in found], lambda: traced(symbolic))


def _traced_with_symbols(
    gm: fx.GraphModule, inputs: Sequence[Any], compile_graph: CompileGraph, settled: bool, names: Mapping[str, str],
    overlaps: Overlaps, later: Later | None, notes: GraphNotes | None,
) -> Moving | Refusal | None:  # fmt: skip
    """As ``moving``; None if sizes have become constants of Dynamo's trace, so that another one is for the others."""
    late: list[LateGraph] = []
    one: OneSize | None = None

    def keep(graph: fx.GraphModule, context: GraphContext) -> CompiledGraph:
        late.append(LateGraph(graph, context))
        return CompiledGraph(late[-1])

    environments = _environments(inputs)
    with contextlib.ExitStack() as asked:
        conditions = [asked.enter_context(asked_sizes(environment)) for environment in environments]
        try:
            tracing = _Tracing(keep, None, GraphContext(), overlaps, notes, settled=settled, in_place=False)
            with warnings.catch_warnings():  # of where in the network the condition is asked, if it is in its backward
                warnings.filterwarnings("ignore", "Error detected in ")
                whole = tracing.traced(gm, inputs)
        except OneSize as e:
            one = e
    if one is not None:
        # Else Dynamo has its trace, and its guards.
        if TracingContext.try_get() is not None:
            set_one_apart(str(one))
            if _made_constant(inputs, one.sizes):
                return None
        return Refusal(f"the trace for all sizes depends on one: {str(one).splitlines()[0]}")
    if overlaps.traced:
        return Refusal("inputs lie in each other, and some are written")
    kinds = {graph.context.kind: graph for graph in late}
    first, backward = kinds.get("forward") or kinds.get("inference"), kinds.get("backward")
    if first is None or len(late) != len(kinds) or (backward is None) != (first.context.kind == "inference"):
        return Refusal(f"it is {len(late)} graphs")
    graphs = [first.graph] if backward is None else [first.graph, backward.graph]
    if not symbols(first.graph):
        return Refusal("the trace for all sizes has none: the graph takes each for a constant")
    beyond = tuple(c for graph in graphs for c in branches(graph))
    if TracingContext.try_get() is not None and (condition := only_beyond_one(first.graph, beyond)) is not None:
        set_one_apart(str(condition))
    found = (*(c for asked_for in conditions for c in asked_for), *beyond)
    under = tuple(dict.fromkeys(found))
    context = replace(first.context, conditions=under)
    try:
        if backward is not None:
            context_behind = replace(backward.context, conditions=under)
            backward.program = behind = Programs(backward.graph, context_behind, compile_graph, names)
            sizes = MovingSizes(first.graph, context, compile_graph, names, behind)
        else:
            sizes = MovingSizes(first.graph, context, compile_graph, names, later=later)
    except Unsupported as e:
        return Refusal(str(e).splitlines()[0])
    first.program = sizes
    return Moving(sizes, whole)


def _environments(inputs: Sequence[Any]) -> set[Any]:
    return {number.node.shape_env for x in inputs for number in _numbers_of(x) if is_symbolic(number)}


def _made_constant(inputs: Sequence[Any], sizes: Collection[Any]) -> bool:
    """Whether some sizes of inputs have become constants in Dynamo's trace, beside others that move.

    What a linear layer reads of images that are flattened is of one height and width, but of any number.
    """
    numbers = [n for x in inputs for n in _numbers_of(x) if isinstance(n, torch.SymInt) and n.node.expr.is_symbol]
    fixed = [n for n in numbers if n.node.expr in sizes]
    if not fixed or all(n.node.expr in sizes for n in numbers):
        return False
    for number in fixed:
        int(number)  # a guard
    return True


def _with_symbols(gm: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """The inputs as Dynamo traced them: its tensors without data, whose sizes are symbols."""
    places = gm.graph.find_nodes(op="placeholder")
    return [
        place.meta.get("example_value", x) if isinstance(x, torch.Tensor) else x
        for place, x in zip(places, inputs, strict=True)
    ]


def _fake_mode(gm: fx.GraphModule, inputs: Sequence[Any]) -> FakeTensorMode:
    """What a graph is traced in when Dynamo has ended."""
    known = detect_fake_mode(inputs) if any(map(is_symbolic, inputs)) else None
    return known or constant_sizes(gm)


def _numbers_of(x: Any) -> tuple[Any, ...]:
    return (*x.shape, *x.stride()) if isinstance(x, torch.Tensor) else (x,)


def _partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Cut:
    """PyTorch's minimum cut, over a joint graph that shows what is cheap to compute again."""
    results = kwargs["num_fwd_outputs"]
    most = int(GOAL * eager_peak(joint.graph, results))
    expose_norms(joint)
    keep_random(joint)
    recompute_cheap(joint, results)
    with _AS_WRITTEN:
        forward, backward = min_cut_rematerialization_partition(joint, *args, **kwargs)
    rematerialize_large(forward, backward, results, most)
    return forward, backward
