"""Pages of the scatters along one dimension: values written, added or folded at stored positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dcir.ir.types import compute_type, is_float
from dcir.ops.library.scatter import Index, scatter
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.max_pooling import lowest
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand

FOLDS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min", "mean": "add"}


def at_least_1d(ref: Ref) -> Ref:
    """A scalar as a tensor of one element."""
    return ref if ref.shape else replace(ref, shape=(1,), strides=(1,))


def along(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim % max(rank, 1)


def _scatter(
    ctx: Lowering, base: Ref | float, dim: int, index: Ref, source: Ref, op: str, dst: Ref | None = None
) -> Ref:
    """Each index element sends one source element to its place along ``dim``."""
    result = dst or ctx.result()
    out, index = at_least_1d(result), at_least_1d(index)
    d = along(dim, len(out.shape))
    to = tuple(0 if i == d else s for i, s in enumerate(out.strides))
    strides = source.strides if source.shape else (0,) * len(index.shape)
    where = Index(index, index.strides, out.shape[d], out.strides[d])
    base = at_least_1d(base) if isinstance(base, Ref) else base
    scatter(ctx, base, out, op, source, [where], dims=index.shape, to=to, strides=strides)
    return result


def number(ctx: Lowering, value: Any, dtype: str) -> Ref:
    """A number as a tensor of one element."""
    return ctx.full(value, ctx.new((), dtype))


def highest(dtype: str) -> float:
    """What every value of an element type is at most."""
    if is_float(dtype):
        return math.inf
    return {"u8": 255, "bool": 1}.get(dtype, -1 - lowest(dtype))


def identity(op: str, dtype: str) -> float:
    """The number that changes nothing."""
    return {"add": 0, "mul": 1, "max": lowest(dtype), "min": highest(dtype)}[op]


def folded(
    ctx: Lowering, x: Ref, reduce: str, send: Callable[[Ref | float, Ref, str, Ref | None], Ref], source: Ref, *,
    include_self: bool,
) -> Ref:  # fmt: skip
    """A scatter that folds; ``send`` (base, source, op, result) makes one scatter node.

    Without the element's own value, the places that are met begin as what changes nothing; a mean counts besides.
    """
    op = FOLDS.get(reduce)
    if op is None or x.dtype == "bool":
        raise NotNative(f"a scatter that folds by {reduce}")
    base = x
    if not include_self:
        base = send(x, number(ctx, identity(op, x.dtype), x.dtype), "set", ctx.new(x.shape, x.dtype))
    if reduce != "mean":
        return send(base, source, op, None)
    total = send(base, source, op, ctx.new(x.shape, x.dtype))
    one = number(ctx, 1, "i64")
    count = send(1 if include_self else 0, one, "add", ctx.new(x.shape, "i64"))
    compute = compute_type(x.dtype)

    def divide(t: Any, n: Any) -> Any:
        n = t.body.op("max", n, t.body.const(1, compute))
        return t / n if is_float(x.dtype) else t.body.op("idiv_floor", t, n)

    return ctx.pointwise(divide, total, count, compute=compute)


def _cases(*, duplicates: bool) -> Iterable[tuple[str, torch.Tensor, int, torch.Tensor, torch.Tensor]]:
    """(name, base, dim, index, source); duplicate positions only where their order does not matter."""

    def pick(rows: int, among: int, columns: int) -> torch.Tensor:
        if duplicates:
            return rand(rows, columns, dtype=torch.int64, low=0, high=among, seed=2)
        return torch.stack([torch.randperm(among, generator=torch.Generator().manual_seed(i))[:rows]
                            for i in range(columns)], 1)  # fmt: skip

    x = rand(6, 7)
    yield "rows", x, 0, pick(4, 6, 5), rand(4, 7, seed=1)
    yield "columns", x, -1, pick(5, 7, 6).t(), rand(6, 5, seed=1)
    yield "three dimensions", rand(3, 6, 2), 1, pick(4, 6, 6).reshape(4, 3, 2).transpose(0, 1), rand(3, 5, 2, seed=1)
    yield "transposed", rand(7, 6).t(), 0, pick(4, 6, 7), rand(4, 7, seed=1)
    yield (
        "int64",
        rand(6, 7, dtype=torch.int64, low=-9, high=9),
        0,
        pick(4, 6, 7),
        rand(4, 7, dtype=torch.int64, low=1, high=5),
    )
    yield "bf16", x.bfloat16(), 0, pick(4, 6, 7), rand(4, 7, seed=1).bfloat16()
    yield "nothing", x, 0, torch.zeros(0, 7, dtype=torch.int64), rand(4, 7)
    yield "scalar", rand(), 0, torch.tensor(0), rand(seed=1)


def _sources(*more: Any, duplicates: bool, **kw: Any) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for name, x, dim, index, source in _cases(duplicates=duplicates):
            yield Sample((x, dim, index, source, *more), dict(kw), name=name)

    return make


def _values(*more: Any, **kw: Any) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for name, x, dim, index, _ in _cases(duplicates=not kw):
            if x.is_floating_point():
                yield Sample((x, dim, index, 1.5, *more), dict(kw), name=name)

    return make


@operator("aten.scatter.src", samples=_sources(duplicates=False))
def scatter_source(ctx: Lowering, x: Ref, dim: int, index: Ref, src: Ref) -> Ref:
    """Source elements written to their places."""
    return _scatter(ctx, x, dim, index, src, "set")


@operator("aten.scatter.value", samples=_values())
def scatter_value(ctx: Lowering, x: Ref, dim: int, index: Ref, value: Any) -> Ref:
    """A number written to places."""
    return _scatter(ctx, x, dim, index, number(ctx, value, x.dtype), "set")


@operator("aten.scatter.reduce", samples=lambda: [
    *_sources(duplicates=True, reduce="add")(), *_sources(duplicates=True, reduce="multiply")()
])  # fmt: skip
def scatter_reduce_source(ctx: Lowering, x: Ref, dim: int, index: Ref, src: Ref, *, reduce: str) -> Ref:
    """Source elements added or multiplied into their places."""
    return _scatter(ctx, x, dim, index, src, FOLDS[reduce])


@operator("aten.scatter.value_reduce", samples=lambda: [*_values(reduce="add")(), *_values(reduce="multiply")()])
def scatter_reduce_value(ctx: Lowering, x: Ref, dim: int, index: Ref, value: Any, *, reduce: str) -> Ref:
    """A number added or multiplied into places."""
    return _scatter(ctx, x, dim, index, number(ctx, value, x.dtype), FOLDS[reduce])


@operator("aten.scatter_add.default", samples=_sources(duplicates=True))
def scatter_add(ctx: Lowering, x: Ref, dim: int, index: Ref, src: Ref) -> Ref:
    """Source elements added to their places."""
    return _scatter(ctx, x, dim, index, src, "add")


def _two() -> Iterable[Sample]:
    cases = list(_cases(duplicates=True))
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for own in (True, False):
            for name, x, dim, index, source in (cases[0], cases[4]):
                yield Sample((x, dim, index, source, reduce), {"include_self": own}, name=f"{reduce} {own} {name}")


@operator("aten.scatter_reduce.two", samples=_two)
def scatter_reduce(
    ctx: Lowering, x: Ref, dim: int, index: Ref, src: Ref, reduce: str, *, include_self: bool = True
) -> Ref:
    """Source elements folded into their places."""

    def send(base: Ref | float, source: Ref, op: str, dst: Ref | None) -> Ref:
        return _scatter(ctx, base, dim, index, source, op, dst)

    return folded(ctx, x, reduce, send, src, include_self=include_self)


def _pooled() -> Iterable[Sample]:
    for shape in ((2, 3, 6, 8), (3, 6, 8)):
        y, i = torch.ops.aten.max_pool2d_with_indices(rand(*shape), [2, 2])
        yield Sample((y, i, [6, 8]))
        yield Sample((y.double(), i, [7, 9]), name="larger")


@operator("aten.max_unpool2d.default", samples=_pooled)
def max_unpool2d(ctx: Lowering, x: Ref, indices: Ref, output_size: Sequence[int]) -> Ref:
    """Pooled elements back at their places, zeros elsewhere."""
    dst, lead = ctx.new(ctx.out.shape, ctx.out.dtype), len(x.shape) - 2
    where = Index(indices, indices.strides, math.prod(dst.shape[lead:]), 1)
    to = (*dst.strides[:lead], 0, 0)
    return scatter(ctx, 0, dst, "set", x, [where], dims=x.shape, to=to, strides=x.strides)
