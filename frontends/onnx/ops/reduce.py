"""Reductions, arg-reductions and sorting."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dcir.frontends.onnx.ops.math import Operand
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.unsigned import from_ordered, ordered, to_ordered, widened
from dcir.frontends.onnx.values import WIDE_UNSIGNED, axes_of_list, axis_of, check_count, ints, scalar

Reduction = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def axes_of(node: Node, rank: int, axes: Operand | None) -> tuple[int, ...]:
    """The axes to reduce: from the operand or the attribute; none means all, unless noop_with_empty_axes."""
    given = ints(axes) if axes is not None else list(node.get("axes") or ())
    if not given:
        return () if node.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(axes_of_list(given, rank))


def _enter(name: str, function: Reduction, since: int) -> None:
    """One reduction in both forms: axes as attribute, and from `since` on as operand."""

    def call(node: Node, x: Tensor, axes: Operand | None = None) -> Tensor:
        dims = axes_of(node, x.ndim, axes)
        return function(x, dims, bool(node["keepdims"]))

    entered = (ordered if name in ("ReduceMax", "ReduceMin") else widened)(call)
    onnx_op(name)(entered)
    onnx_op(name, since=since, host=(1,))(entered)


def _sum(x: Tensor, dims: tuple[int, ...], keep: bool) -> Tensor:
    return torch.sum(x, dims, keep, dtype=x.dtype) if dims else x


def _mean(x: Tensor, dims: tuple[int, ...], keep: bool) -> Tensor:
    if not dims:
        return x
    if x.is_floating_point():
        return torch.mean(x, dims, keep)
    count = 1
    for d in dims:
        count *= x.shape[d]
    return torch.div(torch.sum(x, dims, keep), count, rounding_mode="trunc").to(x.dtype)


def _extreme(function: Callable[..., Tensor], sign: float) -> Reduction:
    def call(x: Tensor, dims: tuple[int, ...], keep: bool) -> Tensor:
        if not dims:
            return x
        if x.dtype == torch.bool:
            return call(x.to(torch.uint8), dims, keep).to(torch.bool)
        if any(x.shape[d] == 0 for d in dims):
            # The neutral element: minus or plus infinity, or the type's own bound.
            bound = sign * float("inf")
            if not x.is_floating_point():
                bound = torch.iinfo(x.dtype).min if sign < 0 else torch.iinfo(x.dtype).max
            shape = [1 if i in dims else d for i, d in enumerate(x.shape)]
            full = x.new_full(shape, bound)
            return full if keep else full.squeeze(dims)
        return function(x, dims, keep)

    return call


def _prod(x: Tensor, dims: tuple[int, ...], keep: bool) -> Tensor:
    for d in sorted(dims, reverse=True):
        x = torch.prod(x, d, keep, dtype=x.dtype)
    return x


def _log_sum_exp(x: Tensor, dims: tuple[int, ...], keep: bool) -> Tensor:
    if not dims:
        return x
    if x.is_floating_point():
        return torch.logsumexp(x, dims, keep)
    return torch.log(torch.sum(torch.exp(x), dims, keep)).to(x.dtype)


def _square_root(x: Tensor) -> Tensor:
    return torch.sqrt(x) if x.is_floating_point() else torch.sqrt(x.to(torch.float64)).to(x.dtype)


def _log(x: Tensor) -> Tensor:
    return torch.log(x) if x.is_floating_point() else torch.log(x.to(torch.float64)).to(x.dtype)


_enter("ReduceSum", _sum, 13)
_enter("ReduceMean", _mean, 18)
_enter("ReduceMax", _extreme(torch.amax, -1), 18)
_enter("ReduceMin", _extreme(torch.amin, 1), 18)
_enter("ReduceProd", _prod, 18)
_enter("ReduceL1", lambda x, dims, keep: _sum(torch.abs(x), dims, keep), 18)
_enter("ReduceL2", lambda x, dims, keep: _square_root(_sum(x * x, dims, keep)) if dims else torch.abs(x), 18)
_enter("ReduceSumSquare", lambda x, dims, keep: _sum(x * x, dims, keep), 18)
_enter("ReduceLogSum", lambda x, dims, keep: _log(_sum(x, dims, keep)), 18)
_enter("ReduceLogSumExp", _log_sum_exp, 18)


@onnx_op("ArgMax", "ArgMin")
def arg_extreme(node: Node, x: Tensor) -> Tensor:
    axis = axis_of(node["axis"], x.ndim)
    x = to_ordered(x) if x.dtype in WIDE_UNSIGNED else x
    function = torch.argmax if node.op == "ArgMax" else torch.argmin
    if node.get("select_last_index"):
        found = function(torch.flip(x, (axis,)), axis, bool(node["keepdims"]))
        return x.shape[axis] - 1 - found
    return function(x, axis, bool(node["keepdims"]))


@onnx_op("TopK")
def top_k_attribute(node: Node, x: Tensor) -> tuple[Tensor, Tensor]:
    return _top_k(node, x, node["k"])


@onnx_op("TopK", since=10, host=(1,))
def top_k(node: Node, x: Tensor, k: Operand) -> tuple[Tensor, Tensor]:
    return _top_k(node, x, scalar(k))


def _top_k(node: Node, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    axis = axis_of(node["axis"], x.ndim)
    check_count("k", k, x.shape[axis])
    largest = bool(node.get("largest", 1))
    # ONNX breaks ties by the lower index, which only a stable sort promises.
    wide = to_ordered(x) if x.dtype in WIDE_UNSIGNED else x
    values, indices = torch.sort(wide, dim=axis, descending=largest, stable=True)
    kept = values.narrow(axis, 0, k)
    return from_ordered(kept, x.dtype) if x.dtype in WIDE_UNSIGNED else kept, indices.narrow(axis, 0, k)


@onnx_op("Unique", since=11, reads=True)
def unique(node: Node, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    axis = node.get("axis")
    flat = x.reshape(-1) if axis is None else x
    dim = 0 if axis is None else axis_of(axis, x.ndim)
    values, inverse, counts = torch.unique(flat, sorted=True, return_inverse=True, return_counts=True, dim=dim)
    inverse = inverse.reshape(-1)
    position = torch.arange(inverse.shape[0], device=x.device)
    first = torch.full_like(counts, inverse.shape[0]).scatter_reduce(0, inverse, position, "amin")
    if not node["sorted"]:
        order = torch.argsort(first)
        values, first, counts = values.index_select(dim, order), first[order], counts[order]
        inverse = torch.argsort(order)[inverse]
    return values, first, inverse, counts


@onnx_op("NonZero", since=9, reads=True)
def non_zero(node: Node, x: Tensor) -> Tensor:
    return torch.nonzero(x.reshape(1) if x.ndim == 0 else x).t()[: x.ndim]
