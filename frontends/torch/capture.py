"""Capture through TorchDynamo and AOTAutograd: a Dynamo backend around a function that compiles one ATen graph."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, tracing

from dcir.errors import Unsupported
from dcir.frontends.torch.admission import check_graph, of_unknown_size
from dcir.frontends.torch.arguments import lazy_places, without_classes
from dcir.frontends.torch.as_eager import decomposed_as_eager
from dcir.frontends.torch.as_laid_out import laid_out
from dcir.frontends.torch.constant_sizes import constant_sizes, is_symbolic, without_unknown_sizes
from dcir.frontends.torch.context import CompiledGraph, CompileGraph, GraphContext, Sizes
from dcir.frontends.torch.decompose import decompositions
from dcir.frontends.torch.forward_and_backward import donated, first_read, lay_out, report_strides
from dcir.frontends.torch.gates import gates_of_call
from dcir.frontends.torch.gathered import is_gathered, is_written_uncounted
from dcir.frontends.torch.gpu_forms import gpu_forms
from dcir.frontends.torch.importer import import_graph
from dcir.frontends.torch.kept.recording import KeptGraph, is_noting, recording
from dcir.frontends.torch.kept.unguarded import unseen_code
from dcir.frontends.torch.late_graph import LateGraph
from dcir.frontends.torch.overlapping import gradients_of_overlapping_outputs
from dcir.frontends.torch.overlapping_inputs import Overlaps
from dcir.frontends.torch.partition.cut import Cut, Limited, Partition
from dcir.frontends.torch.partition.expose_norms import expose_norms
from dcir.frontends.torch.partition.keep_random import keep_random
from dcir.frontends.torch.partition.recompute import recompute_cheap
from dcir.frontends.torch.partition.rematerialize_large import GOAL, eager_peak, rematerialize_large
from dcir.frontends.torch.recurrent import lower_layers
from dcir.frontends.torch.shapes.batch_buckets import Trace, Traced
from dcir.frontends.torch.shapes.conditions import OneSize, asked_sizes, branches
from dcir.frontends.torch.shapes.given_sizes import symbols
from dcir.frontends.torch.shapes.moving_sizes import Later, Moving, MovingSizes
from dcir.frontends.torch.shapes.programs import Programs
from dcir.frontends.torch.shapes.size_one import hold_for_one, set_one_apart
from dcir.frontends.torch.shapes.specialize_shapes import BySize, OnSizes, trains
from dcir.frontends.torch.sparse_lookups import DENSE, SPARSE, sparse_lookups, split_off
from dcir.frontends.torch.tape import choosing
from dcir.frontends.torch.wrappers import inline_marked
from dcir.frontends.torch.written_inputs import WrittenElsewhere, forget_marks, updates_at_the_end
from dcir.ir.refusal import Refusal
from dcir.ops.analysis.size_axes import MOST_AXES
from dcir.user_code import is_users

_NUMBERS = itertools.count()
# Made once: each patch leaves a variable in the thread's context for ever.
_AS_WRITTEN = torch._functorch.config.patch(cse=False)
# The first forward writes what it keeps to where its backward wants it.
_BOTH_AT_ONCE = torch._functorch.config.patch(force_non_lazy_backward_lowering=True)


def new_pair() -> int:
    """A number that a forward and its backward have in common, and no others."""
    return next(_NUMBERS)


# (reason, place in the user's program) of a graph break
OnBreak = Callable[[str, str], None]
OnPlain = Callable[..., None]
"""Called with what a graph is given or gives that only PyTorch can compute with, and perhaps with what to try."""


def dynamo_backend(
    compile_graph: CompileGraph,
    on_break: OnBreak | None = None,
    limited: Limited | None = None,
    *,
    shape_limit: int = 16,
    on_sizes: OnSizes | None = None,
    on_plain: OnPlain | None = None,
    inputs: Sequence[str] = (),
    strict: bool = False,
    own_first: bool = True,
    later: Later | None = None,
) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend for ``torch.compile``: AOTAutograd functionalises and differentiates, ``compile_graph`` does the rest.

    ``on_break`` hears of every graph that ends at a graph break. ``limited`` cuts joint graphs under a limit of memory.
    ``on_plain`` hears why a graph is left to PyTorch, and may refuse that.
    A graph with symbolic sizes is specialised to at most ``shape_limit`` combinations of them; ``on_sizes`` hears of each, and
    ``inputs`` are names of the positional arguments to show. With ``own_first`` the first of them may have programs of their own where
    those are much faster than one for all sizes. Calls with further combinations run in torch, or with ``strict`` are
    refused. With ``later`` a program for all sizes is made behind the calls, in inference.
    """

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        notes = recording()
        notes.begin()
        if any(isinstance(_attribute(gm, node), torch.Tensor) for node in gm.graph.find_nodes(op="get_attr")):
            notes.refuse("the graph holds tensors of its own")
        unseen = unseen_code(gm)
        if unseen is not None:
            notes.refuse(unseen)
        ended = getattr(gm, "compile_subgraph_reason", None)
        breaks = ended is not None and ended.graph_break
        hold_for_one(gm, breaks=breaks)
        if breaks:
            notes.refuse("the graph breaks")
        if on_break is not None and ended is not None and breaks:
            on_break(*break_text(ended))
        reason = check_graph(gm, inputs) or of_unknown_size(gm)
        if reason is not None:
            notes.refuse(reason)
            if on_plain is not None:
                on_plain(reason)
            return gm
        inline_marked(gm)
        lower_layers(gm)
        lookups = sparse_lookups(gm) if torch.is_grad_enabled() else []
        if lookups:
            return beside_torch(gm, example_inputs, lookups)
        made = compiled(gm, example_inputs)
        plain = without_classes(made, gm)
        if plain is not made:
            notes.refuse("arguments are of subclasses")
        return plain

    def beside_torch(
        gm: fx.GraphModule, example_inputs: Sequence[Any], lookups: Sequence[fx.Node]
    ) -> Callable[..., Any]:
        recording().refuse(SPARSE)
        if on_plain is not None:
            on_plain(SPARSE, DENSE)
        split = split_off(gm, lookups)
        if split is None:
            return gm
        return split.around(without_classes(compiled(split.rest, [*example_inputs, *split.examples]), split.rest))

    def compiled(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        # Dynamo forgets what its inputs are once this returns.
        forget_marks(gm)
        places = gm.graph.find_nodes(op="placeholder")
        settled = not any(map(is_written_uncounted, places))
        gathered = any(map(is_gathered, places))
        if gathered:
            recording().refuse("parameters are gathered for every call")
        overlaps = Overlaps(gm, on_plain)
        recording().overlaps(overlaps)
        if any(is_symbolic(x) for x in example_inputs):

            def specialised(
                graph: fx.GraphModule, args: Sequence[Any], sizes: Sizes, remark: str
            ) -> Callable[..., Any]:
                context = GraphContext(sizes=sizes, remark=remark, gathered=gathered)
                return _ahead_of_time(graph, args, compile_graph, limited, settled, context, overlaps)

            def traced(graph: fx.GraphModule) -> Trace:
                return _traced(graph, compile_graph, settled)

            by_size = BySize(
                gm, example_inputs, specialised, traced, shape_limit, on_sizes, inputs, overlaps.of, strict=strict,
                own_first=own_first, noting=recording().under_way if is_noting() else contextlib.nullcontext,
            )  # fmt: skip
            recording().sizes(by_size)
            if overlaps.traced:
                by_size.moving = Refusal("inputs lie in each other, and some are written")
            elif not by_size.only_batch:
                move = by_size.how_many_move(example_inputs)
                by_size.moving = (
                    _moving(gm, example_inputs, compile_graph, settled, by_size.names, overlaps, later)
                    if move <= MOST_AXES
                    else Refusal(f"{move} sizes move")
                )
            return choosing(by_size)

        def at_once(args: Sequence[Any]) -> Callable[..., Any]:
            context = GraphContext(gathered=gathered)
            return _ahead_of_time(gm, args, compile_graph, limited, settled, context, overlaps)

        return overlaps.chosen(gm, at_once, example_inputs)

    return backend


def _attribute(gm: fx.GraphModule, node: fx.Node) -> Any:
    value: Any = gm
    for name in str(node.target).split("."):
        value = getattr(value, name, None)
    return value


def break_text(ended: Any) -> tuple[str, str]:
    """First line of Dynamo's reason for a graph break, and the user's line."""
    lines = [line.strip() for line in str(ended.reason).strip().splitlines() if line.strip()]
    shown = next((line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:")), "")
    frames = list(ended.user_stack or ())
    frame = next((f for f in reversed(frames) if is_users(f.filename)), frames[-1] if frames else None)
    place = f"({frame.filename.rsplit('/', 1)[-1]}:{frame.lineno})" if frame is not None else ""
    return shown or (lines[0] if lines else "graph break"), place


def _ahead_of_time(
    gm: fx.GraphModule, inputs: Sequence[Any], compile_graph: CompileGraph, limited: Limited | None,
    settled: bool, context: GraphContext, overlaps: Overlaps,
) -> Callable[..., Any]:  # fmt: skip
    if settled and not trains(gm, inputs):
        with contextlib.suppress(WrittenElsewhere):
            return _Tracing(compile_graph, limited, context, overlaps, settled=settled, in_place=True).traced(
                gm, inputs
            )
    return _Tracing(compile_graph, limited, context, overlaps, settled=settled, in_place=False).traced(gm, inputs)


class _Tracing:
    """One run of AOTAutograd over a graph of Dynamo's, and what its forward and its backward must know of each other.

    Args:
        compile_graph: compiles what AOTAutograd makes of the graph.
        limited: cuts a joint graph under a limit of memory.
        context: what is known of all graphs that are made here.
        overlaps: hears whether the graph writes inputs.
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
        *,
        settled: bool,
        in_place: bool,
    ) -> None:
        self._compile_graph, self._limited = compile_graph, limited
        self._base = replace(context, pair=new_pair())
        self._settled, self._in_place, self._overlaps = settled, in_place, overlaps
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
        known = TracingContext.try_get() is not None
        context = contextlib.nullcontext() if known else tracing(TracingContext(constant_sizes(gm)))
        with (
            context, without_unknown_sizes(gm, inputs), gradients_of_overlapping_outputs(), decomposed_as_eager(), gpu_forms(),
            _BOTH_AT_ONCE,
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
            return made.boxed()

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


def _traced(gm: fx.GraphModule, compile_graph: CompileGraph, settled: bool) -> Trace:
    def trace(args: Sequence[Any]) -> list[Traced]:
        late: list[LateGraph] = []

        def keep(graph: fx.GraphModule, context: GraphContext) -> CompiledGraph:
            late.append(LateGraph(graph, context))
            return CompiledGraph(late[-1])

        whole = _Tracing(keep, None, GraphContext(), settled=settled, in_place=False).traced(gm, args)

        def compiled(sizes: Sizes, remark: str) -> Callable[..., Any]:
            (only,) = late
            only.program = compile_graph(only.graph, replace(only.context, sizes=sizes, remark=remark)).call
            return whole

        return [Traced(import_graph(g.graph, g.context), g.context.kind, compiled) for g in late]

    return trace


def _moving(
    gm: fx.GraphModule, inputs: Sequence[Any], compile_graph: CompileGraph, settled: bool, names: Mapping[str, str],
    overlaps: Overlaps, later: Later | None,
) -> Moving | Refusal:  # fmt: skip
    """One program for all sizes of a graph, traced with symbols for them, to be compiled when it is first wanted; or why there is none.

    Raises:
        TraceAnew: Dynamo is to trace once more.
    """
    late: list[LateGraph] = []

    def keep(graph: fx.GraphModule, context: GraphContext) -> CompiledGraph:
        late.append(LateGraph(graph, context))
        return CompiledGraph(late[-1])

    environments = {number.node.shape_env for x in inputs for number in _numbers_of(x) if is_symbolic(number)}
    with contextlib.ExitStack() as asked:
        conditions = [asked.enter_context(asked_sizes(environment)) for environment in environments]
        try:
            tracing = _Tracing(keep, None, GraphContext(), overlaps, settled=settled, in_place=False)
            whole = tracing.traced(gm, inputs)
        except OneSize as e:
            set_one_apart(str(e))
            return Refusal(f"the trace for all sizes depends on one: {str(e).splitlines()[0]}")
    if overlaps.traced:
        return Refusal("inputs lie in each other, and some are written")
    kinds = {graph.context.kind: graph for graph in late}
    first, backward = kinds.get("forward") or kinds.get("inference"), kinds.get("backward")
    if first is None or len(late) != len(kinds) or (backward is None) != (first.context.kind == "inference"):
        return Refusal(f"it is {len(late)} graphs")
    graphs = [first.graph] if backward is None else [first.graph, backward.graph]
    if not symbols(first.graph):
        return Refusal("the trace for all sizes has none: the graph takes each for a constant")
    found = (*(c for asked_for in conditions for c in asked_for), *(c for graph in graphs for c in branches(graph)))
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
