"""Capture through TorchDynamo and AOTAutograd: a Dynamo backend around a function that compiles one ATen graph."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from dcir.frontends.torch.admission import check_graph, of_unknown_size
from dcir.frontends.torch.ahead_of_time import ahead_of_time, judged, moving, traced_late
from dcir.frontends.torch.arguments import without_classes
from dcir.frontends.torch.constant_sizes import is_symbolic
from dcir.frontends.torch.context import CompileGraph, GraphContext, Sizes
from dcir.frontends.torch.gathered import is_gathered, is_written_uncounted
from dcir.frontends.torch.kept.graphs import GraphKeeper
from dcir.frontends.torch.kept.recording import is_noting, recording
from dcir.frontends.torch.kept.unguarded import unseen_code
from dcir.frontends.torch.overlapping_inputs import Overlaps
from dcir.frontends.torch.partition.cut import Limited
from dcir.frontends.torch.recurrent import lower_layers
from dcir.frontends.torch.shapes.batch_buckets import Trace
from dcir.frontends.torch.shapes.moving_sizes import Later
from dcir.frontends.torch.shapes.size_one import hold_for_one
from dcir.frontends.torch.shapes.specialize_shapes import BySize, OnSizes
from dcir.frontends.torch.sparse_lookups import DENSE, SPARSE, sparse_lookups, split_off
from dcir.frontends.torch.tape import choosing
from dcir.frontends.torch.wrappers import inline_marked
from dcir.frontends.torch.written_inputs import forget_marks
from dcir.ir.refusal import Refusal
from dcir.user_code import is_users

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
    keeper: GraphKeeper | None = None,
) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend for ``torch.compile``: AOTAutograd functionalises and differentiates, ``compile_graph`` does the rest.

    ``on_break`` hears of every graph that ends at a graph break. ``limited`` cuts joint graphs under a limit of memory.
    ``on_plain`` hears why a graph is left to PyTorch, and may refuse that.
    A graph with symbolic sizes is specialised to at most ``shape_limit`` combinations of them; ``on_sizes`` hears of each, and
    ``inputs`` are names of the positional arguments to show. With ``own_first`` the first of them may have programs of their own where
    those are much faster than one for all sizes. Calls with further combinations run in torch, or with ``strict`` are
    refused. With ``later`` a program for all sizes is made behind the calls, in inference. ``keeper`` keeps what graphs become for other
    processes.
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
        kept_by = None if gathered else keeper
        overlaps = Overlaps(gm, on_plain)
        recording().overlaps(overlaps)
        if overlaps.placed:
            recording().refuse("it counts in the storage of inputs")
        if any(is_symbolic(x) for x in example_inputs):

            def specialised(
                graph: fx.GraphModule, args: Sequence[Any], sizes: Sizes, remark: str
            ) -> Callable[..., Any]:
                context = GraphContext(sizes=sizes, remark=remark, gathered=gathered)
                return ahead_of_time(graph, args, compile_graph, limited, settled, context, overlaps, kept_by)

            def traced(graph: fx.GraphModule) -> Trace:
                return traced_late(graph, compile_graph, settled, overlaps, kept_by)

            by_size = BySize(
                gm, example_inputs, specialised, traced, shape_limit, on_sizes, inputs, overlaps.of, strict=strict,
                own_first=own_first, judged=functools.partial(judged, keeper=kept_by),
                noting=recording().under_way if is_noting() else contextlib.nullcontext,
            )  # fmt: skip
            recording().sizes(by_size)
            if overlaps.traced:
                by_size.moving = Refusal("inputs lie in each other, and some are written")
            elif not by_size.only_batch:
                by_size.moving = moving(
                    gm, example_inputs, compile_graph, settled, by_size.names, overlaps, later, kept_by
                )
            return choosing(by_size)

        def at_once(args: Sequence[Any]) -> Callable[..., Any]:
            context = GraphContext(gathered=gathered)
            return ahead_of_time(gm, args, compile_graph, limited, settled, context, overlaps, kept_by)

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
