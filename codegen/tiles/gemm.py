"""Batched matrix products: normal form, choice of method and tile, and the plan.

Three methods. ``dot``: few rows against an operand that is contiguous along k (nn.Linear at small batch): dot products,
nothing is packed. ``tiles``: register tiles of broadcast A times vectors of B, both packed per job into stack buffers where
their layout asks for it. Every other layout (any strides at all) is handled by the packing.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dcir.codegen.plan import KernelPlan
from dcir.codegen.tiles.emit import HALF, Draft, Operand, Step, assemble, assemble_half, lanes, render, unravel
from dcir.codegen.tiles.gemm_dot import dot_draft, dot_suits
from dcir.codegen.tiles.gemm_tiles import tiles_draft
from dcir.codegen.tiles.isa import Isa
from dcir.ops.contraction import ContractionSpec


def plan_gemm(spec: ContractionSpec, isa: Isa, threads: int) -> KernelPlan:
    """The kernel of C[b,m,n] = sum_k A[b,m,k] B[b,k,n]; inputs a0 = A, a1 = B, output o0 = C."""
    if spec.dtype not in HALF:
        return assemble(gemm_draft(spec, isa, threads), isa, 2)
    a = Operand((*spec.batch, spec.m, spec.k), spec.a)
    b = Operand((*spec.batch, spec.k, spec.n), spec.b)
    c = Operand((*spec.batch, spec.m, spec.n), spec.c)
    dense = replace(spec, dtype="f32", a=a.dense().strides, b=b.dense().strides, c=c.dense().strides)
    return assemble_half(gemm_draft(dense, isa, threads), isa, spec.dtype, (a, b), c, threads)


def gemm_draft(spec: ContractionSpec, isa: Isa, threads: int, bias: tuple[int, ...] | None = None) -> Draft:
    """The product in f32 or f64; with ``bias`` (batch strides of a2), a2 holds one value per row m, added to C."""
    name = f"gemm_{spec.m}x{spec.n}x{spec.k}"
    if math.prod(spec.batch) * spec.m * spec.n == 0:
        return Draft(name, spec.dtype, "", ())
    if spec.k == 0 and bias is None:
        return _zeros(name, spec)
    spec = spec if bias is not None else merge_batch(spec)
    swapped = bias is None and _swap_suits(spec, isa)
    if swapped:
        spec = transposed(spec)
    if bias is None and dot_suits(spec, isa):
        draft = dot_draft(name, spec, isa, threads)
    else:
        draft = tiles_draft(name, spec, isa, threads, bias)
    return replace(draft, swapped=swapped)


def transposed(spec: ContractionSpec) -> ContractionSpec:
    """The same product as C' = B' A'."""

    def swap(s: tuple[int, ...]) -> tuple[int, ...]:
        return (*s[:-2], s[-1], s[-2])

    return replace(spec, m=spec.n, n=spec.m, a=swap(spec.b), b=swap(spec.a), c=swap(spec.c))


def merge_batch(spec: ContractionSpec) -> ContractionSpec:
    """Batch dimensions become rows (or columns) where the other operand is the same for all of them."""
    for flipped in (False, True):
        s = transposed(spec) if flipped else spec
        merged = True
        while merged:
            merged = False
            for d, extent in enumerate(s.batch):
                drop = extent == 1
                rows = s.b[d] == 0 and (s.m == 1 or (s.a[d], s.c[d]) == (s.a[-2] * s.m, s.c[-2] * s.m))
                if not drop and not rows:
                    continue
                a, b, c = ((*t[:d], *t[d + 1 :]) for t in (s.a, s.b, s.c))
                if not drop:
                    if s.m == 1:
                        a, c = (*a[:-2], s.a[d], a[-1]), (*c[:-2], s.c[d], c[-1])
                    s = replace(s, m=s.m * extent)
                s = replace(s, batch=(*s.batch[:d], *s.batch[d + 1 :]), a=a, b=b, c=c)
                merged = True
                break
        spec = transposed(s) if flipped else s
    return spec


def _swap_suits(spec: ContractionSpec, isa: Isa) -> bool:
    """Whether the product is better computed as its transpose."""
    width = lanes(isa, spec.dtype)
    if dot_suits(spec, isa) != dot_suits(transposed(spec), isa):
        return dot_suits(transposed(spec), isa)
    if spec.n * 2 <= width <= spec.m:
        return True
    if spec.m * 2 <= width <= spec.n:
        return False
    contiguous, other = spec.n == 1 or spec.c[-1] == 1, spec.m == 1 or spec.c[-2] == 1
    return other and not contiguous


def _zeros(name: str, spec: ContractionSpec) -> Draft:
    rows = math.prod(spec.batch) * spec.m
    text = render(
        """
$noinline void zero(L j, const T *, const T *, const T *, T *o0, unsigned char *) {
    $offset
    for (L i = 0; i < $n; i++) o0[p + i * $step] = 0;
}
""",
        offset=unravel("j", (*spec.batch, spec.m), {"p": (0, spec.c[:-1])}), n=spec.n, step=spec.c[-1],
    )  # fmt: skip
    return Draft(name, spec.dtype, text, (Step(rows, "zero"),))
