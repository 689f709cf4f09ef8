"""Capture through TorchDynamo and AOTAutograd: a Dynamo backend around a function that compiles one ATen graph."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, tracing
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dcir.frontends.torch.admission import check_graph, of_unknown_size
from dcir.frontends.torch.arguments import lazy_places, without_classes, write_out
from dcir.frontends.torch.as_eager import decomposed_as_eager
from dcir.frontends.torch.decompose import decompositions
from dcir.frontends.torch.importer import DONATED, FIRST_SAVED, STATIC, UPDATES, import_graph
from dcir.frontends.torch.overlapping import gradients_of_overlapping_outputs
from dcir.frontends.torch.partition.cut import Limited
from dcir.frontends.torch.partition.donation import DonatedSpaces, Donation
from dcir.frontends.torch.partition.expose_norms import expose_norms
from dcir.frontends.torch.partition.recompute import recompute_cheap
from dcir.frontends.torch.partition.rematerialize_large import GOAL, eager_peak, rematerialize_large
from dcir.frontends.torch.recurrent import keep_long_layers
from dcir.frontends.torch.shapes.batch_buckets import Trace, Traced
from dcir.frontends.torch.shapes.specialize_shapes import BySize, OnSizes, Sizes
from dcir.frontends.torch.wrappers import inline_marked
from dcir.frontends.torch.written_inputs import WrittenElsewhere, forget_marks, updates_at_the_end
from dcir.user_code import is_users

TOGETHER = "dcir_together"
"""Key of a graph's ``meta``: a number that a forward and its backward have in common."""
SIZES = "dcir_sizes"
"""Key of a graph's ``meta``: pairs of (place, size) of the symbolic sizes that it was specialised to."""
REMARK = "dcir_remark"
"""Key of a graph's ``meta``: how it comes to be compiled for those sizes."""
BUCKET_CUT = (
    "a bucket of DistributedDataParallel is full (torch._dynamo.config.optimize_ddp=False leaves the graph whole)", ""
)  # fmt: skip
"""What is said of the end of a graph that no code of the user's asks for: gradients of the next one are sent meanwhile."""
_NUMBERS = itertools.count()
# Made once: each patch leaves a variable in the thread's context for ever.
_AS_WRITTEN = torch._functorch.config.patch(cse=False)
# The first forward writes what it keeps to where its backward wants it.
_BOTH_AT_ONCE = torch._functorch.config.patch(force_non_lazy_backward_lowering=True)


Parts = Mapping[int, tuple[int, int, int]]


@dataclass(frozen=True)
class CompiledGraph:
    """What became of an ATen graph.

    Attributes:
        call: from a list of arguments to a list of results.
        strides: of the results; None for those that are no tensors, or are laid out as the graph says.
        parts: where the results lie that lie in buffers of the call: number of the buffer, byte offset, size of the buffer.
        place: has results written into blocks that a backward uses for other things, too.
        spaces: the blocks that a backward's arguments lie in, and are overwritten in.
    """

    call: Callable[[list[Any]], list[Any]]
    strides: tuple[tuple[int, ...] | None, ...] = ()
    parts: Parts = field(default_factory=dict)
    place: Callable[[Any], None] | None = None
    spaces: DonatedSpaces | None = None


@dataclass(frozen=True)
class Taped:
    """One run of a compiled graph: what ran, on what, with what results."""

    program: Any
    inputs: tuple[Any, ...]
    results: tuple[Any, ...]


class _Tape(threading.local):
    rows: list[Taped] | None = None
    run = 0


_TAPE = _Tape()


def programs_run() -> int:
    """How many compiled graphs ran in this thread so far."""
    return _TAPE.run


@contextlib.contextmanager
def taping() -> Iterator[list[Taped]]:
    """The runs of compiled graphs in this thread, while this context is open."""
    before, _TAPE.rows = _TAPE.rows, []
    try:
        yield _TAPE.rows
    finally:
        _TAPE.rows = before


