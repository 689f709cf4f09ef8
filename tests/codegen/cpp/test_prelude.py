"""The prelude's functions: accuracy over the whole float range, special values, vector code, conversions, Philox."""

import ctypes
import re
import subprocess

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.toolchain import HEADERS, find_compiler
from dcir.isa import host_isa

FLAGS = ["-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
UNARY = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "erf", "sin", "cos", "atan", "sqrt", "rsqrt",
)  # fmt: skip
BINARY = {
    "pow": np.power, "atan2": np.arctan2, "fmod": np.fmod, "remainder": np.mod, "floor_div": np.floor_divide,
}  # fmt: skip
ULP = 2.0
FOLDED = (16, 32, 64, 128)
SHAPES = {
    "lgamma": ("float", "float", "d_lgamma(x[i])"),
    "to_bf16": ("float", "bf16_t", "d_f32_to_bf16(x[i])"),
    "from_bf16": ("bf16_t", "float", "d_bf16_to_f32(x[i])"),
    "to_f16": ("float", "_Float16", "d_f32_to_f16(x[i])"),
    "from_f16": ("_Float16", "float", "d_f16_to_f32(x[i])"),
    "to_i32": ("float", "int", "d_f32_to_i32(x[i])"),
    "to_u8": ("float", "unsigned char", "d_f32_to_u8(x[i])"),
    "to_bool": ("float", "bool", "d_f32_to_bool(x[i])"),
    "gelu": ("float", "float", "0.5f * x[i] * (1.0f + d_erf(x[i] * 0x1.6a09e6p-1f))"),
    "clip": ("float", "float", "d_min(d_max(x[i], -1.0f), 1.0f)"),
    "uniform": ("unsigned", "float", "d_uniform01(d_philox4x32_10(x[i], 7u, i, 0).x)"),
}


def source():
    lines = ['#include "prelude.h"']
    shapes = {name: ("float", "float", f"d_{name}(x[i])") for name in UNARY} | SHAPES
    for name, (src, dst, body) in shapes.items():
        head = f'extern "C" void {name}(const {src} *__restrict__ x, {dst} *__restrict__ y, long n)'
        lines.append(f'{head} {{ _Pragma("omp simd") for (long i = 0; i < n; i++) y[i] = {body}; }}')
    for name in BINARY:
        head = f'extern "C" void {name}(const float *__restrict__ x, const float *__restrict__ y, float *__restrict__ z, long n)'
        lines.append(f'{head} {{ _Pragma("omp simd") for (long i = 0; i < n; i++) z[i] = d_{name}(x[i], y[i]); }}')
    lines.append(
        'extern "C" void philox(unsigned a, unsigned b, unsigned long long c, unsigned long long d, unsigned *o)'
        "{ d_philox r = d_philox4x32_10(a, b, c, d); o[0] = r.x; o[1] = r.y; o[2] = r.z; o[3] = r.w; }"
    )
    lines.append(
        'extern "C" void normal(float *x, float *y, long n) { for (long i = 0; i < n; i++) {'
        "d_philox r = d_philox4x32_10(1, 2, i, 0); d_normal2(r.x, r.y, x[i], y[i]); } }"
    )
    for n in FOLDED:
        lines.append(f'extern "C" float fold_{n}(const float (&p)[{n}]) {{ return d_fold<d_sum_of>(p); }}')
    return lines


@pytest.fixture(scope="module")
def unit(tmp_path_factory):
    """The library, the compiler's remarks on loops, and the line of each function."""
    folder = tmp_path_factory.mktemp("prelude")
    lines = source()
    (folder / "unit.cpp").write_text("\n".join(lines) + "\n")
    command = [find_compiler(), "-std=c++17", *FLAGS, "-w", "-shared", "-fPIC", f"-I{HEADERS}", "unit.cpp"]
    gnu = (
        "Free Software Foundation"
        in subprocess.run([find_compiler(), "--version"], capture_output=True, text=True).stdout
    )
    remarks = ["-fopt-info-vec"] if gnu else ["-Rpass=loop-vectorize"]
    done = subprocess.run([*command, *remarks, "-o", "unit.so"], cwd=folder, capture_output=True, text=True, check=True)
    line_of = {re.search(r"void (\w+)\(", text)[1]: i for i, text in enumerate(lines, 1) if "void" in text}
    return ctypes.CDLL(str(folder / "unit.so")), done.stderr, line_of


