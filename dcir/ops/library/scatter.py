"""Scatters: a tensor, copied or filled, into whose elements at computed addresses values are written or folded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dcir.errors import IndexOutOfRange
from dcir.ir.describe import sizes_text
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.operator import IndexCheck, Operator
from dcir.ir.serialize import register
from dcir.ir.statements import Const
from dcir.ir.types import bf16_to_f32, compute_type, f32_to_bf16, itemsize, to_numpy
from dcir.ops.library.scan import grid
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.reducing import refuse_complex

OPERATIONS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


class Indexed(Protocol):
    """What points have indices in inputs one after the other."""

    @property
    def dims(self) -> tuple[int, ...]: ...
    @property
    def indices(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def extents(self) -> tuple[int, ...]: ...
    @property
    def skip(self) -> int | None: ...


def index_checks(spec: Indexed, first: int) -> tuple[IndexCheck, ...]:
    """What an operator checks whose indices are inputs from number ``first`` on."""
    return tuple(
        IndexCheck.of(first + n, spec.dims, strides, extent, always=spec.skip is None)
        for n, (strides, extent) in enumerate(zip(spec.indices, spec.extents, strict=True))
    )


@register
@dataclass(frozen=True)
class ScatterSpec(Operator):
    """out = base; then for every point of the loops, in row-major order, out[address] = or += … source.

    The address is sum(loop * to) + sum(index * step). Operands: the base (unless filled), the source, the indices.

    Attributes:
        op: "set", "add", "mul", "min" or "max".
        dtype: element type of base, source and result.
        shape: extents of base and result.
        base: strides of the base, None where the result starts as ``fill`` everywhere.
        fill: that number.
        out: strides of the result.
        dims: extents of the loops.
        to: the result's strides over the loops.
        source: the source's strides over the loops.
        indices: per index, its strides over the loops.
        index_types: per index, its element type.
        extents: per index, how many values it may take.
        index_steps: per index, the result's stride for it.
        wrap: whether negative indices count from the end.
        skip: a value of the first index whose points are passed over.
        kept: base and result share their memory, so what no point hits is there already.
    """

    op: str
    dtype: str
    shape: tuple[int, ...]
    base: tuple[int, ...] | None
    fill: float
    out: tuple[int, ...]
    dims: tuple[int, ...]
    to: tuple[int, ...]
    source: tuple[int, ...]
    indices: tuple[tuple[int, ...], ...]
    index_types: tuple[str, ...]
    extents: tuple[int, ...]
    index_steps: tuple[int, ...]
    wrap: bool
    skip: int | None = None
    kept: bool = False

    kind = "scatter"

    @property
    def first(self) -> int:
        """The source's number among the inputs."""
        return 0 if self.base is None else 1

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes of base, source, indices and result."""

        def seen(strides: Sequence[int], dtype: str) -> int:
            return math.prod(d for d, s in zip(self.dims, strides, strict=True) if s) * itemsize(dtype)

        size = math.prod(self.shape) * itemsize(self.dtype)
        if self.kept:  # no more than there are points to hit
            size = min(size, math.prod(self.dims) * itemsize(self.dtype))
        indices = (seen(st, t) for st, t in zip(self.indices, self.index_types, strict=True))
        old = 0 if self.kept and self.op == "set" else size
        return (*([old] if self.base is not None else []), seen(self.source, self.dtype), *indices), (size,)

    def operations(self) -> int:
        """One operation per point, none where values are only written."""
        return 0 if self.op == "set" else math.prod(self.dims)

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it over NumPy buffers.

        Raises:
            IndexOutOfRange: an index leaves its range.
        """
        out, rest = outs[0], list(ins)
        where = grid(self.shape, self.out)
        if self.base is None:
            out[where] = _narrow(np.full((), self.fill), self.dtype)
        else:
            out[where] = rest.pop(0)[grid(self.shape, self.base)]
        source, wanted = rest[0][grid(self.dims, self.source)], np.ones(self.dims, bool)
        at = grid(self.dims, self.to)
        for n, (buffer, strides) in enumerate(zip(rest[1:], self.indices, strict=True)):
            index = buffer[grid(self.dims, strides)].astype(np.int64)
            if n == 0 and self.skip is not None:
                wanted = index != self.skip
            if self.wrap:
                index = np.where(index < 0, index + self.extents[n], index)
            if bool(np.any(wanted & ((index < 0) | (index >= self.extents[n])))):
                raise IndexOutOfRange("an index lies outside its tensor")
            at = at + index * self.index_steps[n]
        at, source = at[wanted], source[wanted]
        if self.op == "set":
            out[at] = source
            return
        values = _widen(out, self.dtype)
        OPERATIONS[self.op].at(values, at, _widen(source, self.dtype))
        out[...] = _narrow(values, self.dtype)

    def index_checks(self) -> tuple[IndexCheck, ...]:
        """Of all indices; points that are passed over are not looked at."""
        return index_checks(self, 1 + (self.base is not None))

    @property
    def updates_first_input(self) -> bool:
        """Where there is a base, in the result's layout."""
        if self.base is None:
            return False
        return all(b == o for n, b, o in zip(self.shape, self.base, self.out, strict=True) if n > 1)

    def with_result_apart(self) -> ScatterSpec:
        """Nothing of the result is there already."""
        return replace(self, kept=False)

    def describe(self) -> str:
        """Its loops' extents."""
        return f"{self.kind} {self.op} {sizes_text(self.dims)}"

    def loop_nest(self) -> LoopNest:
        """The same as a loop nest in gather form: for every element of the result, all points that hit it.

        Its work is the product of both sizes, which is why it serves stock DaCe and no kernel.
        """
        body = LoopNestBuilder(self.shape, self.dims)
        n_out, n_in = len(self.shape), len(self.dims)
        compute = compute_type(self.dtype)
        base = None if self.base is None else body.load(body.input(self.dtype), (*self.base, *(0,) * n_in))
        start = body.const(self.fill, compute) if base is None else base
        source = body.input(self.dtype)
        here, there = body.const(0, "i64"), body.const(0, "i64")
        for d, step in enumerate(self.out):
            here = here + body.index(d) * step
        for d, step in enumerate(self.to):
            there = there + body.index(n_out + d) * step
        wanted = body.const(True, "bool")
        for n, (strides, dtype) in enumerate(zip(self.indices, self.index_types, strict=True)):
            index = body.convert(body.load(body.input(dtype), (*(0,) * n_out, *strides)), "i64")
            if n == 0 and self.skip is not None:
                wanted = wanted & index.ne(self.skip)
            if self.wrap:
                index = body.where(index < 0, index + self.extents[n], index)
            there = there + index * self.index_steps[n]
        hit = wanted & here.eq(there)
        result = body.output(self.dtype)
        to = (*self.out, *(0,) * n_in)
        if self.op != "set":
            identity = {"add": 0.0, "mul": 1.0}.get(self.op)
            value = body.load(source, (*(0,) * n_out, *self.source))
            other = start if identity is None else body.const(identity, compute)
            kind = {"add": "sum", "mul": "prod"}.get(self.op, self.op)
            total = body.reduce(kind, body.where(hit, value, other))
            body.store(result, to, body.op(self.op, start, total))
            return body.finish()
        position = body.const(0, "i64")
        for d, n in enumerate(self.dims):
            position = position * n + body.index(n_out + d)
        last = body.reduce("max", body.where(hit, position, body.const(-1, "i64")))
        found, rest, places = last >= 0, last, []
        for n in reversed(self.dims):
            places.append(body.op("mod", rest, body.const(n, "i64")))
            rest = body.op("idiv_floor", rest, body.const(n, "i64"))
        if not any(self.source):
            body.store(result, to, body.load(source, (0,) * (n_out + n_in), found, start))
            return body.finish()
        value = body.gather(
            source, (0,) * (n_out + n_in), places[::-1], self.dims, self.source, checked=False, mask=found, other=start
        )
        body.store(result, to, value)
        return body.finish()


