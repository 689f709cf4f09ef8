"""Convolutions in Winograd's form: tiles over every edge, splits of tiles and channels, against the specs' references."""

import itertools
import math

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.tiles.conv import winograd as conv_winograd
from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.isa import ISAS, host_isa
from dcir.ops.library import winograd
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import panel_width
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of
from tests.rotation import taken

# n, cin, cout, in_size, low padding, high padding
SHAPES = {
    "even": (1, 16, 32, (8, 8), (1, 1), (1, 1)),
    "odd": (2, 32, 40, (7, 9), (1, 1), (1, 1)),
    "no-border": (1, 16, 5, (6, 11), (0, 0), (0, 0)),
    "wide-border": (1, 16, 33, (5, 4), (3, 2), (0, 5)),
    "cropped": (1, 16, 32, (9, 9), (-1, -2), (1, 0)),
    "one-result": (3, 16, 16, (1, 1), (1, 1), (1, 1)),
    "many-tiles": (2, 48, 70, (21, 37), (1, 1), (1, 1)),
    "deep": (1, 320, 64, (13, 13), (1, 1), (1, 1)),
}
TILES = ((2, 2), (2, 4), (4, 2))


def last(shape, gap=0):
    """Strides of channels-last, with a gap between pixels."""
    pitch = shape[1] + gap
    return (pitch * math.prod(shape[2:]), 1, *contiguous((*shape[2:], pitch))[:-1])


def spec_of(name, dtype, tile, epilogue, bias=False, gap=0):
    n, cin, cout, size, low, high = SHAPES.get(name, name)
    out = tuple(i + a + b - 2 for i, a, b in zip(size, low, high, strict=True))
    shape = (n, cout, *out)
    y = contiguous(shape) if gap == 5 else last(shape, gap)
    program = None
    if epilogue != "none":
        body = LoopNestBuilder(shape)
        value = body.load(body.input(dtype), contiguous(shape)) + body.load(body.input(dtype), (0, 1, 0, 0))
        if epilogue == "residual":
            value = body.op("max", value + body.load(body.input(dtype), y), body.const(0, dtype))
        if epilogue == "silu":
            value = value * body.op("sigmoid", value)
        body.store(body.output(dtype), y, value)
        program = body.finish()
    x = last((n, cin, *size), gap if gap != 5 else 0)
    return ConvolutionSpec("forward", alike(dtype), n, 1, cin, cout, size, (3, 3), out, (1, 1), low, (1, 1), x,
                           contiguous((cout, cin, 3, 3)), y, bias, panel_width(dtype, host_isa()), program, tile)  # fmt: skip


def window(rng, shape, strides, kind):
    made = np.full(1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)), np.nan, kind)
    np.lib.stride_tricks.as_strided(made, shape, [s * made.itemsize for s in strides])[...] = rng.uniform(-1, 1, shape)
    return made


def operands(spec):
    """x, plain weights, transformed weights and what else the spec reads; the result, full of threes."""
    kind, rng = np.dtype("f4" if spec.dtype == "f32" else "f8"), np.random.default_rng(7)
    x, w = window(rng, spec.shapes[0], spec.x, kind), window(rng, spec.shapes[1], spec.w, kind)
    transform = winograd.WinogradWeightsSpec(spec.dtype, spec.winograd, spec.cin, spec.cout, spec.panel, spec.w)
    u = np.zeros(math.prod(transform.packed_weights), kind)
    transform.reference([w], [u])
    assert transform.packed_weights == spec.packed_weights
    given = [x, u]
    if spec.bias:
        given.append(rng.uniform(-1, 1, spec.cout).astype(kind))
    if spec.epilogue is not None:
        given.append(rng.uniform(-1, 1, spec.cout).astype(kind))
        given += [window(rng, spec.shapes[2], spec.y, kind)] * (len(spec.epilogue.inputs) - 2)
    result = np.full(1 + sum((n - 1) * s for n, s in zip(spec.shapes[2], spec.y, strict=True)), 3.0, kind)
    return given, result, w


def cases():
    turns = itertools.cycle(itertools.product(TILES, ("none", "residual", "bias", "silu"), (False, True)))
    kinds = (
        ("f32", "avx512", 1),
        ("f32", "avx512", 3),
        ("f32", "avx2", 2),
        ("f32", "generic", 1),
        ("f64", "avx512", 2),
    )
    return [(name, dtype, isa, threads, *next(turns)) for name in SHAPES for dtype, isa, threads in kinds]


CASES = taken(cases(), 24)


def made(case):
    name, dtype, _, threads, tile, epilogue, bias = case
    return spec_of(
        name, dtype, tile, epilogue, bias, gap=(0, 16, 5)[(threads + len(name)) % 3]
    )  # 5: results along space


