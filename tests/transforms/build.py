"""Small networks for the tests of one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dcir.ir.network import Network, Result
from dcir.ops.lowering import Lowering, Meta, Ref
from tests.on_host import on_host


def network(shapes: Sequence[Sequence[int]], make: Callable[..., Sequence[Ref]]) -> Network:
    """A network of f32 inputs; ``make(context, *inputs)`` adds operators and returns the results."""
    net = on_host(Network())
    ctx = Lowering(net)
    refs = []
    for shape in shapes:
        name = net.add_container(shape, "f32", "input")
        refs.append(Ref(name, tuple(shape), net.containers[name].strides, 0, "f32"))
    for ref in make(ctx, *refs):
        net.promote(ref.data)
        net.results.append(Result(ref.data, ref.shape, ref.strides, ref.offset, ref.dtype))
    return net


def unary(ctx: Lowering, op: str, x: Ref) -> Ref:
    """One pointwise operator."""
    ctx.outs = [Meta(x.shape, x.strides, "f32")]
    return ctx.pointwise(lambda a: a.body.op(op, a), x)


def binary(ctx: Lowering, op: str, x: Ref, y: Ref) -> Ref:
    """One pointwise operator on two tensors; ``x`` has the result's shape."""
    ctx.outs = [Meta(x.shape, x.strides, "f32")]
    return ctx.pointwise(lambda a, b: a.body.op(op, a, b), x, y)


def reduce(ctx: Lowering, kind: str, x: Ref, axis: int = -1) -> Ref:
    """A reduction of one axis, which stays with extent 1."""
    axis %= len(x.shape)
    kept = [d for d in range(len(x.shape)) if d != axis]
    k = ctx.kernel([x.shape[d] for d in kept], [x.shape[axis]])
    v = k.load(x, [x.strides[d] for d in (*kept, axis)])
    dst = ctx.new([1 if d == axis else n for d, n in enumerate(x.shape)], "f32")
    k.store(dst, k.body.reduce(kind, v), [dst.strides[d] for d in kept] + [0])
    k.done()
    return dst
