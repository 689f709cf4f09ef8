"""Contractions and convolutions: the loop nest equals the reference, exact work, and the saved form."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from dcir.frontends.torch.importer import import_graph
from dcir.ir.run_nest import run_program
from dcir.ir.serialize import decode, encode
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from tests.harness import all_samples, graph_of, scalar_reference

PRODUCTS = ("aten.convolution", "aten.convolution_backward", "aten.mm", "aten.bmm", "aten.addbmm", "aten.dot")


def _specs() -> list[Any]:
    """Every distinct product that the pages' samples make."""
    found = {}
    for page, sample, _ in all_samples():
        if page.name.rsplit(".", 1)[0] in PRODUCTS:
            gm, _ = graph_of(page.overload, sample.args, sample.kwargs)
            for op in import_graph(gm).network.ops():
                if isinstance(op.spec, ContractionSpec | ConvolutionSpec):
                    found[op.spec] = f"{page.name}-{sample.name}-{op.spec.kind}"
    return [pytest.param(spec, id=name) for spec, name in found.items()]


def _size(shape: Any, strides: Any) -> int:
    return 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))


def _buffers(spec: Any) -> tuple[list[Any], list[Any]]:
    shapes = spec.shapes
    if isinstance(spec, ContractionSpec):
        sizes = [_size(s, t) for s, t in zip(shapes, (spec.a, spec.b, spec.c), strict=True)]
        order, out = [0, 1], 2
    else:
        sizes = [_size(s, t) for s, t in zip(shapes, (spec.x, spec.w, spec.y), strict=True)]
        order, out = {"forward": ([0, 1], 2), "backward_data": ([2, 1], 0), "backward_weight": ([0, 2], 1)}[spec.kind]
    torch_type = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}[spec.dtype]
    g = torch.Generator().manual_seed(0)

    def make(n: int) -> Any:
        t = (torch.rand(n, generator=g) - 0.5).to(torch_type)
        return t.view(torch.int16).numpy().view(np.uint16) if spec.dtype == "bf16" else t.numpy()

    ins = [make(sizes[i]) for i in order]
    if getattr(spec, "bias", False):
        ins.append(make(spec.groups * spec.cout))
    return ins, [make(sizes[out])]


def _values(buffer: Any, dtype: str) -> Any:
    t = torch.from_numpy(buffer)
    return (t.view(torch.bfloat16) if dtype == "bf16" else t).double()


@pytest.mark.parametrize("spec", _specs())
def test_program_equals_reference(spec: Any) -> None:
    """Both forms write the same numbers to the same places, and count the same bytes written."""
    ins, outs = _buffers(spec)
    other = [o.copy() for o in outs]
    spec.reference(ins, outs)
    program = spec.loop_nest()
    run_program(program, ins, other, scalar_reference())
    tolerance = {"f32": 1e-5, "f64": 1e-13, "bf16": 2e-2, "f16": 2e-3}[spec.dtype]
    torch.testing.assert_close(
        _values(other[0], spec.dtype), _values(outs[0], spec.dtype), rtol=tolerance, atol=tolerance
    )  # fmt: skip
    assert program.footprint()[1] == spec.footprint()[1]


@pytest.mark.parametrize("spec", _specs())
def test_saved_form(spec: Any) -> None:
    """A spec survives JSON."""
    assert decode(json.loads(json.dumps(encode(spec)))) == spec


def test_work_of_a_contraction() -> None:
    """Two operations per product; a broadcast operand counts once."""
    spec = ContractionSpec(alike("f32"), (3,), 4, 5, 6, (0, 6, 1), (30, 5, 1), (20, 5, 1))
    assert spec.operations() == 2 * 3 * 4 * 5 * 6
    assert spec.footprint() == ((4 * 24, 4 * 90), (4 * 60,))


def test_work_of_a_convolution() -> None:
    """Taps outside the image are no work; skipped pixels are no bytes."""
    padded = ConvolutionSpec(
        "forward", alike("f32"), 1, 1, 2, 3, (4,), (3,), (4,), (1,), (1,), (1,), (8, 4, 1), (6, 3, 1), (12, 4, 1)
    )  # fmt: skip
    assert padded.operations() == 2 * 2 * 3 * (4 * 3 - 2)
    assert padded.footprint() == ((4 * 8, 4 * 18), (4 * 12,))
    skipping = ConvolutionSpec(
        "forward", alike("f32"), 1, 1, 2, 3, (9,), (1,), (3,), (4,), (0,), (1,), (18, 9, 1), (2, 1, 1), (9, 3, 1)
    )  # fmt: skip
    assert skipping.footprint()[0][0] == 4 * 2 * 3
