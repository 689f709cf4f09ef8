"""Convolutions over images of any size: one text, right at all remainders of tiles, for tiny and for long rows."""

import itertools
import math

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.emitters import EMITTERS
from dcir.codegen.moving_kernel import moving_kernel
from dcir.codegen.symbolic import Names
from dcir.cost.machine import Machine
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.sizes import Bounds
from dcir.ops.analysis.size_axes import Axes, axis, near
from dcir.ops.analysis.size_ladders import ladder
from dcir.ops.analysis.size_unification import unified_rows
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import panel_width
from tests.codegen.cpp.tiles.conv.test_nhwc import extent, operands, strides_of
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of
from tests.rotation import taken

# groups, channels in and out of each, kernel, stride, low and high padding, dilation; layouts of x and y, what is done with results
CASES = {
    "3x3": (1, 32, 64, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "residual"),
    "3x3-odd-channels": (1, 19, 21, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "silu"),
    "3x3-s2": (1, 16, 40, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), "last", "last", "bias"),
    "stem": (1, 3, 64, (7, 7), (2, 2), (3, 3), (3, 3), (1, 1), "plain", "last", "bias"),
    "1x1": (1, 24, 48, (1, 1), (1, 1), (0, 0), (0, 0), (1, 1), "last", "last", "silu"),
    "1x1-s2": (1, 16, 32, (1, 1), (2, 2), (0, 0), (0, 0), (1, 1), "last", "last", "bias"),
    "to-planes": (1, 16, 20, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "plain", "bias"),
    "valid": (1, 8, 16, (3, 3), (1, 1), (0, 0), (0, 0), (1, 1), "last", "last", "bias"),
    "dilated": (1, 8, 16, (3, 3), (1, 1), (2, 2), (2, 2), (2, 2), "last", "last", "bias"),
    "asymmetric": (1, 8, 16, (3, 4), (1, 1), (0, 2), (2, 1), (1, 1), "last", "last", "bias"),
    "deep": (1, 640, 48, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "bias"),
    "depthwise": (48, 1, 1, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "silu"),
    "depthwise-s2": (20, 1, 1, (5, 5), (2, 2), (2, 2), (2, 2), (1, 1), "last", "last", "bias"),
    "depthwise-few": (7, 1, 1, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "bias"),
    "depthwise-plain": (33, 1, 1, (7, 7), (1, 1), (3, 3), (3, 3), (1, 1), "last", "last", "none"),
    "grouped": (4, 8, 16, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "bias"),
    "grouped-s2": (8, 4, 4, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), "last", "last", "residual"),
    "planes": (1, 5, 20, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "plain", "plain", "none"),
    "planes-s2": (1, 9, 33, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), "plain", "plain", "none"),
    "planes-epilogue": (1, 16, 32, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), "plain", "plain", "silu"),
    "planes-1x1": (1, 32, 40, (1, 1), (1, 1), (0, 0), (0, 0), (1, 1), "plain", "plain", "none"),
    "planes-1x1-epilogue": (1, 32, 5, (1, 1), (1, 1), (0, 0), (0, 0), (1, 1), "plain", "plain", "bias"),
    "planes-depthwise": (24, 1, 1, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "plain", "plain", "none"),
    "planes-depthwise-s2": (24, 1, 1, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), "plain", "plain", "silu"),
    "planes-grouped": (4, 8, 8, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "plain", "plain", "bias"),
    "planes-grouped-none": (4, 8, 8, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "plain", "plain", "none"),
    "unpacked": (1, 16, 32, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "unpacked"),
    "transposed": (1, 24, 40, (2, 2), (2, 2), (0, 0), (0, 0), (1, 1), "last", "last", "backward"),
    "transposed-overlapping": (1, 16, 16, (4, 4), (2, 2), (1, 1), (1, 1), (1, 1), "last", "last", "backward"),
    "transposed-planes": (1, 6, 9, (2, 2), (2, 2), (0, 0), (0, 0), (1, 1), "plain", "plain", "backward"),
    "data": (1, 32, 64, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "backward"),
    "data-odd-channels": (1, 19, 21, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "backward"),
    "data-many-taps": (1, 20, 24, (5, 5), (1, 1), (2, 2), (2, 2), (1, 1), "last", "last", "backward"),
    "data-dilated": (1, 16, 8, (3, 3), (1, 1), (2, 2), (2, 2), (2, 2), "last", "last", "backward"),
    "data-asymmetric": (1, 16, 8, (3, 4), (1, 1), (0, 2), (2, 1), (1, 1), "last", "last", "backward"),
    "data-deep": (1, 48, 640, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "backward"),
    "data-grouped": (4, 16, 32, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "backward"),
    "weights": (1, 32, 64, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "weights"),
    "weights-odd-channels": (1, 19, 21, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "weights"),
    "weights-s2": (1, 16, 40, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), "last", "last", "weights"),
    "weights-stem": (1, 3, 64, (7, 7), (2, 2), (3, 3), (3, 3), (1, 1), "plain", "last", "weights"),
    "weights-1x1": (1, 24, 48, (1, 1), (1, 1), (0, 0), (0, 0), (1, 1), "last", "last", "weights"),
    "weights-1x1-s2": (1, 16, 32, (1, 1), (2, 2), (0, 0), (0, 0), (1, 1), "last", "last", "weights"),
    "weights-dilated": (1, 8, 16, (3, 3), (1, 1), (2, 2), (2, 2), (2, 2), "last", "last", "weights"),
    "weights-asymmetric": (1, 8, 16, (3, 4), (1, 1), (0, 2), (2, 1), (1, 1), "last", "last", "weights"),
    "weights-from-planes": (1, 19, 21, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "plain", "plain", "weights"),
    "weights-grouped-from-planes": (4, 8, 16, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), "last", "plain", "weights"),
    "weights-depthwise-from-planes": (40, 1, 1, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "plain", "plain", "weights"),
    "weights-few": (1, 1, 5, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "weights"),
    "weights-grouped": (4, 8, 16, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "weights"),
    "weights-grouped-s2": (8, 4, 4, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), "last", "last", "weights"),
    "weights-depthwise": (48, 1, 1, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "last", "last", "weights"),
    "weights-depthwise-s2": (20, 1, 1, (5, 5), (2, 2), (2, 2), (2, 2), (1, 1), "last", "last", "weights"),
    "weights-depthwise-few": (7, 1, 1, (7, 7), (1, 1), (3, 3), (3, 3), (1, 1), "last", "last", "weights"),
    "weights-depthwise-dilated": (33, 1, 1, (3, 3), (1, 1), (2, 2), (2, 2), (2, 2), "last", "last", "weights"),
}  # fmt: skip
ISAS = ("avx512", "avx2")
BOUNDS = (Bounds(2, 6), Bounds(5, 60), Bounds(5, 90))
SIZES = [
    (2, 5, 5),
    (3, 6, 7),
    (2, 7, 90),
    (6, 5, 61),
    (2, 60, 8),
    (3, 9, 33),
    (2, 8, 64),
    *((2, 6, w) for w in range(9, 40)),
]


