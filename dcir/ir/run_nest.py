"""The reference interpreter of one loop nest: NumPy, one statement at a time over many points, to check what everything else makes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from dcir.errors import IndexOutOfRange
from dcir.ir.statements import Access, Cast, Const, Gather, Index, Load, Narrow, Reduce, Statement, Store
from dcir.ir.types import bf16_to_f32, f32_to_bf16, to_numpy

Array = np.ndarray[Any, np.dtype[Any]]

Seen = Callable[[Access, Array, Array], None]
"""Called for every access of a statement with addresses, and whether each is really touched; the two broadcast."""

LIVE_POINTS = 4_000_000
"""Points of a nest that are worked on at once, so that large networks can be checked in little memory."""


class Nest(Protocol):
    """What is asked of a ``LoopNest``, which asks this module for its reference."""

    @property
    def outer(self) -> tuple[int, ...]: ...

    @property
    def dims(self) -> tuple[int, ...]: ...

    @property
    def inputs(self) -> tuple[str, ...]: ...

    @property
    def body(self) -> tuple[Statement, ...]: ...

    def points(self) -> int:
        """Iterations of all loops."""


def _widen(values: Array, dtype: str) -> Array:
    if dtype == "bf16":
        return bf16_to_f32(values)
    return values.astype(np.float32) if dtype == "f16" else values


def _narrow(values: Any, dtype: str) -> Any:
    if dtype == "bf16":
        return f32_to_bf16(np.asarray(values))
    return np.asarray(values).astype(to_numpy(dtype))


def run_program(
    p: Nest,
    ins: Sequence[Array],
    outs: Sequence[Array],
    scalar: Callable[[str], Callable[..., Any]],
    in_starts: Sequence[int] = (),
    out_starts: Sequence[int] = (),
    seen: Seen | None = None,
) -> None:
    """Run one program, many points of the nest at once.

    Args:
        p: the program.
        ins, outs: 1-D buffers of its operands.
        scalar: the reference function of a scalar operator, by name.
        in_starts, out_starts: where in its buffer each operand begins (0 where not given).
        seen: is told what is touched.
    """
    in_starts, out_starts = in_starts or [0] * len(ins), out_starts or [0] * len(outs)
    if math.prod(p.outer) == 0:
        return
    for ranges in _blocks(p):
        _run_block(p, ranges, ins, outs, scalar, in_starts, out_starts, seen or _unseen)


def _blocks(p: Nest) -> Iterator[list[range]]:
    """Ranges of all loops that together make the nest: outer loops are cut, the first one first."""
    cuts: list[list[range]] = []
    rest = p.points()
    for n in p.outer:
        if rest <= LIVE_POINTS:
            break
        rest //= n
        width = min(n, max(1, LIVE_POINTS // rest))
        rest *= width
        cuts.append([range(low, min(low + width, n)) for low in range(0, n, width)])
    whole = [range(n) for n in p.dims[len(cuts) :]]
    for block in itertools.product(*cuts):
        yield [*block, *whole]


def _run_block(
    p: Nest,
    ranges: Sequence[range],
    ins: Sequence[Array],
    outs: Sequence[Array],
    scalar: Callable[[str], Callable[..., Any]],
    in_starts: Sequence[int],
    out_starts: Sequence[int],
    seen: Seen,
) -> None:
    dims, rank, n_outer = p.dims, len(p.dims), len(p.outer)
    grids = [
        np.arange(r.start, r.stop, dtype=np.int64).reshape([-1 if i == k else 1 for i in range(rank)])
        for k, r in enumerate(ranges)
    ]

    def address(strides: Sequence[int], start: int) -> Array:
        at = np.full([1] * rank, start, np.int64)
        for g, s in zip(grids, strides, strict=True):
            if s:
                at = at + g * s
        return at

    values: list[Any] = []
    for s in p.body:
        a = [values[i] for i in s.args]
        if isinstance(s, Const):
            values.append(np.full([1] * rank, s.value, to_numpy(s.dtype)))
        elif isinstance(s, Index):
            values.append(grids[s.dim])
        elif isinstance(s, Load):
            at = address(s.strides, in_starts[s.operand])
            seen(s, at, a[0] if a else _ALWAYS)
            values.append(_load(ins[s.operand], at, a, p.inputs[s.operand]))
        elif isinstance(s, Gather):
            values.append(_gather(s, a, address(s.strides, in_starts[s.operand]), ins, p, seen))
        elif isinstance(s, Store):
            at = address(s.strides, out_starts[s.operand])
            seen(s, at, _ALWAYS)
            shape = np.broadcast_shapes(at.shape, a[0].shape)
            outs[s.operand][np.broadcast_to(at, shape)] = _narrow(np.broadcast_to(a[0], shape), s.dtype)
        elif isinstance(s, Cast):
            values.append(scalar("cast:" + s.dtype)(a[0]))
        elif isinstance(s, Narrow):
            values.append(_widen(_narrow(a[0], s.storage), s.storage))
        elif isinstance(s, Reduce):
            values.append(_reduce(s.kind, np.broadcast_to(a[0], _full(a[0].shape, dims, n_outer)), n_outer, s.dtype))
        else:
            r = np.asarray(scalar(s.op)(*a))
            values.append(r.astype(to_numpy(s.dtype)) if r.dtype != to_numpy(s.dtype) else r)
        if isinstance(s, Store):
            values.append(None)


def _full(shape: Sequence[int], dims: Sequence[int], n_outer: int) -> list[int]:
    return [*shape[:n_outer], *dims[n_outer:]]


def _load(buffer: Array, at: Array, args: Sequence[Array], dtype: str) -> Array:
    if not args:
        return _widen(buffer[at], dtype)
    mask, other = args
    shape = np.broadcast_shapes(at.shape, mask.shape, other.shape)
    safe = np.where(np.broadcast_to(mask, shape), np.broadcast_to(at, shape), 0)
    if buffer.size == 0:
        return np.broadcast_to(other, shape)
    return np.where(mask, _widen(buffer[safe], dtype), other)


_ALWAYS: Array = np.ones((), bool)


def _unseen(s: Access, at: Array, where: Array) -> None:
    """Nobody asks."""


def _gather(s: Gather, args: Sequence[Array], at: Array, ins: Sequence[Array], p: Nest, seen: Seen) -> Array:
    indices, rest = args[: len(s.extents)], args[len(s.extents) :]
    good: Array = np.ones([1] * at.ndim, bool)
    for i, extent, step in zip(indices, s.extents, s.steps, strict=True):
        good = good & (i >= 0) & (i < extent)
        at = at + i * step
    wanted = rest[0] if rest else np.ones([1] * at.ndim, bool)
    if s.checked and bool(np.any(wanted & ~good)):
        raise IndexOutOfRange("an index lies outside its tensor")
    other = rest[1] if rest else np.zeros([1] * at.ndim, np.int64)
    mask = wanted & good
    seen(s, at, mask)
    buffer, dtype = ins[s.operand], p.inputs[s.operand]
    return _load(buffer, at, [mask, other.astype(_widen(buffer[:0], dtype).dtype)], dtype)


def _reduce(kind: str, v: Array, n_outer: int, dtype: str) -> Array:
    axes = tuple(range(n_outer, v.ndim))
    if not axes:
        return np.zeros(v.shape, np.int64) if kind.startswith("arg") else v
    shape = [*v.shape[:n_outer], *[1] * len(axes)]
    if kind in ("argmax", "argmin"):
        flat = v.reshape([*v.shape[:n_outer], -1])
        place: Array = (np.argmax if kind == "argmax" else np.argmin)(flat, axis=-1).astype(np.int64)
        return place.reshape(shape)
    if kind == "sum":
        wide = np.float64 if v.dtype.kind == "f" else v.dtype
        total: Array = v.sum(axis=axes, dtype=wide).astype(to_numpy(dtype))
        return total.reshape(shape)
    fn: Any = {"prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all}[kind]
    if v.size == 0 and kind in ("max", "min"):
        return np.full(shape, -np.inf if kind == "max" else np.inf, v.dtype)
    kw: dict[str, Any] = {"dtype": v.dtype} if kind == "prod" else {}
    return np.asarray(fn(v, axis=axes, **kw)).reshape(shape)
