"""Every scalar operator in every element type: compiled C++ against torch, over special and random values."""

import ctypes
import math
import subprocess

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.scalar_ops import CPP_TYPE, DTYPES, SCALAR_OPS, cast_expr, literal
from dcir.codegen.cpp.toolchain import HEADERS, find_compiler
from dcir.errors import Unsupported
from dcir.ir.types import FLOATS, INTEGERS, to_numpy

TORCH = {
    "f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "i32": torch.int32, "i16": torch.int16,
    "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool, "bf16": torch.bfloat16, "f16": torch.float16,
}  # fmt: skip
STORED = (*DTYPES, "bf16", "f16")
RENAMED = {
    "sub": "sub", "idiv_floor": "floor_divide", "floor_div": "floor_divide", "mod": "remainder", "min": "minimum",
    "max": "maximum", "and": "logical_and", "or": "logical_or", "xor": "logical_xor", "not": "logical_not",
    "bitand": "bitwise_and", "bitor": "bitwise_or", "bitxor": "bitwise_xor", "bitnot": "bitwise_not",
    "shl": "bitwise_left_shift", "shr": "bitwise_right_shift",
}  # fmt: skip
# Units in the last place between the C library's, torch's and our results.
LOOSE = {"lgamma": 2000, "digamma": 2000, "erfinv": 64, "pow": 4, "tan": 4, "fma": 2, "floor_div": 0, "polygamma": 24}


DEGREES = 40
POLYNOMIALS = [
    name for name in SCALAR_OPS if name.partition("_")[0] in ("chebyshev", "hermite", "laguerre", "legendre")
]


def torch_function(name):
    if name in POLYNOMIALS:
        return getattr(torch.special, name.replace("_", "_polynomial_"))
    if name == "polygamma":  # torch takes one order for a whole tensor
        return lambda n, x: torch.from_numpy(SCALAR_OPS["polygamma"].python(n.numpy(), x.numpy()))
    if name == "idiv_trunc":
        return lambda a, b: torch.div(a, b, rounding_mode="trunc")
    if name == "fma":
        return lambda a, b, c: a * b + c
    return getattr(torch, RENAMED.get(name, name))