@pytest.fixture(scope="module")
def kernels():
    entries = []
    for case in CASES:
        spec = made(case)
        ins = 2 + spec.bias + (0 if spec.epilogue is None else len(spec.epilogue.inputs) - 1)
        entries.append((plan_convolution(spec, isa_of(case[2]), case[3]), (case[1],) * ins, (case[1],)))
    return dict(zip(CASES, compile_plans(entries, ["-O1"]), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_equals_reference(kernels, case):
    spec = made(case)
    given, result, _ = operands(spec)
    wanted = result.copy()
    spec.reference(given, [wanted])
    kernels[case](*map(torch.from_numpy, given), torch.from_numpy(result))
    small = (1e-6 if spec.dtype == "f32" else 1e-14) * (4 + (9 * spec.cin) ** 0.5)
    np.testing.assert_allclose(result, wanted, rtol=small, atol=small)  # gaps between pixels keep their 3.0


@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t[0]}x{t[1]}")
@pytest.mark.parametrize("name", ["odd", "wide-border", "cropped"])
def test_is_the_convolution(name, tile):
    """The reference, in float64, equals the ordinary convolution of the weights before their transform."""
    spec = spec_of(name, "f64", tile, "none", bias=True)
    given, result, w = operands(spec)
    spec.reference(given, [result])
    n, cin, cout, size, low, high = SHAPES[name]
    x = torch.from_numpy(given[0]).as_strided((n, cin, *size), spec.x)
    x = torch.nn.functional.pad(x, (low[1], high[1], low[0], high[0]))
    y = torch.nn.functional.conv2d(x, torch.from_numpy(w).reshape(cout, cin, 3, 3), torch.from_numpy(given[2]))
    got = torch.from_numpy(result).as_strided(y.shape, spec.y)
    torch.testing.assert_close(got, y, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t[0]}x{t[1]}")
def test_the_plain_form_agrees(tile):
    """The loop nest, which stock DaCe runs, takes the transform of the weights back."""
    spec = spec_of("no-border", "f64", tile, "bias")
    given, result, _ = operands(spec)
    wanted = result.copy()
    spec.reference(given, [wanted])
    run_program(spec.loop_nest(), given, [result], reference)
    np.testing.assert_allclose(result, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("results", [2, 4])
def test_matrices(results):
    """y = A^T [(G w) * (B^T x)], exactly; and ``inverse`` takes G back."""
    a, g, b = winograd.matrices(results)
    x, w = [k * k - 3 for k in range(results + 2)], [3, -1, 2]

    def times(m, v):
        return [sum(c * e for c, e in zip(row, v, strict=True)) for row in m]

    products = [p * q for p, q in zip(times(g, w), times(b, x), strict=True)]
    assert times(a, products) == [sum(w[k] * x[i + k] for k in range(3)) for i in range(results)]
    assert times(winograd.inverse(results), times(g, w)) == w


def test_accuracy_is_that_of_direct_sums():
    """On activations behind a relu and weights of the usual size the error stays below a few units of the largest result."""
    torch.manual_seed(0)
    x, w = torch.randn(1, 128, 14, 14).relu(), torch.randn(64, 128, 3, 3) * (2 / (9 * 128)) ** 0.5
    exact = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    eager = float((torch.nn.functional.conv2d(x, w, padding=1) - exact).abs().max() / exact.abs().max())
    for tile in TILES:
        (ah, gh, bh), (aw, gw, bw) = (
            tuple(torch.tensor([[float(v) for v in r] for r in m]) for m in winograd.matrices(t)) for t in tile
        )
        u = torch.einsum("pa,qb,oiab->pqoi", gh.double(), gw.double(), w.double()).float()
        padded = torch.nn.functional.pad(x, (1, 5, 1, 5))
        tiles = padded.unfold(2, tile[0] + 2, tile[0]).unfold(3, tile[1] + 2, tile[1])
        v = torch.einsum("qb,nipab->nipaq", bw, tiles.flatten(2, 3))
        v = torch.einsum("pa,niyaq->pqniy", bh, v)
        m = torch.einsum("pqniy,pqoi->pqnoy", v, u)
        y = torch.einsum("rp,pqnoy->rqnoy", ah, m)
        y = torch.einsum("sq,rqnoy->noyrs", aw, y).unflatten(2, tiles.shape[2:4]).transpose(3, 4).flatten(4, 5)
        y = y.flatten(2, 3)[:, :, :14, :14]
        assert float((y - exact).abs().max() / exact.abs().max()) < 4 * eager + 5e-7, tile


def test_work_is_split():
    """Enough tiles are shared among threads; few tiles leave the panels of weights to be shared."""
    isa = ISAS["avx512"]
    many = plan_convolution(spec_of("many-tiles", "f32", (2, 4), "none"), isa, 2)
    few = plan_convolution(spec_of("deep", "f32", (2, 4), "none"), isa, 2)
    assert [p.jobs for p in many.phases] == [p.jobs for p in few.phases] == [2]
    assert "j / 1, part = j % 1" in many.globals and "j / 2, part = j % 2" in few.globals


def test_common_terms_are_shared():
    """Points ±a share their even and odd terms."""
    lines = conv_winograd._line(["a", "b", "c", "d"], winograd.matrices(2)[2])
    assert "    const V s1 = x2, t1 = x1;" in lines and "    b = s1 + t1;" in lines and "    c = s1 - t1;" in lines
