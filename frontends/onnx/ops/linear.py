"""Matrix products and einsum."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.unsigned import widened


@onnx_op("MatMul")
@widened
def matmul(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@onnx_op("Gemm")
def gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    alpha, beta = node["alpha"], node["beta"]
    a = a.t() if node["transA"] else a
    if not a.is_floating_point():
        product = torch.matmul(a, b.t() if node["transB"] else b)
        result = product * int(alpha) if alpha != 1 else product
        return result if c is None else result + (c * int(beta) if beta != 1 else c)
    plain = alpha == 1 and (c is None or beta == 1)
    if plain and node["transB"] and (c is None or (c.ndim == 1 and c.shape[0] == b.shape[0])):
        # The usual form of a fully connected layer; tracers know it by this name.
        return F.linear(a, b, c)
    b = b.t() if node["transB"] else b
    if c is None:
        product = torch.mm(a, b)
        return product if alpha == 1 else product * alpha
    return torch.addmm(c.reshape(1) if c.ndim == 0 else c, a, b, beta=beta, alpha=alpha)


@onnx_op("Einsum", since=12)
def einsum(node: Node, *operands: Tensor) -> Tensor:
    return torch.einsum(node["equation"], *operands)


@onnx_op("MatMulInteger", since=10)
def matmul_integer(
    node: Node, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    x, y = a.to(torch.int32), b.to(torch.int32)
    if a_zero is not None:
        # One zero point per row of A.
        zero = a_zero.to(torch.int32)
        x = x - (zero.unsqueeze(-1) if zero.ndim == 1 and zero.numel() > 1 else zero)
    if b_zero is not None:
        y = y - b_zero.to(torch.int32)
    return torch.matmul(x, y)
