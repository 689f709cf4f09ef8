"""Products of halves with what is done before and after, for tests of the matrix units' kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from dcir.codegen.cuda.launch import CudaPlan
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.types import bf16_to_f32, to_numpy
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.fused_product import FusedProduct, along
from dcir.ops.library.operand_types import alike
from tests.codegen.cuda.running import planned, values
from tests.codegen.cuda.twin import Twin, aligned_like


def matrices(m: int, n: int, k: int, dtype: str = "bf16", *, a: str = "rows", b: str = "rows") -> ContractionSpec:
    """C = A B, each of which lies in rows or in columns."""
    at = {"rows": lambda _, columns: (columns, 1), "columns": lambda rows, _: (1, rows)}
    return ContractionSpec(alike(dtype), (), m, n, k, at[a](m, k), at[b](k, n), (n, 1))


def stored(s: ContractionSpec) -> LoopNest:
    """C as it is."""
    body = LoopNestBuilder((s.n,), (s.m,))
    body.store(body.output(s.types.c), (1, s.n), body.load(body.input(s.types.c), (1, s.n)))
    return body.finish()


def activated(s: ContractionSpec) -> LoopNest:
    """relu(C + bias) + residual, and C itself in rows further apart."""
    body = LoopNestBuilder((s.n,), (s.m,))
    c, bias = body.load(body.input(s.types.c), (1, s.n)), body.load(body.input("f32"), (1, 0))
    rest = body.load(body.input(s.types.c), (1, s.n))
    body.store(body.output(s.types.c), (1, s.n), body.op("max", c + bias, body.const(0.0, "f32")) + rest)
    body.store(body.output(s.types.c), (1, s.n + 8), c)
    return body.finish()


def summed(s: ContractionSpec) -> LoopNest:
    """C, the mean and the mean of squares of its columns."""
    body = LoopNestBuilder((s.n,), (s.m,))
    c = body.load(body.input(s.types.c), (1, s.n))
    body.store(body.output(s.types.c), (1, s.n), c)
    for value in (c, c * c):
        body.store(body.output("f32"), (1, 0), body.reduce("sum", value) * (1.0 / s.m))
    return body.finish()


def normalised(s: ContractionSpec) -> LoopNest:
    """A = relu(x * scale + shift), of a scale and a shift a column, and a factor a row."""
    body = LoopNestBuilder((s.m, s.k))
    x, scale = body.load(body.input(s.types.a), (s.k, 1)), body.load(body.input("f32"), (0, 1))
    shift, row = body.load(body.input("f32"), (0, 1)), body.load(body.input("f32"), (1, 0))
    body.store(body.output(s.types.a), (s.k, 1), body.op("max", x * scale + shift, body.const(0.0, "f32")) * row)
    return body.finish()


def turned(s: ContractionSpec) -> LoopNest:
    """A = relu(x * scale), of a scale a row, where A lies in columns."""
    body = LoopNestBuilder((s.m, s.k))
    x, scale = body.load(body.input(s.types.a), (1, s.m)), body.load(body.input("f32"), (1, 0))
    body.store(body.output(s.types.a), (1, s.m), body.op("max", x * scale, body.const(0.0, "f32")))
    return body.finish()


def normalised_and_kept(s: ContractionSpec) -> LoopNest:
    """The same, stored too, in rows further apart."""
    p = normalised(s)
    return replace(
        p, outputs=(s.types.a, s.types.a), body=(*p.body, replace(p.body[-1], operand=1, strides=(s.k + 8, 1)))
    )  # type: ignore[call-arg]


def check_products(specs: list[FusedProduct], folder: Path) -> tuple[Twin, list[CudaPlan]]:
    """Each plan against its reference, all of its results written."""
    plans = [planned(s) for s in specs]
    twin = Twin((launch for plan in plans for launch in plan.launches), folder)
    rng = np.random.default_rng(0)
    for spec, plan in zip(specs, plans, strict=True):
        run(spec, plan, twin, rng)
    return twin, plans


def run(spec: FusedProduct, plan: CudaPlan, twin: Twin, rng: np.random.Generator) -> list[np.ndarray]:
    """A plan against its reference; the results."""
    s = spec.product
    head = spec.prologue
    types = [s.types.a] if head is None else list(head.inputs)
    reach = [s.m * s.k] if head is None else [s.m * s.k, s.m] if along(s) == 0 else [s.m * s.k, s.k, s.k, s.m]
    types += [s.types.b, *spec.tail.inputs[1:]]
    reach += [s.k * s.n, *[s.n, s.m * s.n][: len(spec.tail.inputs) - 1]]
    ins = [values(t, n, rng) for t, n in zip(types, reach, strict=True)]
    sizes = [s.m * s.n, s.m * s.n + 8 * (s.m - 1)] if len(spec.tail.inputs) > 1 else [s.m * s.n, s.n, s.n]
    results = [(s.types.a, s.m * (s.k + 8) - 8)] * spec.beside + list(zip(spec.tail.outputs, sizes, strict=False))
    outs = [aligned_like(np.zeros(n, to_numpy(t)), 0xFF) for t, n in results]
    want = [o.copy() for o in outs]
    spec.reference(ins, want)
    twin.run(plan, ins, outs)
    for got, right, (dtype, _) in zip(outs, want, results, strict=True):
        assert_near(got, right, dtype)
    return outs


def assert_near(got: np.ndarray, want: np.ndarray, dtype: str) -> None:
    """Results differ by a rounding to the half type, or two of it; sums of such results by less. What is not written agrees in its bits."""
    g, w = (bf16_to_f32(x) if dtype == "bf16" else x.astype(np.float32) for x in (got, want))
    assert np.array_equal(np.isnan(g), np.isnan(w)), "error: NaN in other places"
    there = ~np.isnan(w)
    error, scale = np.abs(g - w)[there].max(), np.abs(w[there]).max()
    units = {"bf16": 2.0**-7, "f16": 2.0**-10, "f32": 2.0**-9}[dtype]
    assert error <= units * scale, f"error {error:.3g} at scale {scale:.3g}"