def out_of(size, case):
    """Extents of results; of a transposed convolution those of its input."""
    _, _, _, kernel, stride, low, high, dilation, *_ = case
    return tuple(
        (i + a + b - (k - 1) * d - 1) // s + 1
        for i, a, b, k, d, s in zip(size, low, high, kernel, dilation, stride, strict=True)
    )


def even(case, sizes):
    """Sizes that a transposed convolution without output padding makes."""
    n, h, w = sizes
    return (n, h + h % 2, w + w % 2) if case[-1] == "backward" else sizes


def spec_of(case, isa, n, h, w):
    groups, cin, cout, kernel, stride, low, _, dilation, x_layout, y_layout, how = case
    size, out = (h, w), out_of((h, w), case)
    shape = (n, groups * cout, *out)
    x, y = strides_of((n, groups * cin, *size), x_layout), strides_of(shape, y_layout)
    weights = contiguous((groups * cout, cin, *kernel))
    if how == "backward":
        return ConvolutionSpec(
            "backward_data", alike("f32"), n, groups, cin, cout, size, kernel, out, stride, low, dilation, x, weights, y
        )
    if how == "weights":
        return ConvolutionSpec(
            "backward_weight",
            alike("f32"),
            n,
            groups,
            cin,
            cout,
            size,
            kernel,
            out,
            stride,
            low,
            dilation,
            x,
            weights,
            y,
        )
    program = None
    if how not in ("none", "unpacked"):
        body = LoopNestBuilder(shape)
        value = body.load(body.input("f32"), contiguous(shape))
        value = value + body.load(body.input("f32"), (0, 1, 0, 0))
        if how == "residual":
            value = body.op("max", value + body.load(body.input("f32"), y), body.const(0, "f32"))
        if how == "silu":
            value = value * body.op("sigmoid", value)
        body.store(body.output("f32"), y, value)
        program = body.finish()
    panel = panel_width("f32", isa) if program is not None and cin > 1 else 0
    return ConvolutionSpec("forward", alike("f32"), n, groups, cin, cout, size, kernel, out, stride, low, dilation, x, weights, y, False,
                           panel, program)  # fmt: skip


