"""Packing and transforming weights for Winograd's form: every layout of weights, flipped ones too, against the loop nest."""

import itertools
import math

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.tiles.conv.winograd_weights import plan_size_generic_weights, plan_weights, size_generic_weights
from dcir.isa import host_isa
from dcir.ops.library.packing import panel_width
from dcir.ops.library.winograd import WinogradWeightsSpec
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of
from tests.rotation import taken

SIZES = ((16, 32), (5, 40), (33, 7))
ISA_TYPES = (("avx512", "f32"), ("avx2", "f32"), ("generic", "f32"), ("avx512", "f64"))


def strides(layout, cin, cout):
    """Of w over (cout, cin, row, column)."""
    if layout == "plain":
        return (9 * cin, 9, 3, 1)
    return (9 * cin, 1, 3 * cin, cin) if layout == "last" else (9, 9 * cout, 3, 1)  # of a data gradient


ALL = list(itertools.product(SIZES, ("plain", "last", "exchanged"), ISA_TYPES, ((2, 4), (4, 2), (2, 2))))
CASES = taken(ALL, 36)


def spec_of(case):
    (cin, cout), layout, (_, dtype), tile = case
    return WinogradWeightsSpec(
        dtype, tile, cin, cout, panel_width(dtype, host_isa()), strides(layout, cin, cout), cin % 2 == 0
    )


@pytest.fixture(scope="module")
def kernels():
    entries = [(plan_weights(spec_of(case), isa_of(case[2][0])), case[2][1], 1) for case in CASES]
    return dict(zip(CASES, compile_plans(entries, ["-O1"]), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_program(kernels, case):
    spec = spec_of(case)
    kind = np.dtype("f4" if spec.dtype == "f32" else "f8")
    w = np.random.default_rng(3).uniform(-1, 1, 9 * spec.cin * spec.cout).astype(kind)
    wanted, got = (np.full(math.prod(spec.packed_weights), fill, kind) for fill in (2.0, 3.0))
    spec.reference([w], [wanted])
    kernels[case](torch.from_numpy(w), torch.from_numpy(got))
    units = 1e-7 if spec.dtype == "f32" else 1e-15
    np.testing.assert_allclose(got, wanted, rtol=4 * units, atol=4 * units)


def for_any_sizes(cases):
    """Of those of one tile and of two vectors, and their instructions."""
    cases = [c for c in cases if c[3] == (2, 4) and c[2] in (("avx512", "f32"), ("generic", "f32"))]
    return cases, [isa_of(c[2][0]) for c in cases]


def test_sizes_share_kernels():
    cases, isas = for_any_sizes(ALL)
    kernels = {(size_generic_weights(spec_of(c), isa, 2)[0], isa) for c, isa in zip(cases, isas, strict=True)}
    assert len(kernels) < len(cases)


def test_equals_for_any_sizes():
    """One kernel of an order of weights gives what those of its sizes give."""
    cases, isas = for_any_sizes(CASES)
    found = [size_generic_weights(spec_of(c), isa, 2) for c, isa in zip(cases, isas, strict=True)]
    distinct = dict.fromkeys((s, isa) for (s, _), isa in zip(found, isas, strict=True))
    plans = [(plan_size_generic_weights(s, isa), ("f32", "i64"), ("f32",)) for s, isa in distinct]
    kernels = dict(zip(distinct, compile_plans(plans, ["-O1"]), strict=True))
    for case, (spec, table), isa in zip(cases, found, isas, strict=True):
        sized = spec_of(case)
        w = np.random.default_rng(3).uniform(-1, 1, 9 * sized.cin * sized.cout).astype("f4")
        wanted, got = (np.full(math.prod(sized.packed_weights), fill, "f4") for fill in (2.0, 3.0))
        sized.reference([w], [wanted])
        kernels[spec, isa](torch.from_numpy(w), torch.tensor(table), torch.from_numpy(got))
        np.testing.assert_allclose(got, wanted, rtol=4e-7, atol=4e-7)
