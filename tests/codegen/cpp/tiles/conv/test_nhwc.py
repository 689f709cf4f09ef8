"""Dense convolutions in channels-last: edges, input blocks, tails of channels, groups and splits, against the specs' references."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.codegen.cpp.tiles.conv.nhwc import NHWC
from dcir.codegen.cpp.tiles.conv.nhwc_layout import nhwc_layout
from dcir.codegen.cpp.tiles.conv.nhwc_tile import Kind, reach
from dcir.codegen.cpp.tiles.conv.pointwise import POINTWISE_ROWS
from dcir.codegen.cpp.tiles.conv.problem import forward_problem
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.isa import ISAS, host_isa
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import panel_width
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of
from tests.rotation import taken

# n, groups, cin, cout, in_size, kernel, stride, low padding, high padding, dilation
SHAPES = {
    "one-row": (1, 1, 16, 32, (1, 9), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "seven": (2, 1, 40, 64, (7, 7), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "fourteen": (1, 1, 33, 40, (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "many-tiles": (1, 1, 5, 24, (6, 61), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "asymmetric": (1, 1, 8, 33, (9, 10), (3, 4), (1, 1), (0, 2), (2, 1), (1, 1)),
    "asymmetric-s2": (2, 1, 8, 16, (11, 12), (3, 3), (2, 2), (0, 0), (1, 1), (1, 1)),
    "negative": (1, 1, 4, 8, (9, 9), (3, 3), (1, 1), (-1, -2), (1, 0), (1, 1)),
    "padding-only": (1, 1, 4, 8, (3, 3), (2, 2), (1, 1), (4, 4), (4, 4), (1, 1)),
    "dilated": (1, 1, 6, 20, (13, 15), (3, 3), (1, 1), (4, 4), (4, 4), (4, 4)),
    "dilated-beyond": (1, 1, 6, 5, (5, 5), (3, 3), (1, 1), (6, 6), (6, 6), (6, 6)),
    "stem": (1, 1, 3, 64, (37, 41), (7, 7), (2, 2), (3, 3), (3, 3), (1, 1)),
    "one-channel": (2, 1, 1, 1, (8, 9), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "five-out": (1, 1, 12, 5, (8, 9), (5, 5), (1, 1), (2, 2), (2, 2), (1, 1)),
    "grouped": (2, 3, 5, 37, (9, 9), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "grouped-1x1-s2": (1, 2, 20, 48, (9, 9), (1, 1), (2, 2), (0, 0), (0, 0), (1, 1)),
    "deep": (1, 1, 640, 80, (5, 6), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "deep-odd": (2, 1, 611, 33, (4, 9), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "aliased": (1, 1, 1024, 70, (2, 15), (1, 3), (1, 1), (0, 1), (0, 1), (1, 1)),
    "line": (1, 1, 24, 48, (300,), (2,), (1,), (8,), (0,), (8,)),
    "space": (1, 2, 6, 9, (5, 6, 7), (3, 2, 3), (1, 2, 1), (1, 0, 1), (1, 1, 1), (1, 1, 1)),
}
LAYOUTS = ("last", "gap", "plain")


def strides_of(shape, layout):
    """Row-major, channels-last, or channels-last with a gap between pixels."""
    if layout == "plain":
        return contiguous(shape)
    pitch = shape[1] + (16 if layout == "gap" else 0)
    return (pitch * math.prod(shape[2:]), 1, *contiguous((*shape[2:], pitch))[:-1])


def extent(shape, strides):
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def spec_of(name, dtype, x_layout, y_layout, epilogue, w_layout="packed"):
    """A forward convolution; ``name`` is one of SHAPES, or a shape like those."""
    n, groups, cin, cout, size, kernel, stride, low, high, dilation = SHAPES.get(name, name)
    out = tuple(
        (i + a + b - (k - 1) * d - 1) // s + 1
        for i, a, b, k, d, s in zip(size, low, high, kernel, dilation, stride, strict=True)
    )
    shape = (n, groups * cout, *out)
    x, y = strides_of((n, groups * cin, *size), x_layout), strides_of(shape, y_layout)
    program = None
    if epilogue != "none":
        body = LoopNestBuilder(shape)
        value = body.load(body.input(dtype), contiguous(shape))
        value = value + body.load(body.input(dtype), [1 if d == 1 else 0 for d in range(len(shape))])
        if epilogue == "residual":
            value = body.op("max", value + body.load(body.input(dtype), y), body.const(0, dtype))
        if epilogue == "silu":
            value = value * body.op("sigmoid", value)
        body.store(body.output(dtype), y, value)
        program = body.finish()
    w = (groups * cout, cin, *kernel)
    wide = (2 * cin * math.prod(kernel), *(2 * s for s in contiguous(w)[1:]))
    w = {"last": strides_of(w, "last"), "odd": wide}.get(w_layout, contiguous(w))
    panel = panel_width(dtype, host_isa()) if w_layout == "packed" else 0
    return ConvolutionSpec("forward", alike(dtype), n, groups, cin, cout, size, kernel, out, stride, low, dilation, x,
                           w, y, False, panel, program)  # fmt: skip


def operands(spec):
    """x, packed weights and the epilogue's operands; what lies outside the tensors is NaN.

    In f64 they have 15 bits, so that sums of products are exact in any order: PyTorch's own, the reference, depends on the processor.
    """
    kind, rng = np.dtype("f4" if spec.dtype == "f32" else "f8"), np.random.default_rng(7)

    def window(shape, strides):
        made = np.full(extent(shape, strides), np.nan, kind)
        view = np.lib.stride_tricks.as_strided(made, shape, [s * kind.itemsize for s in strides])
        numbers = rng.uniform(-1, 1, shape)
        view[...] = numbers if spec.dtype == "f32" else np.round(numbers * 2**15) / 2**15
        return made

    x, w = window(spec.shapes[0], spec.x), window(spec.shapes[1], spec.w)
    packed = w
    if spec.panel:
        pack = spec.packing()
        packed = np.zeros(math.prod(pack.outer), kind)
        run_program(pack, [w], [packed], reference)
    given = [x, packed]
    if spec.epilogue is not None:
        given.append(rng.uniform(-1, 1, spec.groups * spec.cout).astype(kind))
        given += [window(spec.shapes[2], spec.y)] * (len(spec.epilogue.inputs) - 2)
    return given, np.full(extent(spec.shapes[2], spec.y), 3.0, kind)


def cases():
    found = []
    turns = itertools.cycle(itertools.product(("none", "residual", "bias", "silu"), (1, 2, 3)))
    for name in SHAPES:
        for x_layout, y_layout in (("last", "last"), ("gap", "gap"), ("plain", "gap"), ("last", "plain")):
            found.append((name, "f32", "avx512", x_layout, y_layout, *next(turns)))
        for isa, dtype in (("avx2", "f32"), ("generic", "f32"), ("avx512", "f64")):
            found.append((name, dtype, isa, "gap", "last", *next(turns)))
    weights = itertools.cycle(("last", "plain", "odd"))
    for name, (_, _, cin, cout, *_) in SHAPES.items():
        for isa, dtype in (("avx512", "f32"), ("avx2", "f64")) if cin > 1 and cout > 1 else ():
            found.append((name, dtype, isa, "gap", "last", *next(turns), next(weights)))
    return found


CASES = taken(cases(), 56)


@pytest.fixture(scope="module")
def kernels():
    entries = []
    for name, dtype, isa, x_layout, y_layout, epilogue, threads, *w_layout in CASES:
        spec = spec_of(name, dtype, x_layout, y_layout, epilogue, *w_layout)
        assert w_layout or NHWC.suits(forward_problem(spec), isa_of(isa))
        ins = 2 if spec.epilogue is None else 1 + len(spec.epilogue.inputs)
        entries.append((plan_convolution(spec, isa_of(isa), threads), (dtype,) * ins, (dtype,)))
    return dict(zip(CASES, compile_plans(entries, ["-O1"]), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_equals_reference(kernels, case):
    spec = spec_of(*case[:2], *case[3:6], *case[7:])
    given, result = operands(spec)
    wanted = result.copy()
    spec.reference(given, [wanted])
    kernels[case](*map(torch.from_numpy, given), torch.from_numpy(result))
    depth = spec.cin * math.prod(spec.kernel)
    small = (1e-6 if spec.dtype == "f32" else 1e-15) * (4 + depth**0.5)
    np.testing.assert_allclose(result, wanted, rtol=small, atol=small)  # gaps between pixels keep their 3.0


def test_deep_sums_are_blocked():
    """The shapes named deep do divide their inputs, at borders of cache lines where the channels allow."""
    for name, unit in (("deep", 16), ("deep-odd", 1)):
        layout = nhwc_layout(forward_problem(spec_of(name, "f32", "last", "last", "none")), ISAS["avx512"], 1)
        assert layout.inputs.parts > 1 and layout.unit == unit


def test_edges_leave_out_what_is_outside():
    """A whole row of seven pixels: the outer taps cover six of them; a tile inside covers all with one sweep."""
    problem = forward_problem(spec_of("seven", "f32", "last", "last", "none"))
    assert list(Kind(7, reach(problem, 0, 7)).sweeps()) == [(0, 1, 1, 7), (1, 1, 0, 7), (2, 1, 0, 6)]
    assert list(Kind(3, reach(problem, 2, 3)).sweeps()) == [(0, 3, 0, 3)]


def test_nothing_is_copied_in_place():
    """Channels-last images are read where they lie; others, and pixels in few cache sets, are copied first."""
    isa = ISAS["avx512"]
    for name, layout, phases in (
        ("fourteen", "gap", 1),
        ("fourteen", "plain", 2),
        ("aliased", "last", 2),
        ("aliased", "gap", 1),
    ):
        plan = plan_convolution(spec_of(name, "f32", layout, "last", "bias"), isa, 2)
        assert len(plan.phases) == phases, (name, layout)


def test_weights_not_in_panels_are_packed_first():
    spec = spec_of("seven", "f32", "gap", "gap", "none", "plain")
    plan = plan_convolution(spec, ISAS["avx512"], 2)
    assert [p.jobs for p in plan.phases] == [2, 2] and "pack(" in plan.phases[0].code


def test_half_types_keep_their_own_stores():
    """Their results are converted after the kernel, so it must not store through an epilogue into the output."""
    spec = replace(spec_of("seven", "f32", "last", "last", "none", "plain"), types=alike("bf16"))
    assert "Operands" not in plan_convolution(spec, ISAS["avx512"], 2).globals


def test_refuses_other_forms():
    problem = forward_problem(spec_of("seven", "f32", "last", "last", "none"))
    assert not NHWC.suits(replace(problem, panel=0), ISAS["avx512"])  # nothing to store through
    apart = spec_of("seven", "f32", "plain", "last", "bias", "plain")
    assert not NHWC.suits(forward_problem(apart), ISAS["avx512"])
    assert not NHWC.suits(replace(problem, bias=True), ISAS["avx512"])
    assert not NHWC.suits(replace(problem, panel=24), ISAS["avx512"])


def test_channels_that_are_scaled_one_by_one_are_no_products():
    scaled = forward_problem(
        spec_of((2, 24, 1, 1, (8, 9), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)), "f32", "last", "last", "none", "plain")
    )
    assert not POINTWISE_ROWS.suits(scaled, ISAS["avx512"])
    mixed = forward_problem(
        spec_of((2, 1, 24, 24, (8, 9), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)), "f32", "last", "last", "none", "plain")
    )
    assert POINTWISE_ROWS.suits(mixed, ISAS["avx512"])