# (graph, "forward" | "backward" | "inference") -> its compiled form
CompileGraph = Callable[[fx.GraphModule, str], CompiledGraph]
# (reason, place in the user's program) of a graph break
OnBreak = Callable[[str, str], None]
OnPlain = Callable[[str], None]
"""Called with what a graph is given that only PyTorch can compute with."""


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
) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend for ``torch.compile``: AOTAutograd functionalises and differentiates, ``compile_graph`` does the rest.

    ``on_break`` hears of every graph that ends at a graph break. ``limited`` cuts joint graphs under a limit of memory.
    ``on_plain`` hears why a graph is left to PyTorch, and may refuse that.
    A graph with symbolic sizes is specialised to at most ``shape_limit`` combinations of them; ``on_sizes`` hears of each, and
    ``inputs`` are names of the positional arguments to show. Calls with further combinations run in torch, or with ``strict`` are
    refused.
    """

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        ended = getattr(gm, "compile_subgraph_reason", None)
        if on_break is not None and ended is not None and ended.graph_break:
            on_break(*break_text(ended))
        reason = check_graph(gm, inputs) or of_unknown_size(gm)
        if reason is not None:
            if on_plain is not None:
                on_plain(reason)
            return gm
        inline_marked(gm)
        keep_long_layers(gm)
        return without_classes(compiled(gm, example_inputs), gm)

    def compiled(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        # Dynamo forgets what its inputs are once this returns.
        forget_marks(gm)
        settled = not any(map(_is_written_uncounted, gm.graph.find_nodes(op="placeholder")))
        if any(_is_symbolic(x) for x in example_inputs):

            def specialised(
                graph: fx.GraphModule, args: Sequence[Any], sizes: Sizes, remark: str
            ) -> Callable[..., Any]:
                return _ahead_of_time(graph, args, compile_graph, limited, settled, sizes, remark)

            def traced(graph: fx.GraphModule) -> Trace:
                return _traced(graph, compile_graph, settled)

            return _taped(BySize(gm, example_inputs, specialised, traced, shape_limit, on_sizes, inputs, strict=strict))
        return _ahead_of_time(gm, example_inputs, compile_graph, limited, settled)

    return backend


def _taped(program: BySize) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if _TAPE.rows is not None:
            _TAPE.rows.append(Taped(program, (), ()))  # the choice is part of what ran
        return program(*args)

    return call


def break_text(ended: Any) -> tuple[str, str]:
    """First line of Dynamo's reason for a graph break, and the user's line."""
    if str(ended.reason).startswith("DDPOptimizer"):
        return BUCKET_CUT
    lines = [line.strip() for line in str(ended.reason).strip().splitlines() if line.strip()]
    shown = next((line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:")), "")
    frames = list(ended.user_stack or ())
    frame = next((f for f in reversed(frames) if is_users(f.filename)), frames[-1] if frames else None)
    place = f"({frame.filename.rsplit('/', 1)[-1]}:{frame.lineno})" if frame is not None else ""
    return shown or (lines[0] if lines else "graph break"), place


def _is_symbolic(x: Any) -> bool:
    if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
        return True
    return isinstance(x, torch.Tensor) and any(isinstance(d, torch.SymInt) for d in (*x.shape, *x.stride()))


def _ahead_of_time(
    gm: fx.GraphModule, inputs: Sequence[Any], compile_graph: CompileGraph, limited: Limited | None,
    settled: bool, sizes: Sizes = (), remark: str = "",
) -> Callable[..., Any]:  # fmt: skip
    wants_gradients = torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in (*inputs, *gm.parameters())
    )
    traced = functools.partial(_traced_ahead, gm, inputs, compile_graph, limited, settled, sizes, remark)
    if settled and not wants_gradients:
        with contextlib.suppress(WrittenElsewhere):
            return traced(in_place=True)
    return traced(in_place=False)


def _traced_ahead(
    gm: fx.GraphModule, inputs: Sequence[Any], compile_graph: CompileGraph, limited: Limited | None,
    settled: bool, sizes: Sizes, remark: str, *, in_place: bool,
) -> Callable[..., Any]:  # fmt: skip
    """AOTAutograd over Dynamo's graph.

    Args:
        in_place: whether the graph itself writes the inputs that change, which is tried in inference; else AOTAutograd does so
            when the graph is done.

    Raises:
        WrittenElsewhere: the graph cannot write them.
    """
    number = next(_NUMBERS)
    parts: Parts = {}
    place: Callable[[Any], None] | None = None
    donation = Donation()

    def compiler(kind: str) -> Any:
        def run(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
            nonlocal parts, place
            written = updates_at_the_end(graph, kind) if in_place else ()
            graph.meta[TOGETHER] = number
            graph.meta[SIZES], graph.meta[REMARK] = sizes, remark
            _annotate(graph, kind, examples, parts)
            if not settled:
                graph.meta.pop(STATIC, None)
            compiled = compile_graph(graph, kind)
            program = compiled.call
            if kind == "forward":
                _report_strides(compiled.strides)
                parts, place = compiled.parts, compiled.place
                if parts:
                    program = donation.forward(program)
            if compiled.spaces is not None:
                program = donation.backward(program, compiled.spaces)
                if place is not None:
                    place(compiled.spaces)

            lazy = lazy_places(graph)

            shown = -len(written) or None

            def boxed(args: list[Any]) -> list[Any]:
                _TAPE.run += 1
                write_out(args, lazy)
                results = program(args)[:shown]
                if written:
                    torch.autograd.graph.increment_version([args[i] for i in written])
                if _TAPE.rows is not None:
                    _TAPE.rows.append(Taped(program, tuple(args), tuple(results)))
                args.clear()  # saved activations end here, not when the caller's frame does
                return results

            boxed._boxed_call = True  # type: ignore[attr-defined]
            return boxed

        return run

    # Where DistributedDataParallel has Dynamo cut a graph in parts, each part is called once with fake tensors, for the sake of the
    # next one. Whether it knows how to answer that call, as AOTAutograd's results do, is read from this count.
    counters["aot_autograd"]["total"] += 1
    # AOTAutograd leaves what it finds out about the inputs in the context that Dynamo opened, or in ours.
    context = contextlib.nullcontext() if TracingContext.try_get() is not None else tracing(TracingContext(None))
    with context, gradients_of_overlapping_outputs(), decomposed_as_eager(), _BOTH_AT_ONCE:
        compiled: Callable[..., Any] = aot_module_simplified(
            gm,
            list(inputs),
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            decompositions=decompositions(),
            partition_fn=functools.partial(_cut, limited, in_place=in_place),
            keep_inference_input_mutations=in_place,
        )
    return compiled


class _LateForward:
    """A traced graph, compiled later than AOTAutograd thinks."""

    def __init__(self, graph: fx.GraphModule, kind: str) -> None:
        self.graph, self.kind = graph, kind
        self.program: Callable[[list[Any]], list[Any]] | None = None

    def __call__(self, args: list[Any]) -> list[Any]:
        assert self.program is not None
        return self.program(args)


def _traced(gm: fx.GraphModule, compile_graph: CompileGraph, settled: bool) -> Trace:
    def trace(args: Sequence[Any]) -> list[Traced]:
        late: list[_LateForward] = []

        def keep(graph: fx.GraphModule, kind: str) -> CompiledGraph:
            late.append(_LateForward(graph, kind))
            return CompiledGraph(late[-1])

        whole = _traced_ahead(gm, args, keep, None, settled, (), "", in_place=False)

        def compiled(sizes: Sizes, remark: str) -> Callable[..., Any]:
            (only,) = late
            only.graph.meta[SIZES], only.graph.meta[REMARK] = sizes, remark
            only.program = compile_graph(only.graph, only.kind).call
            return whole

        return [Traced(import_graph(g.graph), g.kind, compiled) for g in late]

    return trace


def _cut(limited: Limited | None, joint: fx.GraphModule, *args: Any, in_place: bool, **kwargs: Any) -> Any:
    """Forward and backward of a joint graph."""
    if in_place:
        raise WrittenElsewhere
    if limited is None:
        return _partition(joint, *args, **kwargs)
    return limited(_partition, (expose_norms,), joint, *args, **kwargs)


def _partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """PyTorch's minimum cut, over a joint graph that shows what is cheap to compute again."""
    results = kwargs["num_fwd_outputs"]
    most = int(GOAL * eager_peak(joint.graph, results))
    expose_norms(joint)
    recompute_cheap(joint, results)
    with _AS_WRITTEN:
        forward, backward = min_cut_rematerialization_partition(joint, *args, **kwargs)
    rematerialize_large(forward, backward, results, most)
    return forward, backward


