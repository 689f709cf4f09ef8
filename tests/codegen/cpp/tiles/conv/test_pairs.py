"""Convolutions of bf16's numbers in pairs of channels: weights packed so, or in every call; images in any layout; zeros beside numbers."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.emitters import plan
from dcir.cost.machine import Machine
from dcir.ir.network import contiguous
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.isa import ISAS
from dcir.ops.library.convolution import channel_pairs_refusal
from dcir.ops.library.operand_types import alike
from tests.codegen.cpp.tiles.conv.test_nhwc import SHAPES, extent, spec_of
from tests.codegen.cpp.tiles.tile_harness import RUNNABLE, compile_plans
from tests.rotation import taken

pytestmark = pytest.mark.processor
ISA = ISAS["avx512bf16"]
MORE = {
    "one-tap": (2, 1, 66, 96, (7, 9), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
    "one-tap-s2": (2, 1, 64, 256, (9, 9), (1, 1), (2, 2), (0, 0), (0, 0), (1, 1)),
    "one-tap-rows": (1, 1, 128, 80, (20, 20), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
    "wide": (1, 1, 70, 64, (5, 40), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "two": (1, 1, 2, 64, (9, 21), (5, 5), (2, 2), (2, 2), (2, 2), (1, 1)),
}
NAMES = [name for name, s in (SHAPES | MORE).items() if s[1] == 1 and s[2] % 2 == 0 and s[3] * math.prod(s[5]) >= 160]


def _spec(name, x_layout, y_layout, epilogue, w_layout):
    spec = spec_of(MORE.get(name, name), "f32", x_layout, y_layout, epilogue, w_layout)
    spec = replace(spec, halves=True)
    return replace(spec, pairs=True, types=alike("f32", "bf16")) if spec.panel else spec


def _cases():
    epilogues = itertools.cycle(("residual", "bias", "silu", "none"))
    for name in NAMES:
        for x_layout, y_layout in (
            ("last", "last"),
            ("gap", "gap"),
            ("plain", "last"),
            ("last", "plain"),
            ("plain", "plain"),
        ):
            yield name, x_layout, y_layout, next(epilogues), "packed"
        for w_layout in ("last", "plain", "odd"):
            yield name, "last", "last", next(epilogues), w_layout


CASES = taken(list(_cases()), 40)


def _numbers(rng, shape):
    """Numbers of bf16 as after a ReLU: half of them zeros, whose neighbours must not be lost with them."""
    return torch.from_numpy(np.maximum(rng.uniform(-1, 1, shape), 0).astype("f4")).bfloat16().float().numpy()


def _operands(spec):
    """x, w, the epilogue's operands and where the result goes; x's gaps are NaN."""
    rng = np.random.default_rng(7)
    x = np.full(extent(spec.shapes[0], spec.x), np.nan, "f4")
    np.lib.stride_tricks.as_strided(x, spec.shapes[0], [4 * s for s in spec.x])[...] = _numbers(rng, spec.shapes[0])
    w = np.zeros(extent(spec.shapes[1], spec.w), "f4")
    np.lib.stride_tricks.as_strided(w, spec.shapes[1], [4 * s for s in spec.w])[...] = _numbers(
        rng, spec.shapes[1]
    ) - _numbers(rng, spec.shapes[1])
    w = torch.from_numpy(w).bfloat16().float().numpy()
    if spec.panel:
        pack = spec.packing()
        packed = np.zeros(math.prod(pack.outer), np.uint16)
        run_program(pack, [w], [packed], reference)
        w = packed
    more = []
    if spec.epilogue is not None:
        more.append(rng.uniform(-1, 1, spec.cout).astype("f4"))
        more += [rng.uniform(-1, 1, extent(spec.shapes[2], spec.y)).astype("f4")] * (len(spec.epilogue.inputs) - 2)
    return [x, w, *more], np.full(extent(spec.shapes[2], spec.y), 3.0, "f4")


@pytest.fixture(scope="module")
def kernels():
    if ISA.name not in RUNNABLE:
        pytest.skip("this processor does not multiply bf16 in pairs")
    entries = []
    for case in CASES:
        spec = _spec(*case)
        made = plan(spec, Machine(ISA, 2))
        ins = ("f32", spec.types.b, *(spec.epilogue.inputs[1:] if spec.epilogue else ()))
        entries.append((made, ins, ("f32",)))
    return compile_plans(entries)


def _tensor(a):
    return torch.from_numpy(a.view(np.int16) if a.dtype == np.uint16 else a)


@pytest.mark.parametrize("number", range(len(CASES)), ids=["-".join(c) for c in CASES])
def test_pairs(number, kernels):
    """Within the error of sums in f32; the loop nest, which reads the same panels, says the same."""
    spec = _spec(*CASES[number])
    ins, got = _operands(spec)
    want = got.copy()
    kernels[number](*map(_tensor, ins), torch.from_numpy(got))
    spec.reference(ins, [want])
    assert np.isfinite(want).all()
    scale = 1 + np.abs(want).max()
    assert np.abs(got - want).max() <= 4e-6 * scale
    if spec.operations() < 400_000:
        looped = np.full_like(got, 3.0)
        run_program(spec.loop_nest(), ins, [looped], reference)
        assert np.abs(looped - want).max() <= 4e-6 * scale


@pytest.mark.parametrize("name", NAMES)
def test_they_are_multiplied_so(name):
    """Nothing falls back to multiply-adds in silence, whatever the layout of the image, packed or not."""
    packed = _spec(name, "plain", "plain", "none", "packed")
    assert "dpbf16ps" in plan(packed, Machine(ISA, 2)).globals
    spec = _spec(name, "last", "last", "residual", "plain")
    positions = spec.n * math.prod(spec.out_size)
    if math.prod(spec.kernel) > 1 or spec.stride != (1, 1) or min(positions, spec.cin, spec.cout) >= 64:
        assert "dpbf16ps" in plan(spec, Machine(ISA, 2)).globals
    for isa in ("avx512", "avx2"):
        other = plan(spec, Machine(ISAS[isa], 2)).globals
        assert other == plan(replace(spec, halves=False), Machine(ISAS[isa], 2)).globals


@pytest.mark.parametrize("flipped", (False, True))
def test_gradients_of_images(flipped):
    """The taps of a data gradient run backwards through weights that are packed in the call."""
    if ISA.name not in RUNNABLE:
        pytest.skip("this processor does not multiply bf16 in pairs")
    kernel = (1, 1) if flipped else (3, 3)
    forward = spec_of((2, 1, 64, 70, (9, 8), kernel, (1, 1), (kernel[0] // 2,) * 2, (kernel[0] // 2,) * 2, (1, 1)),
                      "f32", "last", "last", "none", "plain")  # fmt: skip
    spec = replace(forward, kind="backward_data", halves=True)
    made = plan(spec, Machine(ISA, 2))
    assert "dpbf16ps" in made.globals
    (run,) = compile_plans([(made, "f32", 2)])
    rng = np.random.default_rng(3)
    y, w = (_numbers(rng, math.prod(spec.shapes[i])) - _numbers(rng, math.prod(spec.shapes[i])) for i in (2, 1))
    y, w = (torch.from_numpy(a).bfloat16().float().numpy() for a in (y, w))
    got, want = (np.full(math.prod(spec.shapes[0]), 3.0, "f4") for _ in range(2))
    run(_tensor(y), _tensor(w), torch.from_numpy(got))
    spec.reference([y, w], [want])
    assert np.abs(got - want).max() <= 4e-6 * (1 + np.abs(want).max())


WEIGHTS = {
    "one-tap": (4, 1, 96, 128, (9, 10), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
    "odd": (3, 1, 40, 70, (9, 10), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "strided": (5, 1, 24, 48, (11, 12), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "dilated": (2, 1, 33, 50, (13, 15), (3, 3), (1, 1), (4, 4), (4, 4), (4, 4)),
    "space": (3, 1, 16, 40, (5, 6, 7), (3, 2, 3), (1, 2, 1), (1, 0, 1), (1, 1, 1), (1, 1, 1)),
    "line": (2, 1, 64, 96, (300,), (2,), (1,), (8,), (0,), (8,)),
}


@pytest.mark.parametrize("layout", ("last", "gap"))
@pytest.mark.parametrize("name", WEIGHTS)
def test_gradients_of_weights(name, layout):
    """Pairs of images; the last of an odd number is alone."""
    if ISA.name not in RUNNABLE:
        pytest.skip("this processor does not multiply bf16 in pairs")
    spec = replace(spec_of(WEIGHTS[name], "f32", layout, layout, "none", "plain"), kind="backward_weight", halves=True)
    made = plan(spec, Machine(ISA, 2))
    assert "dpbf16ps" in made.globals
    (run,) = compile_plans([(made, "f32", 2)])
    (x, _), _ = _operands(replace(spec, kind="forward"))
    y, (shape, strides) = np.full(extent(spec.shapes[2], spec.y), np.nan, "f4"), (spec.shapes[2], spec.y)
    rng = np.random.default_rng(5)
    np.lib.stride_tricks.as_strided(y, shape, [4 * s for s in strides])[...] = _numbers(rng, shape)
    got, want = (np.full(math.prod(spec.shapes[1]), 3.0, "f4") for _ in range(2))
    run(_tensor(x), _tensor(y), torch.from_numpy(got))
    spec.reference([x, y], [want])
    assert np.isfinite(want).all()
    assert np.abs(got - want).max() <= 4e-6 * (1 + np.abs(want).max())
    one = replace(spec, n=1)
    assert "dpbf16ps" not in plan(one, Machine(ISA, 2)).globals, "one image has no other"


def test_infinities_and_nan_arrive():
    if ISA.name not in RUNNABLE:
        pytest.skip("this processor does not multiply bf16 in pairs")
    spec = _spec("wide", "last", "last", "none", "packed")
    (run,) = compile_plans([(plan(spec, Machine(ISA, 2)), ("f32", "bf16"), ("f32",))])
    (x, w), got = _operands(spec)
    places = np.lib.stride_tricks.as_strided(x, spec.shapes[0], [4 * s for s in spec.x])
    places[0, 3, 2, 5], places[0, 6, 4, 30] = np.inf, np.nan
    want = got.copy()
    run(_tensor(x), _tensor(w), torch.from_numpy(got))
    with np.errstate(invalid="ignore"):
        spec.reference([x, w], [want])
    assert (np.isnan(got) == np.isnan(want)).all() and (np.isinf(got) == np.isinf(want)).all()


def test_what_is_not_worth_a_copy():
    spec = _spec("one-tap-s2", "last", "last", "none", "plain")
    assert channel_pairs_refusal(spec) is None
    assert channel_pairs_refusal(replace(spec, cout=32)) is not None, "few results of a pixel that is copied"
    assert channel_pairs_refusal(replace(spec, cin=63)) is not None
    assert channel_pairs_refusal(replace(spec, groups=2)) is not None
    assert channel_pairs_refusal(replace(spec, halves=False)) is not None
    assert spec.w == contiguous(spec.shapes[1])
