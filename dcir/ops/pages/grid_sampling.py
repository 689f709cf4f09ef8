"""Pages of grid sampling: an image read at the positions another tensor holds, between pixels by a weighted sum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.types import FLOATS
from dcir.ops.lowering import Kernel, Lowering, NotNative, Ref
from dcir.ops.pages.pointwise import call, const, maximum, minimum
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand

_LINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER = 0, 1


def _samples(rank: int) -> Iterable[Sample]:
    size, out = ((4, 5), (3, 2)) if rank == 2 else ((2, 3, 4), (2, 2, 2))
    x, grid = rand(2, 3, *size), rand(2, *out, rank, low=-1.3, high=1.3, seed=1)
    for mode, padding, corners in itertools.product((_LINEAR, _NEAREST), (_ZEROS, _BORDER), (False, True)):
        yield Sample((x, grid, mode, padding, corners), name=f"mode {mode} padding {padding} corners {corners}")
    holes = grid.clone()
    holes.view(-1)[::3] = math.nan
    for mode in (_LINEAR, _NEAREST):
        yield Sample((x, holes, mode, _BORDER, False), name=f"NaN in the grid, mode {mode}")


def _position(k: Kernel, grid: Ref, axis: int, extent: int, padding: int, *, corners: bool) -> Expr:
    """The source position of this output along one image dimension (the grid holds x first)."""
    rank = grid.shape[-1]
    at = Ref(grid.data, (), (), grid.offset + (rank - 1 - axis) * grid.strides[-1], grid.dtype)
    v = k.load(at, (grid.strides[0], 0, *grid.strides[1:-1]))
    v = (v + 1.0) * ((extent - 1) / 2) if corners else ((v + 1.0) * float(extent) - 1.0) * 0.5
    if padding != _BORDER:
        return v
    # As in eager on a CPU, NaN is the first pixel of an image, and the last one of a volume.
    if rank == 2:
        return minimum(call("fmax", v, const(v, 0.0)), extent - 1.0)
    return maximum(call("fmin", v, const(v, extent - 1.0)), 0.0)


def _sampled(ctx: Lowering, x: Ref, grid: Ref, mode: int, padding: int, corners: bool) -> Ref:
    if mode not in (_LINEAR, _NEAREST) or padding not in (_ZEROS, _BORDER):
        raise NotNative("cubic sampling and reflected borders")
    if x.dtype not in FLOATS:
        raise NotNative(f"sampling of {x.dtype}")
    dst, n = ctx.result(), len(x.shape) - 2
    k = ctx.kernel(dst.shape)
    b, zero = k.body, k.body.const(0, x.dtype)
    axes: list[list[tuple[Expr, Expr]]] = []
    for axis in range(n):
        v = _position(k, grid, axis, x.shape[2 + axis], padding, corners=corners)
        # Far outside (or NaN) the conversion to an integer would be undefined: -1 is outside as well.
        near = (v > -1.0) & (v < float(x.shape[2 + axis]))
        v = b.where(near, v, b.const(-1, x.dtype))
        if mode == _NEAREST:
            axes.append([(b.convert(call("round", v), "i64"), b.const(1, x.dtype))])
            continue
        low = call("floor", v)
        part = v - low
        axes.append([(b.convert(low, "i64"), 1.0 - part), (b.convert(low, "i64") + 1, part)])
    total: Expr | None = None
    for corner in itertools.product(*axes):
        ok = b.const(True, "bool")
        for axis, (at, _) in enumerate(corner):
            ok = ok & (at >= 0) & (at < x.shape[2 + axis])
        places = [at for at, _ in corner]
        value = k.gather(x, (*x.strides[:2], *(0,) * n), places, range(2, 2 + n), checked=False, mask=ok, other=zero)
        for _, weight in corner:
            value = value if mode == _NEAREST else value * weight
        total = value if total is None else total + value
    assert total is not None
    k.store(dst, total)
    k.done()
    return dst


@operator("aten.grid_sampler_2d.default", samples=lambda: _samples(2))
def grid_sampler_2d(ctx: Lowering, x: Ref, grid: Ref, mode: int, padding: int, corners: bool) -> Ref:
    """An image at given positions; pixels outside count as zero or as the nearest edge."""
    return _sampled(ctx, x, grid, mode, padding, corners)


@operator("aten.grid_sampler_3d.default", samples=lambda: _samples(3))
def grid_sampler_3d(ctx: Lowering, x: Ref, grid: Ref, mode: int, padding: int, corners: bool) -> Ref:
    """A volume at given positions."""
    return _sampled(ctx, x, grid, mode, padding, corners)