def apply(unit, name, x, out):
    getattr(unit[0], name)(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_long(len(x)))
    return out


def floats():
    """Every sign and exponent with 2048 mantissas, the neighbours of powers of two, and random bit patterns."""
    rng = np.random.default_rng(0)
    top = np.arange(512, dtype=np.uint32)[:, None] << 23
    edges = np.array([0, 1, 2, 3, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF], np.uint32)
    mantissas = np.concatenate([edges, rng.integers(0, 1 << 23, 2048 - len(edges), dtype=np.uint32)])
    return np.concatenate([(top | mantissas).ravel(), rng.integers(0, 1 << 32, 1 << 18, dtype=np.uint32)]).view(
        np.float32
    )


def reference(name, x):
    x = x.astype(np.float64)
    if name == "atan":
        return np.arctan(x)
    if name == "erf":
        return torch.erf(torch.from_numpy(x)).numpy()
    if name == "sigmoid":
        return np.where(x < 0, np.exp(-np.abs(x)), 1.0) / (1.0 + np.exp(-np.abs(x)))
    return 1.0 / np.sqrt(x) if name == "rsqrt" else getattr(np, name)(x)


def ulps(got, want):
    """Error in units of the last place of the float next to ``want``; a result beyond the range must be infinite."""
    size = np.maximum(np.abs(want), 2.0**-126)
    ulp = 2.0 ** (np.floor(np.log2(np.where(np.isfinite(size), size, 1.0))) - 23)
    with np.errstate(over="ignore"):
        rounded = want.astype(np.float32)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(
        same, np.where(np.isfinite(want) & np.isfinite(got), np.abs(got - want) / ulp, 0.0), np.abs(got - want) / ulp
    )


@pytest.mark.parametrize("name", UNARY)
def test_accuracy(unit, name):
    x = floats()
    got = apply(unit, name, x, np.empty_like(x))
    with np.errstate(all="ignore"):
        error = ulps(got.astype(np.float64), reference(name, x))
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    assert error[worst] <= ULP, f"{name}({x[worst].item().hex()}) = {got[worst]}: {error[worst]:.2f} ulp"


def pairs():
    """All pairs of special values, of random bits, of numbers near each other in size, and of wholes; in another order for every use."""
    rng = np.random.default_rng(0)
    n = 1 << 19
    special = [
        0.0,
        1e-45,
        1.1754942e-38,
        1.17549435e-38,
        0.1,
        0.5,
        1.0,
        1.5,
        2.0,
        3.0,
        2.0**23,
        2.0**24 + 2,
        3.4028235e38,
        np.inf,
        np.nan,
    ]
    special = np.array([*special, *(-v for v in special)], np.float32)
    bits = rng.integers(0, 1 << 32, (2, n), dtype=np.uint32).view(np.float32)
    near = (rng.normal(size=(2, n)) * np.exp(rng.normal(size=(2, n)) * 3)).astype(np.float32)
    whole = rng.integers(-300, 300, (2, n)).astype(np.float32) * np.float32(0.1) ** rng.integers(0, 2, n).astype(
        np.float32
    )
    close = np.stack([near[0], near[0] * (1 + rng.integers(-4, 5, n) * 2.0**-23).astype(np.float32)])
    crossed = np.array(np.meshgrid(special, special), np.float32).reshape(2, -1)
    both = np.concatenate([crossed, bits, near, whole, close], axis=1)
    return np.ascontiguousarray(both[:, rng.permutation(both.shape[1])])


