"""Torch's control flow as operators with bodies: cond, while_loop, scan, associative_scan, map, and graphs that are merely called.

    scan(f, init, xs)       --> a loop; windows on xs and on the stacked results move
    while_loop(c, f, init)  --> a loop while a bool is true
    cond(p, f, g)           --> a branch
    map(f, xs)              --> a loop that hands nothing on
    associative_scan(f, xs) --> the first element, and a loop from there on

A body is imported like the graph around it, with the layouts that its operands have there. What has a call into torch inside of it is one
call into torch as a whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dcir.errors import Unsupported
from dcir.frontends.torch.nodes import meta_of
from dcir.frontends.torch.recurrent_cells import STEPS, flat
from dcir.ir.body import Body
from dcir.ir.network import Network
from dcir.ops.library.regions import BranchSpec, LoopSpec, WhileSpec
from dcir.ops.library.subgraphs import Subgraph
from dcir.ops.lowering import Lowering, Meta, NotNative, Ref, is_dense
from dcir.ops.torch_types import FROM_NAME


class Importer(Protocol):
    """What control flow asks of the importer of the graph around it.

    Attributes:
        ctx: the lowering of the node at hand.
    """

    ctx: Lowering

    def body(self, gm: fx.GraphModule, given: Sequence[Any], results: Sequence[tuple[int, ...]] | None) -> ImportedBody:
        """A graph as a network of its own.

        Args:
            gm: the graph.
            given: per argument a window (of which only the layout counts) or a value.
            results: strides of its results; None: row-major.
        """
        ...

    def constant(self, value: Any, name: str) -> Ref:
        """A tensor that a graph inside holds, as a constant of the graph around it."""
        ...


@dataclass
class ImportedBody:
    """A body, and what it needs besides its arguments.

    Attributes:
        network: its inputs are the arguments that are tensors, and behind these ``held``.
        results: shape, strides and type of each.
        held: tensors that the graph holds, with their names.
    """

    network: Network
    results: list[Meta]
    held: list[tuple[str, Any]]


def lower_region(importer: Importer, name: str, args: Sequence[Any]) -> Any:
    """The results of a higher-order operator.

    Args:
        importer: of the graph around it.
        name: the operator's.
        args: windows, graphs and values.

    Raises:
        NotNative: it is none of those above, or its body has something that only torch does.
    """
    how = _LOWERED.get(name)
    if how is None:
        raise NotNative
    try:
        return how(importer, *args)
    except Unsupported as e:
        raise NotNative(str(e)) from e


def _tensors(values: Sequence[Any]) -> list[Ref]:
    return [v for v in values if isinstance(v, Ref)]


def _closed(
    importer: Importer, bodies: Sequence[ImportedBody], fixed: int, *, repeated: bool = True
) -> tuple[list[Body], list[Ref]]:
    """Bodies of the same operands as data, and the windows for what they hold: operands behind the others, of all of them.

    Args:
        importer: of the graph around them.
        bodies: what is closed.
        fixed: from which input on they read what does not change.
        repeated: whether that may be computed with before the first run.

    Raises:
        NotNative: something in one is not generated code.
    """
    if any(calls_out(body.network) for body in bodies):
        raise NotNative
    held = [(own, *tensor) for own in bodies for tensor in own.held]
    for body in bodies:
        net, count = body.network, len(body.held)
        mine = net.inputs[len(net.inputs) - count :]
        del net.inputs[len(net.inputs) - count :]
        for own, _, value in held:
            if own is body:
                net.inputs.append(mine.pop(0))
            else:
                meta = meta_of(value)
                assert meta is not None
                net.add_container(meta.shape, meta.dtype, "input", meta.strides)
        net.static = set(net.inputs[fixed:]) if repeated else set()
    return [Body.of(body.network) for body in bodies], [importer.constant(value, name) for _, name, value in held]


def calls_out(net: Network) -> list[str]:
    """What a network calls outside of generated code, in its bodies too."""
    found = [op.spec.calls_out for op in net.ops() if op.spec.calls_out]
    return found + [c for op in net.ops() for body in op.spec.bodies() for c in calls_out(body.network)]


def _plain(importer: Importer, value: Any) -> Ref:
    """A value that is handed on, in a layout without gaps and repetitions."""
    if not isinstance(value, Ref):
        raise NotNative
    if is_dense(value.shape, value.strides):
        return value
    return importer.ctx.copy(value, importer.ctx.new(value.shape, value.dtype))


def _steps(
    importer: Importer, name: str, init: Sequence[Any], xs: Sequence[Any], fixed: Sequence[Any], reverse: bool
) -> Any:
    values, parts = [_plain(importer, v) for v in init], [_element(x) for x in xs]
    metas = tuple((r.shape, FROM_NAME[r.dtype]) for r in (*values, *parts, *fixed))
    graph = _traced(name, len(values), len(parts), metas)
    return _loop(importer, Subgraph(graph), values, xs, parts, list(fixed), xs[0].shape[0], list, reverse=reverse)


@functools.lru_cache(maxsize=64)
def _traced(name: str, carried: int, moving: int, metas: tuple[Any, ...]) -> fx.GraphModule:
    """The graph of a step on tensors of these shapes and types."""
    with FakeTensorMode():
        given = [torch.empty(shape, dtype=dtype) for shape, dtype in metas]
        made: fx.GraphModule = make_fx(flat(STEPS[name], carried, moving))(*given)
        return made


def _element(x: Any) -> Ref:
    """The first of the parts of ``x`` along its first dimension."""
    if not isinstance(x, Ref) or not x.shape or not x.shape[0]:
        raise NotNative
    return Ref(x.data, x.shape[1:], x.strides[1:], x.offset, x.dtype)


def _scan(importer: Importer, graph: Subgraph, init: Sequence[Any], xs: Sequence[Any], fixed: Sequence[Any]) -> Any:
    values, parts = [_plain(importer, v) for v in init], [_element(x) for x in xs]
    if not xs:
        raise NotNative
    return _loop(importer, graph, values, xs, parts, list(fixed), xs[0].shape[0], list)


def _map(importer: Importer, graph: Subgraph, xs: Sequence[Any], fixed: Sequence[Any]) -> Any:
    parts = [_element(x) for x in xs]
    if not xs:
        raise NotNative
    return _loop(importer, graph, [], xs, parts, list(fixed), xs[0].shape[0], tuple)


def _loop(
    importer: Importer, graph: Subgraph, values: list[Ref], xs: Sequence[Ref], parts: list[Ref], fixed: list[Any],
    trips: int, sequence: Callable[[list[Any]], Any], *, reverse: bool = False,
) -> Any:  # fmt: skip
    """A loop over the parts of ``xs``.

    Args:
        importer: of the graph around it.
        graph: of the values, the parts, and what does not change: the next values, and the parts of the results.
        values: before the first trip.
        xs, parts: what is taken apart, and the part of the first trip.
        fixed: what does not change.
        trips: how many, at least one.
        sequence: what the results are put in.
        reverse: whether the last part comes first.
    """
    ctx, n = importer.ctx, len(values)
    metas = ctx.outs[n:]
    if any(m is None for m in metas):
        raise NotNative
    targets = [ctx.new(m.shape, m.dtype, m.strides) for m in metas if m is not None]
    body = importer.body(
        graph.graph, [*values, *parts, *fixed], [*(v.strides for v in values), *(t.strides[1:] for t in targets)]
    )
    _agree(body.results, [*values, *(_element(t) for t in targets)])
    (closed,), held = _closed(importer, [body], n + len(parts))
    others = [*_tensors(fixed), *held]
    last = [ctx.new(v.shape, v.dtype, v.strides) for v in values]
    written = [_element(t) for t in targets]
    forward = -1 if reverse else 1
    steps_in, steps_out = ([forward * t.strides[0] for t in side] for side in (xs, targets))
    if reverse:
        parts = [_moved(p, (trips - 1) * x.strides[0]) for p, x in zip(parts, xs, strict=True)]
        written = [_moved(p, (trips - 1) * t.strides[0]) for p, t in zip(written, targets, strict=True)]
    spec = LoopSpec(closed, trips, n, (*steps_in, *(0 for _ in others)), tuple(steps_out))
    ctx.emit(spec, [*values, *parts, *others], [*last, *written])
    return sequence([*last, *targets])


def _moved(ref: Ref, by: int) -> Ref:
    return replace(ref, offset=ref.offset + by)


def _associative(importer: Importer, graph: Subgraph, xs: Sequence[Any], fixed: Sequence[Any]) -> Any:
    ctx, parts = importer.ctx, [_element(x) for x in xs]
    if not xs or any(m is None for m in ctx.outs):
        raise NotNative
    trips = xs[0].shape[0] - 1
    targets = [ctx.new(m.shape, m.dtype, m.strides) for m in ctx.outs if m is not None]
    for part, target in zip(parts, targets, strict=True):
        ctx.copy(part, _element(target))
    if not trips:
        return targets
    layouts = [_element(t) for t in targets]
    first = [ctx.copy(part, ctx.new(part.shape, part.dtype)) for part in parts]
    body = importer.body(graph.graph, [*first, *parts, *fixed], [x.strides for x in first])
    _agree(body.results, first)
    (closed,), held = _closed(importer, [body], 2 * len(parts))
    net = closed.copy(ctx.net.origins)
    # Each next value is stored twice: handed on, and in its place, which may have gaps.
    net.results += [_twin(net, r, layout.strides) for r, layout in zip(list(net.results), layouts, strict=True)]
    others = [*_tensors(fixed), *held]
    last = [ctx.new(x.shape, x.dtype, x.strides) for x in first]
    second = [Ref(x.data, p.shape, p.strides, p.offset + x.strides[0], x.dtype) for x, p in zip(xs, parts, strict=True)]
    behind = [
        Ref(t.data, e.shape, e.strides, e.offset + t.strides[0], t.dtype) for t, e in zip(targets, layouts, strict=True)
    ]
    spec = LoopSpec(
        Body.of(net), trips, len(first), (*(x.strides[0] for x in xs), *(0 for _ in others)),
        tuple(t.strides[0] for t in targets),
    )  # fmt: skip
    ctx.emit(spec, [*first, *second, *others], [*last, *behind])
    return targets


def _twin(net: Network, result: Any, strides: tuple[int, ...]) -> Any:
    """A copy of a result into a container of its own, of some strides."""
    name = net.add_container(result.shape, result.dtype, "transient", strides)
    source = Ref(result.data, result.shape, result.strides, result.offset, result.dtype)
    Lowering(net).copy(source, Ref(name, result.shape, strides, 0, result.dtype))
    return type(result)(net.promote(name), result.shape, strides, 0, result.dtype)


def _while(importer: Importer, test: Subgraph, graph: Subgraph, init: Sequence[Any], fixed: Sequence[Any]) -> Any:
    ctx, values = importer.ctx, [_plain(importer, v) for v in init]
    body = importer.body(graph.graph, [*values, *fixed], [v.strides for v in values])
    _agree(body.results, values)
    condition = importer.body(test.graph, [*values, *fixed], None)
    if [(r.shape, r.dtype) for r in condition.results] not in ([((), "bool")], [((1,), "bool")]):
        raise NotNative
    (tested, closed), held = _closed(importer, [condition, body], len(values))
    last = [ctx.new(v.shape, v.dtype, v.strides) for v in values]
    ctx.emit(WhileSpec(tested, closed, len(values)), [*values, *_tensors(fixed), *held], last)
    return tuple(last)


def _cond(importer: Importer, flag: Any, then: Subgraph, otherwise: Subgraph, operands: Sequence[Any]) -> Any:
    ctx = importer.ctx
    if not isinstance(flag, Ref) or flag.dtype != "bool" or flag.numel != 1 or any(m is None for m in ctx.outs):
        raise NotNative
    last = [ctx.new(m.shape, m.dtype, m.strides) for m in ctx.outs if m is not None]
    bodies = [importer.body(g.graph, operands, [r.strides for r in last]) for g in (then, otherwise)]
    for body in bodies:
        _agree(body.results, last)
    (a, b), held = _closed(importer, bodies, 0, repeated=False)
    ctx.emit(BranchSpec(a, b), [flag, *_tensors(operands), *held], last)
    return tuple(last)


def _agree(results: Sequence[Meta], wanted: Sequence[Ref]) -> None:
    """Hold the results of a body against what they are wanted for.

    Raises:
        NotNative: another number of them, other shapes or types.
    """
    if [(r.shape, r.dtype) for r in results] != [(w.shape, w.dtype) for w in wanted]:
        raise NotNative


_LOWERED: dict[str, Callable[..., Any]] = {
    "scan": _scan, "map_impl": _map, "while_loop": _while, "cond": _cond, "associative_scan": _associative,
    "dcir.steps.default": _steps,
}  # fmt: skip