def compiled(folder, text):
    source, library = folder / "unit.cpp", folder / "unit.so"
    source.write_text(text)
    flags = ["-std=c++17", "-O1", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-w"]
    command = [find_compiler(), *flags, "-shared", "-fPIC", f"-I{HEADERS}", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def loop(name, result, types, expression):
    pointers = "".join(f", const {CPP_TYPE[t]} *p{i}" for i, t in enumerate(types))
    loads = " ".join(f"{CPP_TYPE[t]} x{i} = p{i}[i];" for i, t in enumerate(types))
    head = f'extern "C" void {name}(long n, {CPP_TYPE[result]} *out{pointers})'
    return f"{head} {{ for (long i = 0; i < n; i++) {{ {loads} out[i] = {expression}; }} }}\n"


def argument_types(name, dtype):
    return ("bool", dtype, dtype) if name == "where" else (dtype,) * SCALAR_OPS[name].arity


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    parts = ['#include "prelude.h"\n']
    for name, operator in SCALAR_OPS.items():
        for dtype in operator.dtypes:
            types = argument_types(name, dtype)
            result = "bool" if operator.result == "bool" else dtype
            expression = operator.cpp([f"x{i}" for i in range(len(types))], dtype)
            parts.append(loop(f"{name}_{dtype}", result, types, expression))
    for src in STORED:
        for dst in STORED:
            parts.append(loop(f"cast_{src}_{dst}", dst, (src,), cast_expr("x0", src, dst)))
    return compiled(tmp_path_factory.mktemp("ops"), "".join(parts))


def call(library, name, result, arrays):
    out = np.empty(len(arrays[0]), to_numpy(result))
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (out, *arrays)]
    getattr(library, name)(ctypes.c_long(len(out)), *pointers)
    return out


def specials(dtype):
    if dtype == "bool":
        return np.array([False, True])
    if dtype in INTEGERS:
        info = np.iinfo(to_numpy(dtype))
        wanted = {0, 1, 2, 3, 7, -1, -2, -3, -7, 31, 32, 63, 64, info.min, info.min + 1, info.max, info.max - 1}
        return np.array(sorted(v for v in wanted if info.min <= v <= info.max), to_numpy(dtype))
    info = np.finfo(to_numpy(dtype))
    positive = [0.0, info.smallest_subnormal, info.tiny, 1e-5, 0.1, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.3, 1e4, math.inf]
    return np.array([*positive, *(-x for x in positive), math.nan], to_numpy(dtype))


def samples(dtype, arity, seed=0):
    """All pairs of special values, then random ones; the third argument of a ternary operator is random."""
    rng = np.random.default_rng(seed)
    pairs = np.array(np.meshgrid(specials(dtype), specials(dtype))).reshape(2, -1)
    if dtype == "bool":
        noise = rng.integers(0, 2, (3, 64)).astype(bool)
    elif dtype in INTEGERS:
        info = np.iinfo(to_numpy(dtype))
        noise = rng.integers(info.min, info.max, (3, 500), dtype=to_numpy(dtype), endpoint=True)
        noise[:, :250] %= 9
    else:
        noise = (rng.normal(size=(3, 2000)) * np.exp(rng.normal(size=(3, 2000)) * 3)).astype(to_numpy(dtype))
    third = rng.permutation(np.resize(noise[2], pairs.shape[1]))
    columns = [np.concatenate([pairs[0], noise[0]]), np.concatenate([pairs[1], noise[1]]), np.append(third, noise[2])]
    return [np.ascontiguousarray(c) for c in columns[:arity]]


def steps_apart(a, b):
    """Distance in representable numbers, 0 for equal values and for two NaNs."""
    integer = np.int64 if a.dtype == np.float64 else np.int32
    low = np.iinfo(integer).min

    def position(x):
        bits = x.view(integer)
        return np.where(bits < 0, low - bits, bits)

    both_nan, one_nan = np.isnan(a) & np.isnan(b), np.isnan(a) != np.isnan(b)
    x, y = position(a), position(b)
    far = np.abs(x.astype(np.float64) - y.astype(np.float64))
    apart = np.where(far < 2.0**30, np.abs(x - y), far)
    return np.where(both_nan | (a == b), 0, np.where(one_nan, np.inf, apart))


def usable(name, dtype, arrays):
    """Where the operator has one right answer that torch gives too."""
    x, y = arrays[0], arrays[-1]
    if dtype in INTEGERS and name in ("idiv_floor", "idiv_trunc", "floor_div", "mod", "fmod"):
        # torch raises or traps; the guards have a test of their own.
        low = np.iinfo(x.dtype).min
        return (y != 0) & ~((x == low) & (y == -1)) if low < 0 else y != 0
    if dtype in INTEGERS and name == "pow":
        return y >= 0
    if dtype in FLOATS and name in ("mod", "fmod", "floor_div"):
        # torch's vector fmod loses its way when the quotient is huge.
        with np.errstate(all="ignore"):
            return ~(np.abs(x / y) > 1e6) | np.isinf(x) | (y == 0)
    if name == "digamma":
        # Next to a pole or to its root the result has few right digits in any implementation.
        return (x > 0) | (x == np.round(x))
    if name in POLYNOMIALS:
        # From NaN torch returns an uninitialised variable, and degrees beyond the integers are as the machine has it.
        return ~(np.isnan(x) & (y >= 2)) & (np.abs(y) < DEGREES)
    if name == "polygamma":  # torch's first derivative left of zero has two digits in float
        return np.isin(x, (1, 2, 3)) & ((y > 0) | (y == np.round(y)) | (x > 1))
    return np.ones(len(x), bool)


def rounding(name, x, degree):
    """What recurrences may be off by: as many units as there are steps, of the sums without their cancellation."""
    x = np.where(np.isfinite(x), np.abs(x), 0).astype(np.float64)
    n, p, q, y = np.trunc(degree), np.ones_like(x), 2 * x + 1, 2 * x + 1
    for k in range(1, DEGREES):
        step = {"hermite": (y, 2 * k), "laguerre": ((2 * k + y) / (k + 1), k / (k + 1))}.get(
            name.partition("_")[0], (y, 1)
        )
        r = step[0] * q + step[1] * p
        p, q = np.where(k < n, q, p), np.where(k < n, r, q)
    return 4 * (np.abs(n) + 1) * q


def compare(name, dtype, got, want, arrays):
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    allowed = LOOSE.get(name, 3 if dtype == "f32" else 4)
    # torch's float sigmoid, and the reference's double one, flush what is below the normal numbers.
    tiny = float(np.finfo(got.dtype).tiny)
    floor = 2 * tiny if name == "sigmoid" else 1e-6 if name in ("digamma", "lgamma") else 0.0
    if name == "polygamma" and dtype == "f64":
        floor = 1e-9 * np.abs(np.where(np.isfinite(want), want, 0))  # torch's asymptotic series has three terms
    if name in POLYNOMIALS:
        with np.errstate(over="ignore"):
            floor = np.finfo(got.dtype).eps * rounding(name, *arrays)
            # At the edge of the range it depends on fused multiplication whether a sum overflows.
            floor = np.where(floor > 0.01 * np.finfo(got.dtype).max * np.finfo(got.dtype).eps, np.inf, floor)
    with np.errstate(invalid="ignore"):
        apart = np.where(np.abs(got - want) <= floor, 0, steps_apart(got, want))
    worst = int(apart.argmax())
    assert apart[worst] <= allowed, ([a[worst] for a in arrays], got[worst], want[worst], apart[worst])


CASES = [(name, dtype) for name, operator in SCALAR_OPS.items() for dtype in operator.dtypes]


def arguments(name, dtype, seed):
    arrays = samples(dtype, SCALAR_OPS[name].arity, seed)
    if name == "where":
        arrays[0] = np.arange(len(arrays[1])) % 3 == 0
    return arrays


def run(library, name, dtype, arrays):
    return call(library, f"{name}_{dtype}", "bool" if SCALAR_OPS[name].result == "bool" else dtype, arrays)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_agrees_with_torch(library, name, dtype):
    arrays = arguments(name, dtype, seed=0)
    keep = usable(name, dtype, arrays)
    arrays = [np.ascontiguousarray(a[keep]) for a in arrays]
    got = run(library, name, dtype, arrays)
    want = torch_function(name)(*map(torch.from_numpy, arrays)).numpy()
    assert want.dtype == got.dtype
    compare(name, dtype, got, want, arrays)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_agrees_with_the_reference(library, name, dtype):
    arrays = arguments(name, dtype, seed=1)
    if name == "shr" and dtype == "u8":
        arrays[1] %= 8
    if name in ("floor", "ceil", "trunc", "round") and dtype == "i64":
        arrays[0] >>= 12  # NumPy's rounding of integers goes through double
    keep = usable(name, dtype, arrays)
    arrays = [np.ascontiguousarray(a[keep]) for a in arrays]
    with np.errstate(all="ignore"):
        want = np.asarray(SCALAR_OPS[name].python(*arrays))
    got = run(library, name, dtype, arrays)
    assert want.shape == got.shape
    compare(name, dtype, got, want.astype(got.dtype), arrays)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("order", [1, 2, 3, 5, 12])
def test_derivatives_of_digamma(library, dtype, order):
    """Against 30 digits, near poles and far from them, on both sides of zero."""
    mpmath = pytest.importorskip("mpmath")
    rng = np.random.default_rng(order)
    x = np.concatenate([
        10.0 ** rng.uniform(-3, 4, 40), -(10.0 ** rng.uniform(-3, -1, 20)), -rng.uniform(0, 40, 40), -3 + 10.0 ** rng.uniform(-5, -1, 20),
    ]).astype(to_numpy(dtype))  # fmt: skip
    x = x[x != np.round(x)]
    got = run(library, "polygamma", dtype, [np.full_like(x, order), x])
    with mpmath.workdps(30):
        want = np.array([float(mpmath.psi(order, mpmath.mpf(float(v)))) for v in x])
    inside = (np.abs(want) < np.finfo(x.dtype).max) & (np.abs(want) > np.finfo(x.dtype).tiny)
    assert inside.sum() > 60
    # In double the sum itself rounds, about once for each of its terms.
    allowed = 1 if dtype == "f32" else 40
    assert (np.abs(got[inside] / want[inside] - 1) <= allowed * np.finfo(x.dtype).eps).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials_of_every_degree(library, name, dtype):
    """Inside and outside of [-1, 1], at its ends, at the degrees where the method changes."""
    rng = np.random.default_rng(0)
    base = [
        0,
        -0.0,
        1,
        -1,
        0.5,
        -0.5,
        2,
        math.inf,
        -math.inf,
        1e-5,
        1e-30,
        *rng.uniform(-1, 1, 60),
        *rng.normal(size=30) * 3,
    ]
    x, n = np.meshgrid(np.array(base, to_numpy(dtype)), np.array([-3, -0.5, *range(DEGREES), 2.7], to_numpy(dtype)))
    arrays = [np.ascontiguousarray(v.ravel()) for v in (x, n)]
    want = torch_function(name)(*map(torch.from_numpy, arrays)).numpy()
    compare(name, dtype, run(library, name, dtype, arrays), want, arrays)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_guards(library, dtype):
    kind = to_numpy(dtype)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    minus = np.array([-1 % (high - low + 1)]).astype(np.uint64).astype(kind)
    lowest, five, zero = np.array([low], kind), np.array([5], kind), np.array([0], kind)
    for name in ("idiv_floor", "idiv_trunc", "mod", "fmod"):
        assert call(library, f"{name}_{dtype}", dtype, [five, zero])[0] == 0
    for name in ("idiv_floor", "idiv_trunc"):
        assert call(library, f"{name}_{dtype}", dtype, [lowest, minus])[0] == low
    assert call(library, f"mod_{dtype}", dtype, [lowest, minus])[0] == 0
    if low < 0:
        bases, exponents = np.array([1, -1, -1, 2, 0], kind), np.array([-3, -3, -2, -1, -1], kind)
        np.testing.assert_array_equal(call(library, f"pow_{dtype}", dtype, [bases, exponents]), [1, -1, 1, 0, 0])


@pytest.mark.parametrize("src", STORED)
@pytest.mark.parametrize("dst", STORED)
def test_casts_agree_with_torch(library, src, dst):
    rng = np.random.default_rng(0)
    if src in INTEGERS or src == "bool":
        tensor = torch.from_numpy(samples(src, 1)[0])
    else:
        values = np.concatenate([specials("f64"), rng.normal(size=2000) * np.exp(rng.normal(size=2000) * 4)])
        tensor = torch.from_numpy(values).to(TORCH[src])
        if dst in INTEGERS:
            # Outside the range torch leaves the result to the machine.
            info = np.iinfo(to_numpy(dst))
            as_double = tensor.double()
            tensor = tensor[(as_double > info.min - 1.0) & (as_double < float(info.max))]
    plain = tensor.view(torch.int16).numpy() if src == "bf16" else tensor.numpy()
    got = call(library, f"cast_{src}_{dst}", dst, [plain])
    want = tensor.to(TORCH[dst])
    if dst == "bf16":
        want, got = want.float().numpy(), torch.from_numpy(got.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(got, want if isinstance(want, np.ndarray) else want.numpy())


@pytest.mark.parametrize("src", FLOATS)
def test_floats_out_of_range_become_the_smallest_integer(library, src):
    values = np.array([math.nan, math.inf, -math.inf, 1e30, -1e30], to_numpy(src))
    for dst in ("i32", "i64"):
        got = call(library, f"cast_{src}_{dst}", dst, [values])
        assert (got == np.iinfo(to_numpy(dst)).min).all()


def test_literals_keep_their_value(tmp_path):
    wanted = [(dtype, v) for dtype in FLOATS for v in (0.0, -0.0, 0.1, -1e-40, 1e300, math.inf, -math.inf, math.nan)]
    wanted += [(t, v) for t in INTEGERS for v in (np.iinfo(to_numpy(t)).min, 5, np.iinfo(to_numpy(t)).max)]
    wanted += [("bool", True), ("bool", False)]
    text = "".join(loop(f"c{i}", dtype, (), literal(v, dtype)) for i, (dtype, v) in enumerate(wanted))
    unit = compiled(tmp_path, text)
    for i, (dtype, value) in enumerate(wanted):
        out = np.empty(1, to_numpy(dtype))
        getattr(unit, f"c{i}")(ctypes.c_long(1), ctypes.c_void_p(out.ctypes.data))
        with np.errstate(over="ignore"):
            expected = np.array([value]).astype(to_numpy(dtype))
        assert out.tobytes() == expected.tobytes() or (np.isnan(value) and np.isnan(out[0])), (dtype, value)


def test_refuses_what_has_no_meaning():
    with pytest.raises(Unsupported, match="exp on i32"):
        SCALAR_OPS["exp"].cpp(["x"], "i32")
    with pytest.raises(Unsupported, match="c64"):
        cast_expr("x", "c64", "f32")
    with pytest.raises(Unsupported, match="bf16"):
        literal(1.0, "bf16")