def apply_pairs(unit, name, x, y):
    out = np.empty_like(x)
    getattr(unit[0], name)(*(ctypes.c_void_p(a.ctypes.data) for a in (x, y, out)), ctypes.c_long(len(x)))
    return out


@pytest.mark.parametrize("name", ["pow", "atan2"])
def test_accuracy_of_pairs(unit, name):
    x, y = pairs()
    got = apply_pairs(unit, name, x, y)
    with np.errstate(all="ignore"):
        want = BINARY[name](x.astype(np.float64), y.astype(np.float64))
        error = ulps(got.astype(np.float64), want)
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    assert error[worst] <= ULP, (
        f"{name}({x[worst].item().hex()}, {y[worst].item().hex()}) = {got[worst]}: {error[worst]:.2f} ulp"
    )
    zero = (want == 0) & (got == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("name", ["fmod", "remainder", "floor_div"])
def test_remainders_are_exact(unit, name):
    """Of quotients of all sizes, with the signs of zeros, in vectors and in what is left after them."""
    x, y = pairs()
    with np.errstate(all="ignore"):
        want = BINARY[name](x, y)
        if name == "remainder":  # NumPy's zero has the divisor's sign, torch's that of fmod
            rest = np.fmod(x, y)
            want = np.where(rest == 0, rest, want)
    for got, expected in (
        (apply_pairs(unit, name, x, y), want),
        (np.concatenate([apply_pairs(unit, name, x[i : i + 1], y[i : i + 1]) for i in range(500)]), want[:500]),
    ):
        np.testing.assert_array_equal(got, expected)
        zero = expected == 0
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))


def test_logarithms_of_gamma(unit):
    """Right of 0 also next to the zeros at 1 and 2; left of it, where zeros lie between poles, the error is of what cancels."""
    rng = np.random.default_rng(0)
    steps = np.arange(-5000, 5000)
    x = np.concatenate(
        [floats(), rng.uniform(0, 4, 1 << 18), rng.uniform(-40, 0, 1 << 18), 1 + steps * 2.0**-23, 2 + steps * 2.0**-22]
    )
    x = np.concatenate([x, [1.0, 2.0, 0.0, -0.0, -1.0, -2.0, np.inf, -np.inf, 1e-45, -1e-45]]).astype(np.float32)
    got = apply(unit, "lgamma", x, np.empty_like(x)).astype(np.float64)
    want = torch.lgamma(torch.from_numpy(x.astype(np.float64))).numpy()
    right = x > 0
    assert np.isnan(got[np.isnan(x)]).all() and not np.signbit(got[x == 1]).any()
    assert ulps(got[right], want[right]).max() <= 1.0
    left, sure = got[x <= 0], want[x <= 0]
    np.testing.assert_array_equal(np.isinf(left), np.isinf(sure.astype(np.float32)))
    far = np.isfinite(left)
    assert (np.abs(left - sure)[far] <= 2.5e-7 * np.maximum(1, np.abs(sure[far]))).all()


