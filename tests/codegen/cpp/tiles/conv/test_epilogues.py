"""Convolutions with epilogues and packed weights, in all layouts and instruction sets, against the specs' references."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.tiles.conv.conv import plan_convolution, supports_convolution
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.isa import host_isa
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import panel_width
from tests.codegen.cpp.tiles.conv.test_conv import SHAPES, spread
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of
from tests.rotation import taken

KINDS = ("relu", "residual", "silu", "two", "bias")
SKIPPED = ("empty-batch",)


def strides_of(shape, layout, gap=0):
    """Row-major, or channels-last with ``gap`` elements between pixels."""
    if layout == "plain":
        return contiguous(shape)
    pitch = shape[1] + gap
    inner = contiguous((*shape[2:], pitch))
    return (pitch * int(np.prod(shape[2:])), 1, *inner[:-1])


def size(shape, strides):
    return 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))


def epilogue(kind, shape, dtype, y):
    """A program over the result, and the strides of its operands after the product's value and of its outputs."""
    body = LoopNestBuilder(shape)
    ins, outs = [], [y]
    value = body.load(body.input(dtype), contiguous(shape))

    def load(strides):
        ins.append(strides)
        return body.load(body.input(dtype), strides)

    per_channel = [1 if d == 1 else 0 for d in range(len(shape))]
    value = value + load(per_channel)
    if kind in ("relu", "two"):
        value = body.op("max", value, body.const(0, dtype))
    if kind == "residual":
        value = body.op("max", value * load(per_channel) + load(y), body.const(0, dtype))
    if kind == "silu":
        value = value * body.op("sigmoid", value)
    body.store(body.output(dtype), y, value)
    if kind == "two":
        other = contiguous(shape)
        body.store(body.output("bool"), other, value > body.const(0.25, dtype))
        outs.append(other)
    return body.finish(), ins, outs


def cases():
    rng = random.Random(5)
    found = []
    for name in SHAPES:
        if name in SKIPPED:
            continue
        found.append((name, "f32", "avx512", "last", "last", 0, True, rng.choice(KINDS)))
        for _ in range(3):
            layouts = rng.choice([("plain", "plain"), ("plain", "last"), ("last", "plain"), ("last", "last")])
            isa = rng.choice(["avx512", "avx2", "generic"])
            found.append((name, rng.choice(["f32", "f32", "f64"]), isa, *layouts, rng.choice([0, 3, 16]),
                          rng.random() < 0.5, rng.choice(KINDS)))  # fmt: skip
    return found


def problem(name, dtype, x_layout, y_layout, gap, packed, kind, bias):
    n, groups, cin, cout, in_size, kernel, stride, padding, dilation, *_ = SHAPES[name]
    dims = len(in_size)
    stride, padding, dilation = (spread(v, dims) for v in (stride, padding, dilation))
    out = tuple(
        (i + 2 * p - (k - 1) * d - 1) // s + 1
        for i, k, s, p, d in zip(in_size, kernel, stride, padding, dilation, strict=True)
    )
    shapes = (n, groups * cin, *in_size), (groups * cout, cin, *kernel), (n, groups * cout, *out)
    x, y = strides_of(shapes[0], x_layout, gap), strides_of(shapes[2], y_layout, gap)
    w = contiguous(shapes[1])
    depthwise = cin == cout == 1 and groups > 1
    program, ins, outs = epilogue(kind, shapes[2], dtype, y)
    if depthwise and packed:
        w = (1, 1, *(groups * s for s in contiguous(kernel)))
    panel = panel_width(dtype, host_isa()) if packed and not depthwise else 0
    spec = ConvolutionSpec("forward", alike(dtype), n, groups, cin, cout, in_size, kernel, out, stride, padding, dilation,
                           x, w, y, bias, panel, program)  # fmt: skip
    rng = np.random.default_rng(1)
    kind_of = np.float32 if dtype == "f32" else np.float64

    def values(count):
        return rng.uniform(-1, 1, count).astype(kind_of)

    weights = values(size(shapes[1], w))
    if panel:
        pack = spec.packing()
        target = np.zeros(int(np.prod(pack.outer)), kind_of)
        run_program(pack, [weights], [target], reference)
        weights = target
    given = [values(size(shapes[0], x)), weights, *([values(groups * cout)] if bias else [])]
    given += [values(size(shapes[2], s)) for s in ins]
    made = [np.zeros(size(shapes[2], s), bool if i else kind_of) for i, s in enumerate(outs)]
    return spec, given, made


IN_PLACE = [("depthwise", dtype, isa, "last", "last", 0, packed, "residual")
            for dtype, isa, packed in itertools.product(("f32", "f64"), ("avx512", "avx2", "generic"), (True, False))]  # fmt: skip
CASES = list(dict.fromkeys(taken(cases(), 44) + IN_PLACE))


@pytest.fixture(scope="module")
def compiled():
    entries, found = [], []
    for i, (name, dtype, isa, xl, yl, gap, packed, kind) in enumerate(CASES):
        spec, given, made = problem(name, dtype, xl, yl, gap, packed, kind, bias=i % 5 == 0)
        assert supports_convolution(spec)
        plan = plan_convolution(spec, isa_of(isa), 2)
        types = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64", np.dtype(bool): "bool"}
        entries.append((plan, tuple(types[a.dtype] for a in given), tuple(types[a.dtype] for a in made)))
        found.append((spec, given, made))
    return list(zip(found, compile_plans(entries), strict=True))


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: "-".join(map(str, CASES[i])))
def test_equals_reference(compiled, number):
    (spec, given, made), call = compiled[number]
    wanted = [m.copy() for m in made]
    spec.reference(given, wanted)
    got = [torch.from_numpy(m.copy()) for m in made]
    call(*(torch.from_numpy(g) for g in given), *got)
    depth = spec.cin * int(np.prod(spec.kernel))
    tolerance = (2e-6 if spec.dtype == "f32" else 1e-13) * (4 + depth**0.5)
    np.testing.assert_allclose(got[0].numpy(), wanted[0], rtol=tolerance, atol=tolerance)
    if CASES[number][-1] == "residual":  # where the operand that is added lies, too
        update = torch.from_numpy(given[-1].copy())
        call(*(torch.from_numpy(g) for g in given[:-1]), update, update)
        shape = (spec.n, spec.groups * spec.cout, *spec.out_size)
        places = sum(i * s for i, s in zip(np.indices(shape), spec.y, strict=True)).ravel()
        np.testing.assert_allclose(update.numpy()[places], wanted[0][places], rtol=tolerance, atol=tolerance)
    if len(got) > 1:  # a comparison may fall out differently only where the value is next to the border
        assert (got[1].numpy() != wanted[1]).mean() < 1e-3


def test_refuses_what_has_no_kernel():
    spec, *_ = problem("3x3", "f32", "last", "last", 0, True, "relu", False)
    assert not supports_convolution(replace(spec, types=alike("bf16")))