def unambiguous(spec: ScatterSpec) -> bool:
    """Whether an address tells the values of all loops and indices that move it."""
    terms = [(abs(s), n) for s, n in zip(spec.to, spec.dims, strict=True) if s and n > 1]
    terms += [(abs(s), n) for s, n in zip(spec.index_steps, spec.extents, strict=True) if n > 1]
    reach = 0
    for step, count in sorted(terms):
        if step <= reach:
            return False
        reach += step * (count - 1)
    return True


def _widen(values: Any, dtype: str) -> Any:
    if dtype == "bf16":
        return bf16_to_f32(values)
    return values.astype(np.float32) if dtype == "f16" else values.copy()


def _narrow(values: Any, dtype: str) -> Any:
    return f32_to_bf16(values) if dtype == "bf16" else values.astype(to_numpy(dtype))


@dataclass(frozen=True)
class Index:
    """One index of a scatter.

    Attributes:
        ref: its tensor.
        strides: over the loops.
        extent: how many values it may take.
        step: the result's stride for it.
    """

    ref: Ref
    strides: tuple[int, ...]
    extent: int
    step: int


def scatter(
    ctx: Lowering, base: Ref | float, dst: Ref, op: str, source: Ref, indices: Sequence[Index], *,
    dims: Sequence[int], to: Sequence[int], strides: Sequence[int], wrap: bool = False, skip: int | None = None,
) -> Ref:  # fmt: skip
    """Add a scatter node that writes ``dst``.

    Args:
        ctx: where to.
        base: what the result starts as: a tensor of its shape, or a number.
        dst: the result.
        op: how a source element joins.
        source: the values.
        indices: the indices.
        dims: extents of the loops.
        to, strides: strides over the loops of the result and of the source.
        wrap: whether negative indices count from the end.
        skip: a value of the first index to pass over.

    Raises:
        NotNative: element types that scatters do not know.
    """
    if isinstance(base, Ref):
        refuse_complex(ctx, base)
        fill = constant_of(ctx, base)
        base = base if fill is None else fill
    if not math.prod(dims):
        return ctx.copy(base, dst) if isinstance(base, Ref) else ctx.full(base, dst)
    if source.dtype != dst.dtype:
        source, strides = _converted(ctx, source, strides, dst.dtype)
    if any(i.ref.dtype not in ("i64", "i32") for i in indices):
        raise NotNative("indices of another type than i64 and i32")
    # A loop of extent 1 stands still, whatever its tensor says.
    dims = tuple(int(d) for d in dims)

    def still(st: Sequence[int]) -> tuple[int, ...]:
        return tuple(int(s) if d != 1 else 0 for d, s in zip(dims, st, strict=True))

    spec = ScatterSpec(
        op, dst.dtype, dst.shape, base.strides if isinstance(base, Ref) else None,
        0 if isinstance(base, Ref) else base, dst.strides, dims, still(to), still(strides),
        tuple(still(i.strides) for i in indices), tuple(i.ref.dtype for i in indices),
        tuple(i.extent for i in indices), tuple(i.step for i in indices), wrap, skip,
    )  # fmt: skip
    ctx.emit(spec, [*([base] if isinstance(base, Ref) else []), source, *(i.ref for i in indices)], [dst])
    return dst


def _converted(ctx: Lowering, source: Ref, strides: Sequence[int], dtype: str) -> tuple[Ref, Sequence[int]]:
    """The source in another type; its strides over the loops stay if its layout could be kept."""
    new = ctx.new(source.shape, dtype, source.strides)
    if new.strides != source.strides:
        raise NotNative("a source of another type with gaps in it")
    return ctx.copy(source, new), strides


def constant_of(ctx: Lowering, ref: Ref) -> float | None:
    """The number a tensor was just filled with, so that a scatter into it need not read it."""
    writers = ctx.net.writers(ref.data)
    if len(writers) != 1 or not isinstance(writers[0].spec, LoopNest):
        return None
    p = writers[0].spec
    filled = p.body[0]
    if [s.op for s in p.body] != ["const", "store"] or not isinstance(filled, Const):
        return None
    if math.prod(p.dims) < ctx.net.containers[ref.data].size:
        return None
    return filled.value if math.isfinite(filled.value) else None
