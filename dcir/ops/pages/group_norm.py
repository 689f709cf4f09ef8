"""Pages of group normalisation: one row per sample and group, over the group's channels and all positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.types import compute_type
from dcir.ops.lowering import Kernel, Lowering, Ref
from dcir.ops.pages.layer_norm import Results, wanted
from dcir.ops.pages.moments import spread
from dcir.ops.pages.reducing import refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


class _Groups:
    """Strides of a group normalisation's tensors over (sample, group, channel in the group, positions)."""

    def __init__(self, x: Ref, groups: int) -> None:
        self.n, channels, *self.positions = x.shape
        self.groups, self.each = groups, channels // groups
        self.count = self.each
        for d in self.positions:
            self.count *= d

    def data(self, t: Ref) -> tuple[int, ...]:
        """A tensor of samples, channels and positions."""
        return t.strides[0], t.strides[1] * self.each, *t.strides[1:]

    def channel(self, t: Ref) -> tuple[int, ...]:
        """A tensor of one value per channel."""
        return 0, t.strides[0] * self.each, t.strides[0], *(0 for _ in self.positions)

    def row(self, t: Ref) -> tuple[int, ...]:
        """A tensor of one value per sample and group."""
        return *t.strides, 0, *(0 for _ in self.positions)


def _samples() -> Iterable[Sample]:
    w, b = rand(6, seed=1), rand(6, seed=2)
    yield Sample((rand(2, 6, 4, 3), w, b, 2, 6, 12, 3, 1e-5))
    yield Sample((rand(2, 6, 5), None, None, 2, 6, 5, 2, 1e-5), name="no weight")
    yield Sample((rand(3, 6, 4), w, None, 3, 6, 4, 6, 1e-5), name="every channel, no bias")
    yield Sample((rand(2, 6, 4), None, b, 2, 6, 4, 1, 1e-5), name="one group, no weight")
    yield Sample(
        (rand(2, 6, 4, 3).to(memory_format=torch.channels_last), w, b, 2, 6, 12, 3, 1e-5), name="channels last"
    )
    yield Sample((rand(2, 6, 8, dtype=torch.float64), w.double(), b.double(), 2, 6, 8, 3, 1e-5), name="double")
    yield Sample((rand(2, 6, 8).bfloat16(), w.bfloat16(), b.bfloat16(), 2, 6, 8, 3, 1e-5), name="bf16")


@operator("aten.native_group_norm.default", samples=_samples)
def group_norm(
    ctx: Lowering, x: Ref, weight: Ref | None, bias: Ref | None, n: int, channels: int, positions: int,
    groups: int, eps: float,
) -> Results:  # fmt: skip
    """(x - mean) / sqrt(variance + eps) * weight + bias over every group, with mean and reciprocal root."""
    refuse_complex(ctx, x)
    at = _Groups(x, groups)
    dst, means, roots = (ctx.result(i) for i in range(3))
    k = ctx.kernel((at.n, groups), (at.each, *at.positions))
    mean, difference, squares = spread(k, k.load(x, at.data(x)), at.count)
    root = k.body.op("rsqrt", squares / at.count + eps)
    y = difference * root
    if weight is not None:
        y = y * k.load(weight, at.channel(weight), dtype=y.dtype)
    if bias is not None:
        y = y + k.load(bias, at.channel(bias), dtype=y.dtype)
    k.store(dst, y, at.data(dst))
    k.store(means, mean, at.row(means))
    k.store(roots, root, at.row(roots))
    k.done()
    return dst, means, roots


def _backward_samples() -> Iterable[Sample]:
    for x, groups, weight, name in (
        (rand(2, 6, 4, 3), 3, rand(6, seed=1), ""),
        (rand(2, 6, 5), 2, None, "no weight"),
        (rand(2, 6, 8, dtype=torch.float64), 6, rand(6, seed=1).double(), "double"),
    ):
        n, c, hw = x.shape[0], x.shape[1], x[0, 0].numel()
        _, mean, root = torch.native_group_norm(x, weight, None, n, c, hw, groups, 1e-5)
        grad, has = rand(*x.shape, seed=3).to(x.dtype), weight is not None
        yield Sample((grad, x, mean, root, weight, n, c, hw, groups, [True, has, has]), name=name)
    x, w = rand(2, 6, 4), rand(6, seed=1)
    _, mean, root = torch.native_group_norm(x, w, None, 2, 6, 4, 3, 1e-5)
    for mask in ([True, False, False], [False, True, True]):
        yield Sample((rand(2, 6, 4, seed=3), x, mean, root, w, 2, 6, 4, 3, mask), name=f"only {mask}")


def _sum(k: Kernel, value: Expr) -> Expr:
    """Over the inner loops; of float32 in float64."""
    return k.body.reduce("sum", k.body.convert(value, "f64") if value.dtype == "f32" else value)


@operator("aten.native_group_norm_backward.default", samples=_backward_samples)
def group_norm_backward(
    ctx: Lowering, grad: Ref, x: Ref, mean: Ref, root: Ref, weight: Ref | None, n: int, channels: int,
    positions: int, groups: int, output_mask: Sequence[bool],
) -> Results:  # fmt: skip
    """As of a layer normalisation with groups for rows; dweight and dbias sum over samples and positions."""
    refuse_complex(ctx, grad, x)
    at = _Groups(x, groups)
    dx, dw, db = wanted(ctx, output_mask)
    compute = compute_type(x.dtype)

    def parts(k: Kernel, order: Sequence[int]) -> tuple[Expr, Expr, Expr]:
        """(gradient, normalised element, reciprocal root) with the loops of ``_Groups`` in another order."""

        def load(t: Ref, strides: Sequence[int]) -> Expr:
            return k.load(t, [strides[d] for d in order], dtype=compute)

        r = load(root, at.row(root))
        return load(grad, at.data(grad)), (load(x, at.data(x)) - load(mean, at.row(mean))) * r, r

    rank = 3 + len(at.positions)
    if dx is not None:
        k = ctx.kernel((at.n, groups), (at.each, *at.positions))
        g, y, r = parts(k, range(rank))
        h = g if weight is None else g * k.load(weight, at.channel(weight), dtype=compute)
        # Every element of a group is shifted by these two, so what they lose adds up in whatever sums the elements.
        even, tilt = (k.body.convert(_sum(k, v) / at.count, compute) for v in (h, h * y))
        k.store(dx, (h - even - y * tilt) * r, at.data(dx))
        k.done()
    if dw is not None or db is not None:
        k = ctx.kernel((groups, at.each), (at.n, *at.positions))
        g, y, _ = parts(k, [1, 2, 0, *range(3, rank)])
        for dst, value in ((dw, g * y), (db, g)):
            if dst is not None:
                inner = (0,) * (1 + len(at.positions))
                k.store(dst, k.body.reduce("sum", value), (dst.strides[0] * at.each, dst.strides[0], *inner))
        k.done()
    return dx, dw, db
