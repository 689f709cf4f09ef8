"""Running sums, products and extremes along one dimension: the library node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcir.ir.describe import sizes_text
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.operator import Operator, Steps
from dcir.ir.serialize import register
from dcir.ir.types import bf16_to_f32, compute_type, f32_to_bf16, itemsize, to_numpy


def _least(dtype: str) -> float:
    kind = to_numpy(dtype)
    return 0 if dtype == "bool" else -math.inf if kind.kind == "f" else int(np.iinfo(str(kind)).min)


def _largest(dtype: str) -> float:
    kind = to_numpy(dtype)
    return 1 if dtype == "bool" else math.inf if kind.kind == "f" else int(np.iinfo(str(kind)).max)


_NEUTRAL: dict[str, Callable[[str], float]] = {
    "sum": lambda _: 0, "prod": lambda _: 1, "max": _least, "min": _largest, "logsumexp": _least,
}  # fmt: skip


@register
@dataclass(frozen=True)
class ScanSpec(Operator):
    """y[row, i] = x[row, 0] op … op x[row, i]; extremes also tell the last position that set them.

    Attributes:
        op: "sum", "prod", "max", "min" or "logsumexp".
        source, result: element types of x and y. Integers work in the result's type, floats in f64 as torch does.
        rows: extents of the other dimensions.
        n: extent of the scanned dimension.
        x, y: strides over (*rows, n).
        positions: strides of the positions (i64, a second result), None where there is none.
    """

    op: str
    source: str
    result: str
    rows: tuple[int, ...]
    n: int
    x: tuple[int, ...]
    y: tuple[int, ...]
    positions: tuple[int, ...] | None = None

    kind = "scan"

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bytes of source and results."""
        count = math.prod(self.rows) * self.n
        outs = (count * itemsize(self.result), *([count * 8] if self.positions is not None else []))
        return (count * itemsize(self.source),), outs

    def operations(self) -> int:
        """One operation per element."""
        return math.prod(self.rows) * self.n

    def describe(self) -> str:
        """Its extents."""
        return f"{self.kind} {self.op} {sizes_text((*self.rows, self.n))}"

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it over NumPy buffers."""
        shape = (*self.rows, self.n)
        v = ins[0][grid(shape, self.x)]
        v = bf16_to_f32(v) if self.source == "bf16" else v
        v = v.astype(to_numpy(compute_type(self.result)))
        if self.op in ("max", "min"):
            y, where = _extremes(v, self.op)
            if self.positions is not None:
                outs[1][grid(shape, self.positions)] = where
        elif self.op == "logsumexp":
            y = np.logaddexp.accumulate(v.astype(np.float64), axis=-1)
        else:
            fold = np.add if self.op == "sum" else np.multiply
            y = fold.accumulate(v.astype(np.float64) if v.dtype.kind == "f" else v, axis=-1)
        y = y.astype(v.dtype)
        outs[0][grid(shape, self.y)] = f32_to_bf16(y) if self.result == "bf16" else y.astype(to_numpy(self.result))

    def steps(self) -> Steps:
        """The same as a loop nest in which every element looks back over all before it: for stock DaCe, and no kernel.

        The inner loop runs backwards from the element itself, so that the first place with an extreme is the last that set it.
        """
        rank, work = len(self.rows), compute_type(self.result)
        body = LoopNestBuilder((*self.rows, self.n), (self.n,))
        at, back = body.index(rank), body.index(rank + 1)
        neutral = body.const(_NEUTRAL[self.op](work), compute_type(self.source))
        x = body.load(body.input(self.source), (*self.x, -self.x[-1]), back <= at, neutral)
        x = body.convert(x, work)
        if self.op == "logsumexp":
            top = body.reduce("max", x)
            top = body.where(body.op("isfinite", top, dtype="bool"), top, body.const(0.0, work))
            y = body.op("log", body.reduce("sum", body.op("exp", x - top))) + top
        else:
            y = body.reduce(self.op, x)
        body.store(body.output(self.result), (*self.y, 0), y)
        if self.positions is not None:
            body.store(body.output("i64"), (*self.positions, 0), at - body.reduce("arg" + self.op, x))
        nest = body.finish()
        return [], [(nest, ["a0"], [f"o{i}" for i in range(len(nest.outputs))])]


def _extremes(v: Any, op: str) -> tuple[Any, Any]:
    y, where = v.copy(), np.zeros(v.shape, np.int64)
    for i in range(1, v.shape[-1]):
        old, new = y[..., i - 1], v[..., i]
        better = (new >= old) if op == "max" else (new <= old)
        if v.dtype.kind == "f":
            better = np.isnan(new) | (~np.isnan(old) & better)
        y[..., i] = np.where(better, new, old)
        where[..., i] = np.where(better, i, where[..., i - 1])
    return y, where


def grid(shape: Sequence[int], strides: Sequence[int]) -> Any:
    """The address of every element."""
    at = np.zeros(tuple(shape), np.int64)
    for d, (n, s) in enumerate(zip(shape, strides, strict=True)):
        at = at + (np.arange(n, dtype=np.int64) * s).reshape([-1 if i == d else 1 for i in range(len(shape))])
    return at
