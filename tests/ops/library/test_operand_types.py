"""Products and convolutions whose operands, sums and results are of several types, and integers with scales and zero points."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.kernels.contraction import plan_contraction
from dcir.codegen.cpp.kernels.convolution import plan_convolution_node
from dcir.cost.machine import Machine
from dcir.ir.network import contiguous
from dcir.ir.run_nest import run_program
from dcir.ir.serialize import decode, encode
from dcir.ir.types import TYPES, is_float, itemsize
from dcir.isa import host_isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import OperandTypes, Scales, alike
from tests.codegen.cpp.tiles.tile_harness import compile_plans
from tests.harness import scalar_reference

B, M, N, K = 2, 5, 7, 9
INTEGERS = OperandTypes("u8", "i8", "i32", "i32")
SCALED = OperandTypes("u8", "i8", "i32", "f32")


def product(types: OperandTypes, scales: Scales | None = None) -> ContractionSpec:
    return ContractionSpec(
        types, (B,), M, N, K, contiguous((B, M, K)), contiguous((B, K, N)), contiguous((B, M, N)), scales=scales
    )


def convolution(
    types: OperandTypes, scales: Scales | None = None, *, bias: bool = False, groups: int = 1
) -> ConvolutionSpec:
    x, w, y = (2, 2 * groups, 6, 5), (4, 2, 3, 3), (2, 4, 3, 3)
    return ConvolutionSpec(
        "forward", types, 2, groups, 2, 4 // groups, x[2:], w[2:], y[2:], (2, 2), (1, 1), (1, 1),
        contiguous(x), contiguous(w), contiguous(y), bias, scales=scales,
    )  # fmt: skip


PRODUCTS = {
    "integers": product(INTEGERS),
    "signed integers into wide sums": product(OperandTypes("i8", "i8", "i64", "i64")),
    "scales of rows and columns": product(SCALED, Scales((M, 1), (0, 1))),
    "one scale, zero points": product(SCALED, Scales((0, 0), (0, 1), True, True)),
    "a zero point of A": product(OperandTypes("u8", "i8", "i32", "f16"), Scales((0, 0), (0, 0), True)),
    "half and float": product(OperandTypes("bf16", "f32", "f32", "f32")),
    "sums in double": product(OperandTypes("f32", "f32", "f64", "f32")),
    "a narrower result": product(OperandTypes("f32", "f32", "f32", "bf16")),
}
CONVOLUTIONS = {
    "integers": convolution(INTEGERS),
    "scales of channels, zero points": convolution(SCALED, Scales((0,), (1,), True, True), bias=True),
    "scales of images, groups": convolution(SCALED, Scales((1,), (1,), True), groups=2),
    "half and float": convolution(OperandTypes("bf16", "f32", "f32", "f32"), bias=True),
}
SPECS = [pytest.param(s, id=f"{s.kind} {n}") for part in (PRODUCTS, CONVOLUTIONS) for n, s in part.items()]


def in_types(spec: Any) -> tuple[str, ...]:
    types, scales = spec.types, spec.scales
    compute = TYPES[types.c].compute
    more = (compute, compute, *[types.a] * scales.a_zero, *[types.b] * scales.b_zero) if scales else ()
    bias = [spec.bias_type] * spec.bias if isinstance(spec, ConvolutionSpec) else []
    return types.a, types.b, *more, *bias


def counts(spec: Any) -> list[int]:
    """Elements of every input, and of the output."""
    sizes = [math.prod(s) for s in spec.shapes]
    found = sizes[:2]
    if spec.scales is not None:
        lengths = ((B, M), (B, N)) if isinstance(spec, ContractionSpec) else ((spec.n,), (spec.groups * spec.cout,))
        of = [1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True)) for shape, strides in
              zip(lengths, (spec.scales.a, spec.scales.b), strict=True)]  # fmt: skip
        found += [*of, *[of[0]] * spec.scales.a_zero, *[of[1]] * spec.scales.b_zero]
    if isinstance(spec, ConvolutionSpec) and spec.bias:
        found.append(spec.groups * spec.cout)
    return [*found, sizes[2]]


def drawn(dtype: str, count: int, generator: torch.Generator) -> torch.Tensor:
    t = TYPES[dtype]
    if is_float(dtype):
        return (torch.rand(count, generator=generator) + 0.25).to(getattr(torch, t.torch))
    low, high = (0, 256) if t.kind == "uint" else (-128, 128)
    return torch.randint(low, high, (count,), generator=generator).to(getattr(torch, t.torch))


def buffers(spec: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    *sizes, out = counts(spec)
    ins = [drawn(t, n, generator) for t, n in zip(in_types(spec), sizes, strict=True)]
    return ins, torch.zeros(out, dtype=getattr(torch, TYPES[spec.types.c].torch))


def raw(t: torch.Tensor) -> Any:
    return t.view(torch.int16).numpy().view(np.uint16) if t.dtype == torch.bfloat16 else t.numpy()


def wanted(spec: Any, ins: list[torch.Tensor]) -> torch.Tensor:
    """By torch in float64, which is exact for the integers here."""
    a, b, *rest = [t.double() for t in ins]
    a, b = a.view(spec.shapes[0]), b.view(spec.shapes[1])
    scale: Any = 1.0
    of_product = isinstance(spec, ContractionSpec)
    ones = [] if of_product else [1] * len(spec.kernel)
    lengths = ((B, M), (B, N)) if of_product else ((spec.n,), (spec.groups * spec.cout,))

    def over(t: torch.Tensor, which: int) -> torch.Tensor:
        t = t.as_strided(lengths[which], (spec.scales.a, spec.scales.b)[which])
        return (
            t.unsqueeze(-1 if which == 0 else -2)
            if of_product
            else t.view(*((-1, 1) if which == 0 else (1, -1)), *ones)
        )

    def zero(t: torch.Tensor, which: int) -> torch.Tensor:
        t = t.as_strided(lengths[which], (spec.scales.a, spec.scales.b)[which])
        return t.unsqueeze(-1 if which == 0 else -2) if of_product else t.view(-1, 1, *ones)

    if spec.scales is not None:
        scale = over(rest.pop(0), 0) * over(rest.pop(0), 1)
        a = a - zero(rest.pop(0), 0) if spec.scales.a_zero else a
        b = b - zero(rest.pop(0), 1) if spec.scales.b_zero else b
    if of_product:
        return (a @ b * scale).flatten()
    bias = rest.pop(0) if spec.bias else None
    padded = torch.nn.functional.pad(a, (1, 1, 1, 1))
    return (torch.nn.functional.conv2d(padded, b, bias, spec.stride, groups=spec.groups)[..., :3, :3] * scale).flatten()


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    if got.dtype.is_floating_point:
        step = torch.finfo(got.dtype).eps
        assert ((got.double() - want).abs() <= 4 * step * want.abs().clamp(min=1)).all()
    else:
        assert torch.equal(got.double(), want)


@pytest.mark.parametrize("spec", SPECS)
def test_the_reference_says_what_torch_says(spec: Any) -> None:
    ins, out = buffers(spec)
    spec.reference([raw(t) for t in ins], [raw(out)])
    close(out, wanted(spec, ins))


@pytest.mark.parametrize("spec", SPECS)
def test_the_loop_nest_is_the_same(spec: Any) -> None:
    ins, out = buffers(spec)
    nest = spec.loop_nest()
    assert nest.inputs == in_types(spec)
    run_program(nest, [raw(t) for t in ins], [raw(out)], scalar_reference())
    close(out, wanted(spec, ins))


@pytest.mark.parametrize("spec", SPECS)
def test_bytes_are_those_of_each_type(spec: Any) -> None:
    reads, writes = spec.footprint()
    if isinstance(spec, ConvolutionSpec):
        assert list(reads[1:]) == [
            n * itemsize(t) for n, t in list(zip(counts(spec), in_types(spec), strict=False))[1:]
        ]
    else:
        assert list(reads) == [n * itemsize(t) for n, t in zip(counts(spec), in_types(spec), strict=False)]
    assert writes == (counts(spec)[-1] * itemsize(spec.types.c),)


@pytest.mark.parametrize("spec", SPECS)
def test_it_is_written_and_read(spec: Any) -> None:
    assert decode(json.loads(json.dumps(encode(spec)))) == spec


@pytest.fixture(scope="module")
def kernels() -> list[Any]:
    machine = Machine(host_isa(), 2)
    made = [plan_contraction(s, machine) for s in PRODUCTS.values()]
    made += [plan_convolution_node(s, machine) for s in CONVOLUTIONS.values()]
    specs = [*PRODUCTS.values(), *CONVOLUTIONS.values()]
    return compile_plans([(plan, in_types(s), (s.types.c,)) for plan, s in zip(made, specs, strict=True)])


@pytest.mark.parametrize("number", range(len(SPECS)))
def test_generated_code_computes_it(number: int, kernels: list[Any]) -> None:
    """No register tile is made for such types yet: their loop nests are."""
    spec = SPECS[number].values[0]
    ins, out = buffers(spec)
    kernels[number](*ins, out)
    close(out, wanted(spec, ins))


def test_types_that_are_alike() -> None:
    assert alike("bf16") == OperandTypes("bf16", "bf16", "f32", "bf16") and alike("bf16").common == "bf16"
    assert alike("f32", "bf16").common == "f32"  # a packed B, widened as it is read
    for types in (
        INTEGERS,
        SCALED,
        OperandTypes("f32", "f32", "f64", "f32"),
        OperandTypes("bf16", "f32", "f32", "f32"),
    ):
        assert types.common == ""
