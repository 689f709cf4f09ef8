"""Random networks of pointwise programs, reductions and views, for property tests of passes."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from dcir.ir.interpret import interpret
from dcir.ir.network import Network, Result
from dcir.ops.lowering import Lowering, Meta, Ref
from tests.on_host import on_host

SHAPES = ((6, 4, 10), (4, 10), (24, 10), (6, 40), (10,), (6, 1, 10))


def random_network(seed: int, size: int = 14) -> Network:
    """A network of about ``size`` operators whose last few values are its results."""
    rng = random.Random(seed)
    net = on_host(Network())
    ctx = Lowering(net)
    values: list[Ref] = []
    for _ in range(3):
        shape = rng.choice(SHAPES)
        name = net.add_container(shape, "f32", "input")
        values.append(Ref(name, shape, net.containers[name].strides, 0, "f32"))
    while len(net.ops()) < size:
        values.append(_grow(rng, ctx, values))
    for ref in values[-3:]:
        if net.containers[ref.data].role != "input":
            net.promote(ref.data)
            net.results.append(Result(ref.data, ref.shape, ref.strides, ref.offset, ref.dtype))
    return net


def _grow(rng: random.Random, ctx: Lowering, values: list[Ref]) -> Ref:
    x = rng.choice(values[-6:])
    kind = rng.choice(("unary", "unary", "binary", "binary", "view", "reduce", "rows", "stack"))
    if kind == "view":
        return _view(rng, ctx, x)
    if kind == "reduce" and x.shape:
        axes = sorted(rng.sample(range(len(x.shape)), rng.randint(1, len(x.shape))))
        return _reduce(rng, ctx, x, axes)
    if kind == "rows" and len(x.shape) > 1:
        return _normalise(ctx, x)
    if kind == "stack" and x.shape:
        return _stack(ctx, x)
    if kind == "binary":
        y = rng.choice(values)
        try:
            shape = np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            y, shape = x, x.shape
        ctx.outs = [Meta(tuple(shape), (0,) * len(shape), "f32")]
        op = rng.choice(("add", "mul", "sub", "max"))
        return ctx.pointwise(lambda a, b: a.body.op(op, a, b), x, y)
    ctx.outs = [Meta(x.shape, x.strides, "f32")]
    op = rng.choice(("neg", "abs", "tanh", "sigmoid", "sin"))
    return ctx.pointwise(lambda a: a.body.op(op, a) + 0.5, x)


def _view(rng: random.Random, ctx: Lowering, x: Ref) -> Ref:
    kind = rng.choice(("permute", "slice", "flat", "select"))
    if kind == "permute":
        order = rng.sample(range(len(x.shape)), len(x.shape))
        return replace(x, shape=tuple(x.shape[d] for d in order), strides=tuple(x.strides[d] for d in order))
    if kind == "flat":
        return ctx.reshape(x, (x.numel,) if rng.random() < 0.5 or x.numel % 2 else (2, x.numel // 2))
    d = rng.randrange(len(x.shape))
    if x.shape[d] < 4:
        return x
    if kind == "select" and len(x.shape) > 1:
        keep = [k for k in range(len(x.shape)) if k != d]
        return replace(
            x, shape=tuple(x.shape[k] for k in keep), strides=tuple(x.strides[k] for k in keep),
            offset=x.offset + 2 * x.strides[d],
        )  # fmt: skip
    shape, strides = list(x.shape), list(x.strides)
    first, step = rng.choice(((1, 2), (0, 1), (1, 1)))
    shape[d], strides[d] = shape[d] // 2 - 1, strides[d] * step
    return replace(x, shape=tuple(shape), strides=tuple(strides), offset=x.offset + first * x.strides[d])


def _reduce(rng: random.Random, ctx: Lowering, x: Ref, axes: list[int]) -> Ref:
    kept = [d for d in range(len(x.shape)) if d not in axes]
    k = ctx.kernel([x.shape[d] for d in kept], [x.shape[d] for d in axes])
    v = k.load(x, [x.strides[d] for d in (*kept, *axes)])
    shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    dst = ctx.new(shape, "f32")
    k.store(
        dst,
        k.body.reduce(rng.choice(("sum", "max", "min")), v) * 0.25,
        [dst.strides[d] for d in kept] + [0] * len(axes),
    )
    k.done()
    return dst


def _normalise(ctx: Lowering, x: Ref) -> Ref:
    k = ctx.kernel(x.shape[:-1], x.shape[-1:])
    v = k.load(x, x.strides)
    e = k.body.op("exp", v - k.body.reduce("max", v))
    dst = ctx.new(x.shape, "f32")
    k.store(dst, e / k.body.reduce("sum", e))
    k.done()
    return dst


def _stack(ctx: Lowering, x: Ref) -> Ref:
    dst = ctx.new((2, *x.shape), "f32")
    for i in range(2):
        part = replace(dst, shape=x.shape, strides=dst.strides[1:], offset=i * dst.strides[0])
        ctx.outs = [Meta(x.shape, x.strides, "f32")]
        ctx.pointwise(lambda a, i=i: a * float(i + 1), x, out=part)
    return dst


def results(net: Network, seed: int = 0) -> list[np.ndarray]:
    """The network's results on random inputs."""
    rng = np.random.default_rng(seed)
    buffers = {n: rng.uniform(-2, 2, net.containers[n].size).astype(np.float32) for n in net.inputs}
    store = interpret(net, buffers)
    return [
        np.lib.stride_tricks.as_strided(store[r.data][r.offset :], r.shape, [s * 4 for s in r.strides]).copy()
        for r in net.results
    ]
