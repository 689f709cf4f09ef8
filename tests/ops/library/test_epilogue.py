"""Epilogues and packed weights of products: the loop nest equals the reference, and both equal torch."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.run_nest import run_program
from dcir.ir.serialize import decode, encode
from dcir.isa import host_isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import pack_program, panel_width, wants_panels
from tests.harness import scalar_reference


def _relu_of_sum(shape: tuple[int, ...], dtype: str, strides: tuple[int, ...], channel: int) -> LoopNest:
    """max(product + bias[channel] + residual, 0), and the sum itself as a second output."""
    body = LoopNestBuilder(shape)
    value = body.load(body.input(dtype), contiguous(shape))
    bias = body.load(body.input(dtype), [1 if d == channel else 0 for d in range(len(shape))])
    total = value + bias + body.load(body.input(dtype), strides)
    body.store(body.output(dtype), strides, body.op("max", total, body.const(0, total.dtype)))
    body.store(body.output(dtype), contiguous(shape), total)
    return body.finish()


def _random(n: int, dtype: str) -> Any:
    values = np.random.default_rng(n).uniform(-1, 1, n)
    return values.astype(np.float32 if dtype == "f32" else np.float64)


def _packed(source: Any, program: LoopNest) -> Any:
    out = np.zeros(math.prod(program.outer), source.dtype)
    run_program(program, [source], [out], scalar_reference())
    return out


def _check(spec: Any, ins: list[Any], sizes: list[int], expected: torch.Tensor) -> None:
    outs = [np.zeros(n, ins[0].dtype) for n in sizes]
    other = [o.copy() for o in outs]
    spec.reference(ins, outs)
    run_program(spec.loop_nest(), ins, other, scalar_reference())
    for a, b in zip(outs, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(outs[1], expected.numpy().reshape(-1), rtol=2e-5, atol=2e-5)
    assert decode(json.loads(json.dumps(encode(spec)))) == spec
    reads, writes = spec.footprint()
    assert len(reads) == len(ins) and len(writes) == 2
    assert reads[1] == ins[1].nbytes and reads[-1] == expected.numel() * ins[0].itemsize


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("n", [5, 64, 70])
def test_contraction(dtype: str, n: int, shared: bool) -> None:
    """A batch of products with packed B (shared by the batch or not), bias, residual and relu."""
    batch, m, k, panel = 3, 7, 9, 128 // (4 if dtype == "f32" else 8)
    groups = () if shared else (batch,)
    plain = _random((1 if shared else batch) * k * n, dtype)
    pack = pack_program(dtype, groups, n, (k,), panel, (k * n,) * len(groups), 1, (n,))
    packed = _packed(plain, pack)
    step = 0 if shared else packed.size // batch
    shape = (batch, m, n)
    strides = (m * n + 3, 1, m)  # columns first, with a gap
    spec = ContractionSpec(alike(dtype), (batch,), m, n, k, (m * k, k, 1), (step, 0, 0), strides, panel,
                           _relu_of_sum(shape, dtype, strides, 2))  # fmt: skip
    a, bias, residual = _random(batch * m * k, dtype), _random(n, dtype), _random(batch * (m * n + 3), dtype)
    left = torch.from_numpy(a).reshape(batch, m, k).double()
    right = torch.from_numpy(plain).reshape(*groups, k, n).double()
    window = torch.as_strided(torch.from_numpy(residual), shape, strides)
    expected = left @ right + torch.from_numpy(bias) + window
    _check(spec, [a, packed, bias, residual], [residual.size, math.prod(shape)], expected)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kernel", [(3,), (3, 2)])
def test_convolution(groups: int, kernel: tuple[int, ...]) -> None:
    """A convolution in channels-last with packed weights, bias, residual and relu."""
    dtype, n, cin, cout, panel = "f32", 2, 3, 37, 32
    size = (8, 7)[: len(kernel)]
    out = tuple((s + 2 - k) // 2 + 1 for s, k in zip(size, kernel, strict=True))
    x, w = _random(n * groups * cin * math.prod(size), dtype), _random(groups * cout * cin * math.prod(kernel), dtype)
    weights = contiguous((groups * cout, cin, *kernel))

    def last(channels: int, extents: tuple[int, ...]) -> tuple[int, ...]:
        inner = contiguous((*extents, channels))
        return (math.prod(extents) * channels, 1, *inner[:-1])

    shape = (n, groups * cout, *out)
    y = last(groups * cout, out)
    one = (1,) * len(kernel)
    two = (2,) * len(kernel)
    spec = ConvolutionSpec(
        "forward", alike(dtype), n, groups, cin, cout, size, kernel, out, two, one, one,
        last(groups * cin, size), weights, y, False, panel, _relu_of_sum(shape, dtype, y, 1),
    )  # fmt: skip
    pack = spec.packing()
    bias, residual = _random(groups * cout, dtype), _random(math.prod(shape), dtype)
    image = torch.as_strided(torch.from_numpy(x), (n, groups * cin, *size), spec.x).double()
    product = torch.ops.aten.convolution(
        image, torch.from_numpy(w).double().reshape(groups * cout, cin, *kernel), None, two, one, one, False, (0,) * len(kernel), groups
    )  # fmt: skip
    per_channel = torch.from_numpy(bias).reshape(-1, *one)
    expected = product + per_channel + torch.as_strided(torch.from_numpy(residual), shape, y)
    _check(spec, [x, _packed(w, pack), bias, residual], [math.prod(shape)] * 2, expected)
    with_bias = replace(spec, bias=True)
    _check(with_bias, [x, _packed(w, pack), bias, bias, residual], [math.prod(shape)] * 2, expected + per_channel)


def test_wants_panels() -> None:
    """Panels are for types with tiles, and for more than a quarter of a panel."""
    isa = host_isa()
    few = panel_width("f32", isa) // 4
    assert (
        wants_panels("f32", few, 64, isa)
        and wants_panels("f64", few // 2, 1, isa)
        and wants_panels("f32", 50257, 768, isa)
    )
    assert (
        not wants_panels("f32", few - 1, 64, isa)
        and not wants_panels("bf16", 768, 768, isa)
        and not wants_panels("f32", 64, 0, isa)
    )
