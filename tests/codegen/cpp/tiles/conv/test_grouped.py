"""Grouped convolutions in channels-last: lanes of one group, of several, and of groups that lie apart, against the specs' references."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.codegen.cpp.tiles.conv.depthwise_weight import DEPTHWISE_WEIGHT_NHWC
from dcir.codegen.cpp.tiles.conv.grouped import GROUPED_NHWC
from dcir.codegen.cpp.tiles.conv.problem import forward_problem
from dcir.isa import ISAS
from tests.codegen.cpp.tiles.conv.test_nhwc import extent, operands, spec_of
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of
from tests.rotation import taken

# n, groups, cin, cout, in_size, kernel, stride, low padding, high padding, dilation
THREE, ONE = (3, 3), (1, 1)
SHAPES = {
    "twos": (2, 16, 2, 2, (6, 23), THREE, ONE, ONE, ONE, ONE),
    "fours": (1, 12, 4, 4, (9, 13), THREE, ONE, ONE, ONE, ONE),
    "fours-to-eights": (1, 5, 4, 8, (7, 9), THREE, (2, 2), ONE, ONE, ONE),
    "eights-to-fours": (1, 6, 8, 4, (7, 9), THREE, ONE, ONE, ONE, ONE),
    "eights": (2, 6, 8, 8, (8, 15), THREE, (2, 2), ONE, ONE, ONE),
    "sixteens": (1, 3, 16, 16, (7, 14), THREE, ONE, ONE, ONE, ONE),
    "thirty-twos": (2, 2, 32, 32, (7, 7), THREE, ONE, ONE, ONE, ONE),
    "twenties": (1, 3, 10, 20, (6, 11), (3, 5), ONE, (1, 2), (1, 2), ONE),
    "forties": (1, 2, 9, 40, (6, 8), THREE, ONE, ONE, ONE, ONE),
    "threes": (1, 7, 5, 3, (7, 8), THREE, ONE, (2, 2), (2, 2), (2, 2)),
    "multiplied": (1, 5, 1, 3, (6, 9), THREE, ONE, ONE, ONE, ONE),
    "twos-to-ones": (2, 21, 2, 1, (5, 16), THREE, ONE, ONE, ONE, ONE),
    "fours-to-ones": (1, 19, 4, 1, (6, 11), THREE, (2, 2), ONE, ONE, ONE),
    "nines-to-ones": (1, 10, 9, 1, (5, 8), THREE, ONE, ONE, ONE, ONE),
    "threes-to-twos": (1, 18, 3, 2, (3, 9), ONE, ONE, (0, 0), (0, 0), ONE),
    "depthwise-space": (1, 21, 1, 1, (4, 5, 9), (3, 2, 3), (1, 2, 1), (1, 0, 1), (1, 1, 1), (1, 1, 1)),
    "few-inputs": (2, 1, 3, 20, (12, 21), (5, 7), (2, 2), (2, 3), (2, 3), ONE),
    "one-input": (1, 1, 1, 33, (9, 20), (3, 9), ONE, (1, 4), (1, 4), ONE),
    "one-output": (2, 1, 37, 1, (9, 20), (3, 5), (1, 2), (1, 2), (1, 2), ONE),
    "no-rows": (2, 6, 4, 6, (7, 9), ONE, ONE, (0, 0), (0, 0), ONE),
    "outside": (1, 4, 4, 4, (3, 3), (2, 2), ONE, (4, 4), (4, 4), ONE),
    "beyond": (1, 4, 6, 6, (5, 5), THREE, ONE, (6, 6), (6, 6), (6, 6)),
    "far": (1, 8, 4, 4, (4, 9), THREE, ONE, (1, 38), (1, 38), ONE),
    "long": (1, 2, 112, 24, (4, 6), THREE, ONE, ONE, ONE, ONE),
    "line": (1, 6, 6, 12, (70,), (5,), (1,), (2,), (2,), (1,)),
    "space": (1, 4, 4, 4, (4, 5, 6), (3, 2, 3), (1, 2, 1), (1, 0, 1), (1, 1, 1), (1, 1, 1)),
}


def cases():
    found = []
    turns = itertools.cycle(itertools.product(("none", "residual", "silu", "bias"), (1, 2, 3)))
    layouts = itertools.cycle((("gap", "last"), ("last", "gap"), ("plain", "gap"), ("last", "plain")))
    weights = itertools.cycle(("last", "plain", "odd"))
    for name, (_, groups, cin, *_) in SHAPES.items():
        if groups == 1:
            continue
        for isa, dtype in (("avx512", "f32"), ("avx2", "f32"), ("generic", "f32"), ("avx2", "f64")):
            found.append((name, dtype, isa, *next(layouts), *next(turns), "packed"))
        if cin > 1 or name in ("multiplied", "depthwise-space"):
            found.append((name, "f32", "avx2", "gap", "last", *next(turns), next(weights)))
    return found


# Tiles of two sizes lie beyond the image.
CASES = list(dict.fromkeys([*taken(cases(), 28), *[case for case in cases() if case[0] == "far"][:2]]))


def forward(case):
    name, dtype, _, x_layout, y_layout, epilogue, _, w_layout = case
    spec = spec_of(SHAPES[name], dtype, x_layout, y_layout, epilogue, w_layout)
    return replace(spec, panel=16 if dtype == "f32" else 8) if spec.panel else spec


@pytest.fixture(scope="module")
def kernels():
    entries = []
    for case in CASES:
        spec, (_, dtype, isa, *_, threads, _) = forward(case), case
        ins = 2 if spec.epilogue is None else 1 + len(spec.epilogue.inputs)
        entries.append((plan_convolution(spec, isa_of(isa), threads), (dtype,) * ins, (dtype,)))
    return dict(zip(CASES, compile_plans(entries, ["-O1"]), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_equals_reference(kernels, case):
    spec = forward(case)
    given, result = operands(spec)
    wanted = result.copy()
    spec.reference(given, [wanted])
    kernels[case](*map(torch.from_numpy, given), torch.from_numpy(result))
    depth = spec.cin * math.prod(spec.kernel)
    small = (1e-6 if spec.dtype == "f32" else 1e-15) * (4 + depth**0.5)
    np.testing.assert_allclose(result, wanted, rtol=small, atol=small)  # gaps between pixels keep their 3.0


GRADIENTS = (
    "fours",
    "eights-to-fours",
    "sixteens",
    "twenties",
    "threes",
    "multiplied",
    "twos-to-ones",
    "threes-to-twos",
)


def gradient(name, x_layout):
    forward = spec_of(SHAPES[name], "f32", x_layout, "last", "none", "plain")
    return replace(forward, kind="backward_data")


@pytest.fixture(scope="module")
def gradients():
    found = [(name, layout) for name in GRADIENTS for layout in ("gap", "last")]
    entries = [(plan_convolution(gradient(*case), isa_of("avx2"), 2), "f32", 2) for case in found]
    assert all("region(" in plan.globals for plan, *_ in entries)
    return dict(zip(found, compile_plans(entries, ["-O1"]), strict=True))


@pytest.mark.parametrize("layout", ["gap", "last"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_data_gradients_are_grouped_convolutions(gradients, name, layout):
    spec, rng = gradient(name, layout), np.random.default_rng(3)
    y, w = (
        rng.uniform(-1, 1, extent(s, t)).astype("f4") for s, t in zip(spec.shapes[:0:-1], (spec.y, spec.w), strict=True)
    )
    result = np.full(extent(spec.shapes[0], spec.x), 3.0, "f4")
    wanted = result.copy()
    spec.reference([y, w], [wanted])
    gradients[name, layout](torch.from_numpy(y), torch.from_numpy(w), torch.from_numpy(result))
    small = 1e-6 * (4 + (spec.cout * math.prod(spec.kernel)) ** 0.5)
    np.testing.assert_allclose(result, wanted, rtol=small, atol=small)


WEIGHTS = (
    "twos", "fours-to-eights", "eights-to-fours", "sixteens", "threes", "multiplied", "twos-to-ones", "fours-to-ones",
    "nines-to-ones", "threes-to-twos", "depthwise-space", "space", "beyond", "line", "few-inputs", "one-input",
    "one-output",
)  # fmt: skip


def weight_gradient(name, layout):
    return replace(spec_of(SHAPES[name], "f32", layout, layout, "none", "plain"), kind="backward_weight")


@pytest.fixture(scope="module")
def weight_gradients():
    found = [(name, isa) for name in WEIGHTS for isa in ("avx512", "avx2")]
    entries = [(plan_convolution(weight_gradient(name, "gap"), isa_of(isa), 2), "f32", 2) for name, isa in found]
    return dict(zip(found, compile_plans(entries, ["-O1"]), strict=True))


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weight_gradients_run_along_the_channels_of_all_groups(weight_gradients, name, isa):
    spec, rng = weight_gradient(name, "gap"), np.random.default_rng(4)
    assert DEPTHWISE_WEIGHT_NHWC.suits(forward_problem(spec), isa_of(isa))
    x, y = (
        rng.uniform(-1, 1, extent(s, t)).astype("f4") for s, t in zip(spec.shapes[::2], (spec.x, spec.y), strict=True)
    )
    result = np.full(extent(spec.shapes[1], spec.w), 3.0, "f4")
    wanted = result.copy()
    spec.reference([x, y], [wanted])
    weight_gradients[name, isa](torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(result))
    small = 1e-6 * (4 + (spec.n * math.prod(spec.out_size)) ** 0.5)
    np.testing.assert_allclose(result, wanted, rtol=small, atol=small)


def test_lanes_of_several_groups():
    """Groups of four: one exchange of lanes; of two inputs: of two vectors; of many: a broadcast for each group; of sixteen: numbers."""

    def text(groups, cin, cout):
        spec = spec_of((1, groups, cin, cout, (7, 20), THREE, ONE, ONE, ONE, ONE), "f32", "last", "last", "bias")
        return plan_convolution(replace(spec, panel=16), ISAS["avx2"], 1).globals

    assert "(M){0, 0, 0, 0, 4, 4, 4, 4}" in text(8, 4, 4) and "spread(p" not in text(8, 4, 4)
    assert "? spread(p" in text(4, 40, 4)
    assert "load(p + 8), (M){0, 2, 4, 6, 8, 10, 12, 14})" in text(16, 2, 1)
    assert "= p[" in text(4, 16, 16) and "spread(p" not in text(4, 16, 16)


def test_weights_are_padded_once():
    """Five groups of six channels are 30 columns: two panels, not five."""
    spec = replace(spec_of((1, 5, 6, 6, (7, 7), THREE, ONE, ONE, ONE, ONE), "f32", "last", "last", "bias"), panel=16)
    assert spec.packed_weights == (1, 2, 54, 16)
    assert replace(spec, cout=16).packed_weights == (5, 1, 54, 16)


def test_refuses_other_forms():
    few = forward_problem(replace(spec_of(SHAPES["fours"], "f32", "last", "last", "bias"), panel=16))
    isa = ISAS["avx2"]
    assert GROUPED_NHWC.suits(few, isa) and GROUPED_NHWC.suits(replace(few, panel=0), isa)
    assert not GROUPED_NHWC.suits(replace(few, panel=12), isa)  # vectors of another width
    assert not GROUPED_NHWC.suits(replace(few, panel=0, epilogue=None), isa)  # nothing to store through
    assert not GROUPED_NHWC.suits(replace(few, groups=1), isa) and not GROUPED_NHWC.suits(replace(few, bias=True), isa)
    assert not GROUPED_NHWC.suits(replace(few, ker=(1, 3, 9)), isa)  # code that names every tap
    deep = forward_problem(
        replace(spec_of((1, 2, 64, 64, (7, 7), THREE, ONE, ONE, ONE, ONE), "f32", "last", "last", "bias"), panel=16)
    )
    assert not GROUPED_NHWC.suits(deep, isa)  # as dense ones