def test_lanes_do_not_see_their_neighbours(unit):
    """A rare argument sends its whole vector the long way: the others' results stay as they are, in vectors and beside them."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=4096) * 100).astype(np.float32)
    mixed = np.where(rng.random(4096) < 0.1, np.float32(3e38), x)
    for name in ("sin", "cos"):
        alone = np.concatenate([apply(unit, name, v[None], np.empty(1, np.float32)) for v in x])
        np.testing.assert_array_equal(apply(unit, name, x, np.empty_like(x)), alone)
        got = apply(unit, name, mixed, np.empty_like(x))
        np.testing.assert_array_equal(got[mixed == x], alone[mixed == x])


@pytest.mark.parametrize("name", UNARY)
def test_special_values(unit, name):
    x = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45], np.float32)
    got = apply(unit, name, x, np.empty_like(x))
    with np.errstate(all="ignore"):
        want = reference(name, x).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=0)
    keep = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[keep]), np.signbit(want[keep]))


@pytest.mark.parametrize("name", [*UNARY, *BINARY, *SHAPES])
def test_loops_are_vectorised(unit, name):
    if name == "to_u8" and host_isa().vectors != "avx512":
        pytest.skip("only AVX-512 converts vectors to integers of 64 bits")
    _, remarks, line_of = unit
    assert re.search(rf"unit\.cpp:{line_of[name]}:.*vectorized", remarks), name


@pytest.mark.parametrize("header", ["prelude.h", "dace_shim.h"])
def test_includes_no_foreign_header(tmp_path, header):
    (tmp_path / "unit.cpp").write_text(f'#include "{header}"\n')
    command = [find_compiler(), "-std=c++17", f"-I{HEADERS}", "-M", str(tmp_path / "unit.cpp")]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    # The compiler itself puts stdc-predef.h before every unit.
    headers = [path for path in found if path.endswith(".h") and not path.endswith("stdc-predef.h")]
    assert str(HEADERS / header) in headers
    assert [path for path in headers if not path.startswith(str(HEADERS))] == []


def test_half_from_storage_is_exact(unit):
    bits = np.arange(1 << 16, dtype=np.uint16)
    got = apply(unit, "from_f16", bits, np.empty(1 << 16, np.float32))
    np.testing.assert_array_equal(got, bits.view(np.float16).astype(np.float32))
    got = apply(unit, "from_bf16", bits, np.empty(1 << 16, np.float32))
    np.testing.assert_array_equal(got, torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy())


def test_half_rounds_to_nearest_even(unit):
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = ((halves[1:] + halves[:-1]) / 2).astype(np.float32)
    near = np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1e9))])
    x = np.concatenate([floats(), near, -near, np.array([65519.0, 65520.0, -65520.0], np.float32)])
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    np.testing.assert_array_equal(apply(unit, "to_f16", x, np.empty(len(x), np.float16)), want)
    got = apply(unit, "to_bf16", x, np.empty(len(x), np.int16))
    want = torch.from_numpy(x).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(torch.from_numpy(got).view(torch.bfloat16).float().numpy(), want)


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 2, (2**64 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0xA4093822, 0x299F31D0),
            (0x85A308D3243F6A88, 0x0370734413198A2E),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(unit, key, counter, words):
    out = (ctypes.c_uint * 4)()
    unit[0].philox(*map(ctypes.c_uint, key), *map(ctypes.c_ulonglong, counter), out)
    assert tuple(out) == words


def test_uniform_numbers(unit):
    u = apply(unit, "uniform", np.full(1 << 18, 3, np.uint32), np.empty(1 << 18, np.float32))
    assert u.min() >= 0.0 and u.max() < 1.0
    assert abs(u.mean() - 0.5) < 0.003 and abs(u.var() - 1 / 12) < 0.001
    histogram = np.histogram(u, 64, (0.0, 1.0))[0]
    assert (np.abs(histogram - 4096) < 6 * 64).all()


def test_normal_numbers(unit):
    n = 1 << 18
    x, y = np.empty(n, np.float32), np.empty(n, np.float32)
    unit[0].normal(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(n))
    for z in (x, y):
        assert np.isfinite(z).all()
        assert abs(z.mean()) < 0.01 and abs(z.var() - 1) < 0.02 and abs((z**4).mean() - 3) < 0.1
        expected = (1 + torch.erf(torch.sort(torch.from_numpy(z)).values / 2**0.5)) / 2
        assert (expected - torch.arange(n) / n).abs().max() < 2 / n**0.5
    assert abs((x * y).mean()) < 0.01 and abs((x**2 * y**2).mean() - 1) < 0.03


@pytest.mark.parametrize("n", FOLDED)
def test_folds_have_every_element(unit, n):
    """The order is that of halves of halves, whatever the width of vectors."""
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    fold = unit[0][f"fold_{n}"]
    fold.restype = ctypes.c_float
    want = x.copy()
    while len(want) > 1:
        want = want[: len(want) // 2] + want[len(want) // 2 :]
    assert fold(ctypes.c_void_p(x.ctypes.data)) == want[0]
