"""Weight gradients in Winograd's form: tiles over every edge, chunks, shares and parts, against the specs' references."""

import itertools
import math

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.tiles.conv import winograd_weight
from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.ir.network import contiguous
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from tests.codegen.cpp.tiles.conv.test_winograd import last, window
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of
from tests.rotation import taken

# n, cin, cout, in_size, low padding, high padding
SHAPES = {
    "even": (1, 16, 32, (8, 8), (1, 1), (1, 1)),
    "odd": (2, 32, 48, (7, 9), (1, 1), (1, 1)),
    "no-border": (1, 16, 16, (6, 11), (0, 0), (0, 0)),
    "wide-border": (1, 16, 32, (5, 4), (3, 2), (0, 5)),
    "cropped": (1, 16, 32, (9, 9), (-1, -2), (1, 0)),
    "one-result": (3, 16, 16, (1, 1), (1, 1), (1, 1)),
    "chunks": (2, 32, 16, (37, 41), (1, 1), (1, 1)),
    "parts": (1, 16, 160, (9, 10), (1, 1), (1, 1)),
}
CASES = [
    (name, isa, threads, tile, layout)
    for name, ((isa, threads), tile, layout) in zip(
        [n for n in SHAPES for _ in range(4)],
        itertools.cycle(
            zip(
                itertools.cycle((("avx512", 1), ("avx512", 3), ("avx2", 2), ("generic", 2))),
                itertools.cycle(((2, 4), (4, 2), (2, 2))),
                itertools.islice(itertools.cycle(("plain", "last", "gap", "plain", "gap")), 60),
            )
        ),
        strict=False,
    )
]


def spec_of(case):
    name, _, _, tile, layout = case
    n, cin, cout, size, low, high = SHAPES[name]
    out = tuple(i + a + b - 2 for i, a, b in zip(size, low, high, strict=True))
    gap = 16 if layout == "gap" else 0
    w = (9 * cin, 1, 3 * cin, cin) if layout == "last" else contiguous((cout, cin, 3, 3))
    return ConvolutionSpec("backward_weight", alike("f32"), n, 1, cin, cout, size, (3, 3), out, (1, 1), low, (1, 1),
                           last((n, cin, *size), gap), w, last((n, cout, *out), gap), winograd=tile)  # fmt: skip


TAKEN = taken(CASES, 20)


@pytest.fixture(scope="module")
def kernels():
    entries = [(plan_convolution(spec_of(case), isa_of(case[1]), case[2]), "f32", 2) for case in TAKEN]
    return dict(zip(TAKEN, compile_plans(entries, ["-O1"]), strict=True))


@pytest.mark.parametrize("case", TAKEN, ids=lambda c: "-".join(map(str, c)))
def test_equals_reference(kernels, case):
    spec, rng = spec_of(case), np.random.default_rng(5)
    given = [window(rng, spec.shapes[0], spec.x, np.float32), window(rng, spec.shapes[2], spec.y, np.float32)]
    wanted, got = (np.full(math.prod(spec.shapes[1]), fill, np.float32) for fill in (2.0, 3.0))
    spec.reference(given, [wanted])
    kernels[case](*map(torch.from_numpy, given), torch.from_numpy(got))
    small = 1e-6 * (4 + (spec.n * math.prod(spec.out_size)) ** 0.5)
    np.testing.assert_allclose(got, wanted, rtol=small, atol=small)


def test_all_divisions_are_tested():
    """Among the cases there are several chunks, tiles that are shared, and channels that are."""
    texts = [plan_convolution(spec_of(case), isa_of(case[1]), case[2]).globals for case in CASES]
    assert any("j / 3, part = j % 3" in t for t in texts) and any("j / 1, part = j % 1" in t for t in texts)
    chunked = spec_of(("chunks", "avx512", 1, (2, 2), "plain"))
    tiles = chunked.n * 19 * 21
    assert tiles > winograd_weight.MOST_TILES


def test_result_is_the_same_every_time(kernels):
    case = TAKEN[0]
    spec, rng = spec_of(case), np.random.default_rng(5)
    given = [window(rng, spec.shapes[0], spec.x, np.float32), window(rng, spec.shapes[2], spec.y, np.float32)]
    results = [np.zeros(math.prod(spec.shapes[1]), np.float32) for _ in range(3)]
    for r in results:
        kernels[case](*map(torch.from_numpy, given), torch.from_numpy(r))
    assert all(np.array_equal(results[0], r) for r in results)
