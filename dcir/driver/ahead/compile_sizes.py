"""Compiling ahead of time for sizes within bounds: which programs it takes, or why it cannot be done.

Where nothing but a batch changes, it runs in pieces if the graph is shown to do the same to every image
(``analysis/batch_independence.py``). What else may change has one program for all sizes (``compile_moving.py``), or, where there is none,
one for each, up to the option ``shape_limit``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.batch_buckets import SIZES as PIECES
from dcir.driver.ahead.artefact import closed
from dcir.driver.ahead.compile import compile_exported, example_inputs
from dcir.driver.ahead.compile_moving import Names, SizedProgram, programs_for_all_sizes
from dcir.driver.ahead.sized_call import SizedCall
from dcir.driver.calls.dynamic_calls import parameters_of
from dcir.driver.session import Session
from dcir.dynamic import DynamicDim, DynamicInputs, check_size, parse_related
from dcir.errors import InvalidInput, OptionError, Unsupported
from dcir.frontends.onnx import OnnxModule
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.export import Exported, export_for_batches, export_inference
from dcir.frontends.torch.importer import import_graph
from dcir.frontends.torch.shapes.batch_buckets import SHOWN, difference, find_batch
from dcir.ir.refusal import Refusal
from dcir.runtime.sized_manifest import Dimension

Bounds = Mapping[str, tuple[int | None, int | None]]
"""From names of dimensions to their least and greatest size."""


@dataclass(frozen=True)
class Sized:
    """A network compiled for sizes within bounds.

    Attributes:
        dimensions: the sizes that may differ.
        batch: number of the dimension that is run in pieces, or -1.
        programs: the network for sizes of the dimensions.
    """

    dimensions: tuple[Dimension, ...]
    batch: int
    programs: tuple[SizedProgram, ...]


def dimensions_of(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], rows: DynamicInputs
) -> tuple[Dimension, ...]:
    """The dimensions that ``dynamic={...}`` names, held against an example call.

    Raises:
        OptionError: it names an input that is not there, is no tensor or has no such dimension; or bounds below 1.
        InvalidInput: the example lies outside the bounds.
    """
    names, _ = parameters_of(module.forward)
    tensors = [v for v in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(v, torch.Tensor)]
    found: list[tuple[str, DynamicDim, int, int]] = []
    seen: dict[str, tuple[str, int]] = {}
    for key, dims in rows.rows:
        at = key if isinstance(key, int) else names.index(key) if key in names else len(args)
        label = key if isinstance(key, str) else names[key] if key < len(names) else f"args[{key}]"
        value = kwargs.get(label) if at >= len(args) else args[at]
        if not isinstance(value, torch.Tensor):
            raise OptionError(
                f"input {label!r} of the example is no tensor, or not there",
                where="dynamic",
                hint="one of " + ", ".join(names),
            )
        number = next(i for i, t in enumerate(tensors) if t is value)
        for dim, known in dims:
            if not -value.ndim <= dim < value.ndim:
                raise OptionError(f"input {label} has no dimension {dim}: {list(value.shape)}", where="dynamic")
            check_size(label, dim % value.ndim, known, value.shape[dim], seen, "an example within the bounds")
            found.append((known.name or f"{label}[{dim % value.ndim}]", known, number, dim % value.ndim))
    return _gathered(found)


def dimensions_of_file(module: OnnxModule, bounds: Bounds) -> tuple[Dimension, ...]:
    """The dimensions of an ONNX file that have bounds.

    Raises:
        InvalidInput: a name that no dimension of an input has.
    """
    found: list[tuple[str, DynamicDim, int, int]] = []
    for number, spec in enumerate(module.input_specs):
        for dim, size in enumerate(spec.shape or ()):
            name = module.dim_names.get(size, size) if isinstance(size, str) else ""
            related = parse_related(name)
            if name in bounds:
                found.append((name, DynamicDim(name, *bounds[name]), number, dim))
            elif related is not None and related[0] in bounds:
                root, factor, summand = related
                follows = DynamicDim(root, *bounds[root], factor=factor, summand=summand)
                found.append((root, follows, number, dim))
    known = [name for name, *_ in found]
    unknown = [name for name in bounds if name not in known]
    if unknown:
        names = [name for name in module.dim_names.values() if name not in known]
        raise InvalidInput(
            f"no dimension of an input is named {', '.join(map(repr, unknown))}",
            details=[("named", ", ".join(dict.fromkeys((*known, *names))) or "none")],
            hint="--shape x=[b,3,224,224] gives names to the sizes of input x",
        )
    return _gathered(found)


def _gathered(found: Sequence[tuple[str, DynamicDim, int, int]]) -> tuple[Dimension, ...]:
    """One dimension per name, with all its places."""
    made: dict[str, Dimension] = {}
    for name, known, number, dim in found:
        least = 1 if known.least is None else known.least
        if least < 1 or (known.most is not None and known.most < least):
            raise OptionError(
                f"sizes in a compiled file begin at 1, the bounds of {name} are {known.bounds}", where="bounds"
            )
        # A name may stand without its bounds before it stands with them.
        before = replace(made.get(name, Dimension(name, least, known.most, ())), least=least, most=known.most)
        if known.related:
            more = (number, dim, known.factor, known.summand)
            made[name] = replace(before, related=tuple(dict.fromkeys((*before.related, more))))
        else:
            made[name] = replace(before, places=tuple(dict.fromkeys((*before.places, (number, dim)))))
    for name, d in made.items():
        if not d.places:
            raise OptionError(f"no dimension of an input is {name} itself", where="bounds", hint="name a size that is")
    return tuple(made.values())


def compile_file_for_sizes(module: OnnxModule, session: Session, bounds: Bounds) -> Sized:
    """Compile an ONNX module for sizes within bounds; raises what `compile_for_sizes` and `dimensions_of_file` do."""
    dimensions = dimensions_of_file(module, bounds)
    example = example_inputs(module, seed=0, sizes={d.name: d.least for d in dimensions})
    return compile_for_sizes(
        module.eval(),
        example,
        session,
        dimensions,
        inputs=[spec.name for spec in module.input_specs],
        outputs=[spec.original for spec in module.output_specs],
    )


def compile_for_sizes(
    module: nn.Module,
    args: Sequence[Any],
    session: Session,
    dimensions: tuple[Dimension, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] = (),
) -> Sized:
    """Compile the forward pass of a module for all sizes within bounds.

    Args:
        module: in the mode to compile.
        args, kwargs: an example call.
        session: options; receives the records of what was done.
        dimensions: the sizes that may differ; their places are numbers of tensors in the call.
        inputs, outputs: names to use instead of those of the captured graph.

    Raises:
        Unsupported: it would take too many programs, or the forward pass cannot be captured.
    """
    call, names = SizedCall(module, args, kwargs or {}, dimensions), Names(inputs, outputs)
    bounded = all(d.most is not None for d in dimensions)
    whole = Refusal("one has no upper bound") if not bounded else None
    if len(dimensions) > 1 and bounded:
        found = programs_for_all_sizes(call, session, names)
        if not isinstance(found, Refusal):
            return Sized(dimensions, -1, tuple(found))
        whole = found
    refusal = Refusal("few sizes are within the bounds")
    for batch, d in enumerate(dimensions):
        pieces = [s for s in PIECES if d.most is None or s <= d.most]
        pieces = [1, *pieces] if d.least == 1 else pieces
        if any(dim for _, dim in d.places) or d.related or (d.most is not None and d.most - d.least < len(pieces)):
            continue
        graphs = _in_pieces(call, batch, pieces, session.options.shape_limit)
        if not isinstance(graphs, Refusal):
            return Sized(dimensions, batch, tuple(_compiled(graphs, session, dimensions, batch, names)))
        refusal = graphs
    if whole is None:
        found = programs_for_all_sizes(call, session, names)
        if not isinstance(found, Refusal):
            return Sized(dimensions, -1, tuple(found))
        whole = found
    return Sized(dimensions, -1, tuple(_each(call, session, names, whole, refusal)))


def _each(
    call: SizedCall, session: Session, names: Names, whole: Refusal, in_pieces: Refusal
) -> Iterator[SizedProgram]:
    """A program for every combination of sizes, since there is none for all of them."""
    open_ones = [d.name for d in call.dimensions if d.most is None]
    total = math.prod(1 if d.most is None else d.most - d.least + 1 for d in call.dimensions)
    limit = session.options.shape_limit
    if open_ones or total > limit:
        many = (
            f"{', '.join(open_ones)} has no upper bound" if open_ones else f"{total} programs, shape_limit is {limit}"
        )
        raise Unsupported(
            "a file for these sizes would need too many programs",
            details=[("one for all", whole.reason), ("one each", many), ("in pieces", in_pieces.reason)],
            hint="narrower bounds, a higher shape_limit, or dcir.optimize(model, dynamic=...) in this process",
        )
    exported = {sizes: export_inference(call.module, *call.like(sizes)) for sizes in _combinations(call.dimensions)}
    graphs = ((sizes, e, closed(e)) for sizes, e in exported.items())
    return _compiled(graphs, session, call.dimensions, -1, names, whole.reason)


def _combinations(dimensions: Sequence[Dimension]) -> Iterator[tuple[int, ...]]:
    """All sizes of dimensions that have upper bounds."""
    return itertools.product(*(range(d.least, (d.most or d.least) + 1) for d in dimensions))


_Graph = tuple[tuple[int, ...], Exported, torch.fx.GraphModule]


def _in_pieces(call: SizedCall, batch: int, pieces: Sequence[int], limit: int) -> list[_Graph] | Refusal:
    """Graphs of all pieces, for all sizes of the other dimensions; or why there are none."""
    others = [d for i, d in enumerate(call.dimensions) if i != batch]
    if any(d.most is None for d in others):
        return Refusal("two dimensions have no upper bound")
    total = math.prod((d.most or 0) - d.least + 1 for d in others)
    if total * len(pieces) > limit:
        return Refusal(f"{total * len(pieces)} programs, shape_limit is {limit}")
    graphs: list[_Graph] = []
    for rest in _combinations(others):
        found = _pieces_of(call, batch, pieces, rest)
        if isinstance(found, Refusal):
            return found
        graphs += found
    return graphs


def _pieces_of(call: SizedCall, batch: int, pieces: Sequence[int], rest: tuple[int, ...]) -> list[_Graph] | Refusal:
    d = call.dimensions[batch]
    batched = [number for number, _ in d.places]

    def sizes(images: int) -> tuple[int, ...]:
        return (*rest[:batch], images, *rest[batch:])

    most = None if d.most is None else max(d.most, *SHOWN)
    try:
        program = export_for_batches(call.module, *call.like(sizes(3)), batched, most)
    except Unsupported as error:
        return Refusal(error.message)
    found = find_batch(program.graph_module)
    if isinstance(found, Refusal):
        return found
    wanted = sorted({*pieces, *SHOWN})
    exported = {n: export_inference(program, *call.like(sizes(n))) for n in wanted if n > 1}
    if 1 in pieces:  # torch has a trace of its own for it
        exported[1] = export_inference(call.module, *call.like(sizes(1)))
    first = exported[SHOWN[0]]
    states = len(first.state)
    if [i - states for i in found.tensors] != sorted(batched) or found.numbers:
        return Refusal("the batch is in other inputs, too")
    if any(e.result != first.result for e in exported.values()):
        return Refusal("a result that is no tensor changes with the batch")
    graphs = {n: closed(e) for n, e in exported.items()}
    leaves = [v for v in pytree.tree_leaves(first.result) if type(v).__name__ == "Leaf"]
    refusal = difference(import_graph(graphs[SHOWN[0]]), import_graph(graphs[SHOWN[1]]), sorted(batched), len(leaves))
    return refusal or [(sizes(n), exported[n], graphs[n]) for n in pieces]


def _compiled(
    graphs: Iterable[_Graph],
    session: Session,
    dimensions: Sequence[Dimension],
    batch: int,
    names: Names,
    reason: str = "",
) -> Iterator[SizedProgram]:
    for sizes, exported, graph in graphs:
        named = tuple((d.name, s) for d, s in zip(dimensions, sizes, strict=True))
        remark = f"no program for all sizes: {reason}" if reason else ""
        remark = f"a piece of any batch: {sizes[batch]} images" if batch >= 0 else remark
        context = GraphContext(sizes=named, remark=remark)
        made = compile_exported(exported, graph, session, inputs=names.inputs, outputs=names.outputs, context=context)
        yield SizedProgram(sizes, made)
