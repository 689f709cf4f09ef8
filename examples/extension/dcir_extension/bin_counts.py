"""``example::bin_counts``: how many elements of a tensor lie in each of some equal bins; for torch an operator, for dcir a kernel.

    counts = torch.ops.example.bin_counts(x, 64, 0.0, 1.0)

The parts, in the order in which a graph meets them: the operator as torch knows it, the spec of dcir's library node, the page that lowers
the one to the other, and the emitter that writes the node's C++.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dcir.codegen.cpp.emitters import planner
from dcir.codegen.plan import KernelPlan, Phase
from dcir.cost.machine import Machine
from dcir.ir.operator import Operator
from dcir.ir.serialize import register
from dcir.ir.types import TYPES, itemsize
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.registry import Sample, operator


@torch.library.custom_op("example::bin_counts", mutates_args=())
def bin_counts(x: torch.Tensor, bins: int, low: float, high: float) -> torch.Tensor:
    """Counts of ``bins`` equal bins of [low, high), int64; what lies outside, and NaN, is not counted."""
    inside = x[(x >= low) & (x < high)].double()
    place = ((inside - low) * (bins / (high - low))).long().clamp_(max=bins - 1)
    return torch.bincount(place, minlength=bins)


@bin_counts.register_fake
def _(x: torch.Tensor, bins: int, low: float, high: float) -> torch.Tensor:
    return x.new_empty((bins,), dtype=torch.int64)


@register
@dataclass(frozen=True)
class BinCountsSpec(Operator):
    """The node: a contiguous tensor in, one count per bin out.

    Attributes:
        dtype: of the tensor, "f32" or "f64".
        count: its elements.
        bins: their number.
        low, high: where the first bin begins and the last one ends.
    """

    dtype: str
    count: int
    bins: int
    low: float
    high: float

    kind = "bin counts"

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bytes of the tensor and of the counts."""
        return (self.count * itemsize(self.dtype),), (self.bins * 8,)

    def operations(self) -> int:
        """Per element two comparisons, a difference, a product and a sum."""
        return 5 * self.count

    def describe(self) -> str:
        """Its sizes."""
        return f"{self.kind} {self.count} into {self.bins}"

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """The definition, with NumPy."""
        x = ins[0][: self.count]
        x = x[(x >= self.low) & (x < self.high)].astype(np.float64)
        place = ((x - self.low) * (self.bins / (self.high - self.low))).astype(np.int64)
        outs[0][: self.bins] = np.bincount(np.minimum(place, self.bins - 1), minlength=self.bins)


def _samples() -> Iterable[Sample]:
    """What dcir's own tests of pages run a page with."""
    g = torch.Generator().manual_seed(0)
    yield Sample((torch.randn(1000, generator=g), 16, -2.0, 2.0), name="outside")
    yield Sample((torch.rand(7, 30, generator=g).double(), 5, 0.0, 1.0), name="double")
    yield Sample((torch.rand(40, 40, generator=g).t(), 3, 0.0, 1.0), name="strides")
    yield Sample((torch.tensor([0.0, 1.0, float("nan"), float("inf")]), 2, 0.0, 1.0), name="special")
    yield Sample((torch.rand(1 << 16, generator=g), 300, 0.0, 0.5), name="many")


@operator("example.bin_counts.default", samples=_samples)
def lower(ctx: Lowering, x: Ref, bins: int, low: float, high: float) -> Ref:
    """One node over the elements in any order."""
    if x.dtype not in ("f32", "f64") or not bins > 0 or not low < high:
        raise NotNative("bins of other than f32 and f64, or none")
    x = ctx.contiguous(x)
    out = ctx.result()
    ctx.emit(BinCountsSpec(x.dtype, math.prod(x.shape), bins, float(low), float(high)), [x], [out])
    return out


SERIAL = 1 << 14
"""Elements for which a second thread does not pay."""


@planner(BinCountsSpec)
def emit(spec: BinCountsSpec, machine: Machine) -> KernelPlan:
    """Two phases: every job counts its share of the elements for itself, then the counts are added up, some bins a job."""
    jobs = 1 if spec.count < SERIAL else 4 * machine.threads
    own = f"(long long *)scratch + j * {spec.bins}LL"
    share = -(-spec.count // jobs)
    count = f"""
    long long *own = {own};
    for (long long b = 0; b < {spec.bins}; b++) own[b] = 0;
    const long long end = (j + 1) * {share}LL < {spec.count}LL ? (j + 1) * {share}LL : {spec.count}LL;
    for (long long i = j * {share}LL; i < end; i++) {{
        const {TYPES[spec.dtype].cpp} x = a0[i];
        if (!(x >= {spec.low!r} && x < {spec.high!r})) continue;
        long long b = (long long)(((double)x - {spec.low!r}) * {spec.bins / (spec.high - spec.low)!r});
        own[b < {spec.bins} ? b : {spec.bins - 1}]++;
    }}"""
    add = f"""
    const long long *all = (const long long *)scratch;
    const long long first = j * {spec.bins}LL / {jobs}, last = (j + 1) * {spec.bins}LL / {jobs};
    for (long long b = first; b < last; b++) {{
        long long sum = 0;
        for (long long k = 0; k < {jobs}; k++) sum += all[k * {spec.bins}LL + b];
        o0[b] = sum;
    }}"""
    return KernelPlan("bin_counts", "", (Phase(jobs, count), Phase(jobs, add)), scratch=jobs * spec.bins * 8)
