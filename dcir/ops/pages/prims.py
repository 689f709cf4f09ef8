"""Pages of PyTorch's primitive operators, which decompositions leave behind: the ATen pages under other names.

Primitives promote nothing and broadcast nothing, so of the ATen samples those of equal types and shapes apply.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.binary import no_zero_divisor
from dcir.ops.reach import is_elsewhere
from dcir.ops.registry import PAGES, Sample, operator
from dcir.ops.samples import rand

for _module in ("arithmetic", "binary", "comparison", "movement", "selection", "unary", "activations", "views"):
    importlib.import_module(f"dcir.ops.pages.{_module}")

_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "digamma", "erf", "erfc", "exp",
    "exp2", "expm1", "floor", "isfinite", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round",
    "rsqrt", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "bitwise_not",
)  # fmt: skip
_BINARY = {
    "add": "add.Tensor", "sub": "sub.Tensor", "mul": "mul.Tensor", "atan2": "atan2", "maximum": "maximum",
    "minimum": "minimum", "fmax": "fmax", "fmin": "fmin", "fmod": "fmod.Tensor", "remainder": "remainder.Tensor",
    "hypot": "hypot", "nextafter": "nextafter", "pow": "pow.Tensor_Tensor", "eq": "eq.Tensor", "ne": "ne.Tensor",
    "lt": "lt.Tensor", "le": "le.Tensor", "gt": "gt.Tensor", "ge": "ge.Tensor", "bitwise_and": "bitwise_and.Tensor",
    "bitwise_or": "bitwise_or.Tensor", "bitwise_xor": "bitwise_xor.Tensor",
    "shift_left": "bitwise_left_shift.Tensor", "shift_right_arithmetic": "bitwise_right_shift.Tensor",
    "where": "where.self",
}  # fmt: skip


def _alike(make: Callable[[], Iterable[Sample]], integers: bool) -> Callable[[], Iterable[Sample]]:
    def fits(s: Sample) -> bool:
        tensors = [a for a in s.args if isinstance(a, torch.Tensor)]
        same = all(t.shape == tensors[0].shape for t in tensors) and len({t.dtype for t in tensors[-2:]}) == 1
        return same and len(tensors) == len(s.args) and (integers or tensors[0].is_floating_point())

    return lambda: [s for s in make() if fits(s) and not s.kwargs]


for _name in _UNARY:
    _page = PAGES[f"aten.{_name}.default"]
    operator(f"prims.{_name}.default", samples=_alike(_page.samples, _name == "bitwise_not"), view=_page.view)(
        _page.lower
    )
for _name, _aten in _BINARY.items():
    _page = PAGES[f"aten.{_aten}" if "." in _aten else f"aten.{_aten}.default"]
    operator(f"prims.{_name}.default", samples=_alike(_page.samples, True))(_page.lower)
operator("prims.erf_inv.default", samples=_alike(PAGES["aten.erfinv.default"].samples, False))(
    PAGES["aten.erfinv.default"].lower
)


@operator("prims.div.default", samples=lambda: [
    Sample((rand(3, 4), rand(3, 4, low=1, high=2, seed=1))),
])  # fmt: skip
def div(ctx: Lowering, a: Ref, b: Ref) -> Ref:
    """A quotient; of integers, towards zero."""
    no_zero_divisor(ctx, a, b)
    return ctx.pointwise(lambda x, y: x / y if x.dtype[0] == "f" else x.body.op("idiv_trunc", x, y), a, b)


@operator("prims.rev.default", samples=lambda: [Sample((rand(3, 4), [0])), Sample((rand(2, 3, 4), [2, 0]))])
def rev(ctx: Lowering, x: Ref, dims: Any) -> Ref:
    """Some dimensions backwards."""
    result: Ref = PAGES["aten.flip.default"].lower(ctx, x, dims)
    return result


@operator("prims.broadcast_in_dim.default", samples=lambda: [Sample((rand(3, 1), [2, 3, 4], [1, 2]))], view=True)
def broadcast_in_dim(ctx: Lowering, x: Ref, shape: Any, dims: Any) -> Ref:
    """Broadcast, with the place of every dimension given."""
    strides = [0] * len(ctx.out.shape)
    for d, n, s in zip(dims, x.shape, x.strides, strict=True):
        strides[d] = 0 if n == 1 else s
    return Ref(x.data, ctx.out.shape, tuple(strides), x.offset, x.dtype)


@operator("prims.clone.default", "prims.view_of.default", samples=lambda: [Sample((rand(3, 4),))], view=True)
def clone(ctx: Lowering, x: Ref, **options: Any) -> Ref:
    """The same tensor."""
    return x


@operator("prims.device_put.default", samples=lambda: [Sample((rand(3), torch.device("cpu")))], view=True)
def device_put(ctx: Lowering, x: Ref, device: Any, non_blocking: bool = False) -> Ref:
    """The same tensor, as long as it stays where the code runs."""
    if is_elsewhere(device):
        raise NotNative("another device")
    return x
