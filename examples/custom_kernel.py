"""A kernel of your own: an operator that PyTorch would run step by step, and the C++ that dcir runs in its place.

    python examples/custom_kernel.py

    y[r, t] = decay * y[r, t-1] + x[r, t]

Four parts, in the order in which a graph meets them: the operator as torch knows it, the spec of dcir's library node, the page that lowers
the one to the other, and the emitter that writes the node's C++. Here they are registered by being imported; ``examples/extension`` is a
package whose parts are found as soon as it is installed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import dcir
from dcir.codegen.cpp.emitters import planner
from dcir.codegen.plan import KernelPlan, Phase
from dcir.cost.machine import Machine
from dcir.ir.operator import Operator
from dcir.ir.serialize import register
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.registry import Sample, operator


@torch.library.custom_op("custom_kernel::smooth", mutates_args=())
def smooth(x: torch.Tensor, decay: float) -> torch.Tensor:
    """Sums along the last dimension that forget: [..., steps] of the same type."""
    last, steps = torch.zeros_like(x[..., 0]), []
    for now in x.unbind(-1):
        last = decay * last + now
        steps.append(last)
    return torch.stack(steps, -1)


@smooth.register_fake
def _(x: torch.Tensor, decay: float) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype)


@register
@dataclass(frozen=True)
class SmoothSpec(Operator):
    """The node: contiguous rows of f32 in, as many out.

    Attributes:
        rows, length: the tensor's sizes.
        decay: what of a sum is left one step later.
    """

    rows: int
    length: int
    decay: float

    kind = "smoothing"

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bytes of what is read and of what is written."""
        return (4 * self.rows * self.length,), (4 * self.rows * self.length,)

    def operations(self) -> int:
        """A product and a sum per element."""
        return 2 * self.rows * self.length

    def describe(self) -> str:
        """Its sizes."""
        return f"{self.kind} of {self.rows} rows of {self.length}"

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """The definition, with NumPy."""
        x, y = (a[: self.rows * self.length].reshape(self.rows, self.length) for a in (ins[0], outs[0]))
        last = 0 * x[:, 0]
        for t in range(self.length):
            last = y[:, t] = last * x.dtype.type(self.decay) + x[:, t]


def _samples() -> Iterable[Sample]:
    """What dcir's own tests of pages run a page with."""
    g = torch.Generator().manual_seed(0)
    yield Sample((torch.randn(3, 5, 7, generator=g), 0.5), name="rows")
    yield Sample((torch.randn(9, 4, generator=g).t(), -0.9), name="strides")


@operator("custom_kernel.smooth.default", samples=_samples)
def lower(ctx: Lowering, x: Ref, decay: float) -> Ref:
    """One node over the rows as they lie; what it is not for runs through torch."""
    if x.dtype != "f32" or 0 in x.shape or not math.isfinite(decay):
        raise NotNative("smoothing of other than f32, or of nothing")
    x = ctx.contiguous(x)
    out = ctx.result()
    ctx.emit(SmoothSpec(math.prod(x.shape[:-1]), x.shape[-1], float(decay)), [x], [out])
    return out


@planner(SmoothSpec)
def emit(spec: SmoothSpec, machine: Machine) -> KernelPlan:
    """Each job takes a share of the rows: the threads' team runs jobs in any order, so none may need another."""
    jobs = min(spec.rows, 4 * machine.threads)
    code = f"""
    for (long long r = j * {spec.rows}LL / {jobs}; r < (j + 1) * {spec.rows}LL / {jobs}; r++) {{
        float last = 0.0f;
        for (long long t = 0; t < {spec.length}; t++)
            o0[r * {spec.length}LL + t] = last = last * (float){spec.decay!r} + a0[r * {spec.length}LL + t];
    }}"""
    return KernelPlan("smooth", "", (Phase(jobs, code),))


def main() -> None:
    """Every sample, and a function with dcir's own loops around the kernel, against eager PyTorch."""
    for sample in _samples():
        x, decay = sample.args
        fast = dcir.optimize(lambda x, decay=decay: smooth(x, decay), strict=True)
        print(f"{sample.name}: largest error {float((fast(x) - smooth(x, decay)).abs().max()):.1e}")

    def energy(x: torch.Tensor) -> torch.Tensor:
        return smooth(x * x, 0.95).sqrt()

    fast, x = dcir.optimize(energy, strict=True), torch.randn(64, 1000)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), energy(x))
    print(fast.dcir.explain())
    print(fast.dcir.profile(x))


if __name__ == "__main__":
    main()