def _annotate(graph: fx.GraphModule, kind: str, examples: Sequence[Any], parts: Parts) -> None:
    """Note what the importer cannot see: which inputs are parameters, which results are saved, how saved tensors lie.

    ``parts`` says how the results of the forward share memory.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if kind == "inference" and metadata is not None:
        written = {*metadata.mutated_inp_runtime_indices, *graph.meta.get(UPDATES, {}).values()}
        graph.meta[STATIC] = frozenset(metadata.static_input_indices) - written
    if kind == "forward" and context is not None and metadata is not None and context.output_strides is not None:
        graph.meta[FIRST_SAVED] = len(metadata.tokens) + metadata.tensors_saved_for_backwards_slice.start
    if kind == "backward" and metadata is not None:
        # AOTAutograd's own part in this would be to refuse a second backward through the same graph.
        found, metadata.bw_donated_idxs = metadata.bw_donated_idxs or [], []
        first = _first_saved()
        # Nobody reads a buffer that shows in such results alone.
        shared = {where[0] for number, where in parts.items() if number - first not in found}
        owned = {i: parts[first + i] for i in found if first + i in parts}
        graph.meta[DONATED] = {i: where for i, where in owned.items() if where[0] not in shared}
    if kind == "backward":
        places = (n for n in graph.graph.nodes if n.op == "placeholder")
        for node, example in zip(places, examples, strict=True):
            if isinstance(example, torch.Tensor) and example.stride() != node.meta["val"].stride():
                node.meta["val"] = example


def _first_saved() -> int:
    """How much greater the number of a saved result of the forward is than that of the same argument of the backward."""
    context = TracingContext.try_get()
    assert context is not None and context.fw_metadata is not None
    metadata = context.fw_metadata
    saved = metadata.tensors_saved_for_backwards_slice.start
    return int(len(metadata.tokens) + saved - metadata.num_symints_saved_for_bw)


def _is_written_uncounted(node: fx.Node) -> bool:
    """Whether nobody counts the writes to an input of Dynamo's graph.

    That is so of parameters that ``fully_shard`` gathers for every call, and of the parts of tensors that AOTAutograd takes apart: a
    write to one is counted in the whole.
    """
    argument = node.meta.get("grapharg")
    source = getattr(argument, "source", None)
    if source is not None and source.guard_source.is_fsdp_module():
        return True
    return is_traceable_wrapper_subclass(getattr(argument, "example", None))


def _report_strides(strides: Sequence[tuple[int, ...] | None]) -> None:
    """Tell AOTAutograd how the forward lays out what the backward will read."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None and any(s is not None for s in strides):
        tokens = len(context.fw_metadata.tokens) if context.fw_metadata is not None else 0
        context.output_strides.extend(strides[tokens:])  # those that order effects come before the results it counts