def moving_axes(case):
    """The sizes of a case, with those of its results."""
    stride, how = case[4], case[-1]
    made, taken = [], {1, 2, 3, 4, 5, 7, 8, 16}
    for k, bounds in enumerate(BOUNDS):
        functions = []
        if k:
            d = k - 1
            functions = [lambda s, d=d: out_of((s, s), case)[d]] if stride[d] > 1 else []
        holds = (lambda s: s % 2 == 0) if k and how == "backward" else (lambda s: True)
        found = axis(ladder(functions, 8), bounds, sum(len(a.sizes) for a in made), holds, taken)
        assert not isinstance(found, str), found
        made.append(found)
        taken |= near(found.ladder.rungs(found.reach.high))
    return Axes(made, taken - near(range(90)), lambda v: even(case, v) == tuple(v))


def moving(case, isa):
    """A case for images of any size, and its sizes."""
    axes = moving_axes(case)
    numbers = axes.numbers(few=False)
    samples = [axes.samples[i] for i in numbers]
    rows = unified_rows(
        [(spec_of(case, isa, *s),) for s in samples], [axes.parts(s) for s in samples], axes.fit(numbers).through
    )
    assert rows is not None
    return rows[0], axes


def planned(case, isa, threads=2, usually=None):
    spec, axes = moving(case, isa)
    usual = (
        {name: max(b.low, b.high // 2) for name, b in axes.sizes.items()} if usually is None else axes.parts(usually)
    )
    like = spec_of(case, isa, *axes.samples[-1])
    inputs = 2 + (len(like.epilogue.inputs) - 1 if like.epilogue else 0)
    return moving_kernel(EMITTERS, spec, Names.of(axes.sizes, usual), Machine(isa, threads), inputs), axes, inputs


TAKEN = taken(list(itertools.product(CASES, ISAS)), 36)


@pytest.fixture(scope="module")
def kernels():
    entries, made, names = [], {}, TAKEN
    for name, isa in names:
        plan, axes, inputs = planned(CASES[name], isa_of(isa))
        assert not isinstance(plan, Refusal), (name, isa, plan.reason)
        entries.append((plan, (*["f32"] * inputs, "i64"), ("f32",)))
        made[name, isa] = axes
    return {key: (kernel, made[key]) for key, kernel in zip(names, compile_plans(entries), strict=True)}


@pytest.mark.parametrize(("name", "isa"), TAKEN)
def test_equals_reference(kernels, name, isa):
    compare(*kernels[name, isa], CASES[name], name, isa, SIZES)


@pytest.mark.parametrize("name", ["weights", "weights-1x1", "weights-depthwise"])
def test_shares_of_the_positions_that_have_none(name):
    """Two threads share the positions of usual images; of few there is one block, and a share without any."""
    plan, axes, _ = planned(CASES[name], isa_of("avx512"), usually=(6, 10, 10))
    (kernel,) = compile_plans([(plan, ("f32", "f32", "i64"), ("f32",))])
    compare(kernel, axes, CASES[name], name, "avx512", [(2, 5, 5), (2, 7, 8), (3, 5, 9), (6, 10, 10), (4, 30, 31)])


def compare(kernel, axes, case, name, isa, several):
    for sizes in several:
        sizes = even(case, sizes)
        spec = spec_of(case, isa_of(isa), *sizes)
        given, wanted = operands(spec) if spec.kind == "forward" else gradient_operands(spec)
        got = np.full(len(wanted) + 64, 3.0, "f4")
        spec.reference(given, [wanted])
        table = torch.tensor(list(axes.parts(sizes).values()))
        kernel(*map(torch.from_numpy, given), table, torch.from_numpy(got))
        summed = (spec.cout if spec.kind == "backward_data" else spec.cin) * math.prod(spec.kernel)
        if spec.kind == "backward_weight":
            summed = spec.n * math.prod(spec.out_size)
        scale = math.sqrt(summed)
        np.testing.assert_allclose(
            got[: len(wanted)], wanted, rtol=2e-5, atol=3e-6 * scale, err_msg=f"{name} {isa} {sizes}"
        )
        assert (got[len(wanted) :] == 3).all(), sizes


def gradient_operands(spec):
    rng = np.random.default_rng(3)
    shapes = zip(spec.shapes, (spec.x, spec.w, spec.y), strict=True)
    x, w, y = (rng.uniform(-1, 1, extent(shape, strides)).astype("f4") for shape, strides in shapes)
    return ([y, w], np.zeros_like(x)) if spec.kind == "backward_data" else ([x, y], np.zeros_like(w))


def test_texts_do_not_know_the_sizes(kernels):
    """What moves is read from the table: a text for other bounds differs in rooms and costs, not in extents of the samples."""
    plan, *_ = planned(CASES["3x3-s2"], isa_of("avx512"))
    assert plan.holds_sizes and "Sized{" in plan.phases[-1].code
