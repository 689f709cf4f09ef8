"""DaCe's generated CPU code compiles against the stand-in header, and computes what NumPy computes."""

import copy
import ctypes
import subprocess

import dace
import numpy as np
import pytest
from dace import dtypes, nodes
from dace.codegen import codegen
from dace.libraries.standard import Reduce

from dcir.codegen.cpp.toolchain import HEADERS, find_compiler

FLAGS = ["-O2", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
N = dace.symbol("N")
F32 = dace.float32


@pytest.fixture(autouse=True)
def quiet():
    dace.Config.set("progress", value=False)


@pytest.fixture
def run(tmp_path):
    """Generates, compiles and runs one SDFG; arrays and symbols by name, in the order of its signature."""

    def go(sdfg, **values):
        code = codegen.generate_code(copy.deepcopy(sdfg), validate=False)[0].clean_code
        (tmp_path / "dace").mkdir(exist_ok=True)
        (tmp_path / "dace" / "dace.h").write_text('#include "dace_shim.h"\n')
        source = tmp_path / f"{sdfg.name}.cpp"
        source.write_text(code.replace('#include "../../include/hash.h"', ""))
        library = source.with_suffix(".so")
        folders = [f"-I{tmp_path}", f"-I{HEADERS}"]
        command = [find_compiler(), "-std=c++17", *FLAGS, "-fvisibility=hidden", "-w", "-shared", "-fPIC", *folders]
        subprocess.run([*command, str(source), "-o", str(library)], check=True)
        lib = ctypes.CDLL(str(library))
        init, program, leave = (getattr(lib, f"__{what}_{sdfg.name}") for what in ("dace_init", "program", "dace_exit"))
        init.restype = ctypes.c_void_p
        symbols = [
            ctypes.c_int(values[s]) for s in sdfg.init_signature(free_symbols=sdfg.free_symbols).split() if s in values
        ]
        state = ctypes.c_void_p(init(*symbols))
        program(state, *(pass_on(values[name]) for name in sdfg.signature_arglist(with_types=False)))
        assert leave(state) == 0

    return go


def pass_on(value):
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return value if not isinstance(value, (int, np.integer)) else ctypes.c_int(value)


def elementwise(name, code, dtype=F32, result=None, language=dtypes.Language.Python):
    sdfg = dace.SDFG(name)
    for array in "AB":
        sdfg.add_array(array, [N], dtype)
    sdfg.add_array("C", [N], result or dtype)
    inputs = {"a": dace.Memlet("A[i]"), "b": dace.Memlet("B[i]")}
    outputs = {"c": dace.Memlet("C[i]")}
    sdfg.add_state().add_mapped_tasklet(
        "t", {"i": "0:N"}, inputs, code, outputs, external_edges=True, language=language
    )
    return sdfg


def pair(dtype=np.float32, n=100):
    rng = np.random.default_rng(0)
    return (rng.normal(size=(2, n)) * 5).astype(dtype)


def test_python_tasklets(run):
    a, b = pair()
    c = np.empty(100, np.float32)
    code = (
        "c = exp(a) + max(a, b) * tanh(b) ** 2 + math.sqrt(abs(a)) + dace.float32(0.5) * min(a, b)"
        " + (a if a > b else b) + a // b + log(abs(a)) + (1 if a > 0 and not b < 0 else 0) + erf(a) + pow(a, 2)"
        " + a ** -1 + Max(a, b, 0.0) + floor(a) + math.atan2(a, b)"
    )
    run(elementwise("python_tasklet", code), A=a, B=b, C=c, N=100)
    x, y = a.astype(np.float64), b.astype(np.float64)
    erf = np.vectorize(__import__("math").erf)
    want = np.exp(x) + np.maximum(x, y) * np.tanh(y) ** 2 + np.sqrt(abs(x)) + 0.5 * np.minimum(x, y) + np.maximum(x, y)
    want += x // y + np.log(abs(x)) + ((x > 0) & ~(y < 0)) + erf(x) + x**2 + 1 / x + np.maximum(np.maximum(x, y), 0)
    want += np.floor(x) + np.arctan2(x, y)
    np.testing.assert_allclose(c, want, rtol=3e-6, atol=1e-5)


def test_cpp_tasklets_see_the_prelude(run):
    a, b = pair()
    c = np.empty(100, np.float32)
    run(elementwise("cpp_tasklet", "c = d_exp(a) * b;", language=dtypes.Language.CPP), A=a, B=b, C=c, N=100)
    np.testing.assert_allclose(c, np.exp(a.astype(np.float64)) * b, rtol=1e-6)


def test_integers_and_symbols(run):
    a, b = pair(np.int64)
    b[b == 0] = 3
    c = np.empty(100, np.int64)
    code = "c = a // b + (a >> 1) + abs(a) + int_floor(N, 3) + int_ceil(N, 7) + Min(a, b) + (a & b) + a ** 2"
    run(elementwise("integers", code, dace.int64), A=a, B=b, C=c, N=100)
    np.testing.assert_array_equal(c, a // b + (a >> 1) + abs(a) + 33 + 15 + np.minimum(a, b) + (a & b) + a**2)


def test_bools_and_halves(run):
    a, b = pair()
    a[3] = np.nan
    c = np.empty(100, bool)
    run(elementwise("bools", "c = a > b or isnan(a)", F32, dace.bool_), A=a, B=b, C=c, N=100)
    np.testing.assert_array_equal(c, (a > b) | np.isnan(a))
    a, b = pair(np.float16)
    c = np.empty(100, np.float32)
    run(elementwise("halves", "c = a + b", dace.float16, F32), A=a, B=b, C=c, N=100)
    np.testing.assert_allclose(c, a.astype(np.float32) + b, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("implementation", ["pure", "pure-seq"])
def test_reductions(run, implementation):
    sdfg = dace.SDFG("reductions")
    sdfg.add_array("A", [16, N], F32)
    state = sdfg.add_state()
    for name, function, start in (("S", "lambda a, b: a + b", 0), ("M", "lambda a, b: max(a, b)", -float("inf"))):
        sdfg.add_array(name, [16], F32)
        node = Reduce(f"reduce_{name}", function, (1,), start)
        node.implementation = implementation
        state.add_node(node)
        state.add_edge(state.add_read("A"), None, node, None, dace.Memlet("A[0:16, 0:N]"))
        state.add_edge(node, None, state.add_write(name), None, dace.Memlet(f"{name}[0:16]"))
    a = np.random.default_rng(0).normal(size=(16, 50)).astype(np.float32)
    s, m = np.empty(16, np.float32), np.empty(16, np.float32)
    run(sdfg, A=a, S=s, M=m, N=50)
    np.testing.assert_allclose(s, a.sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(m, a.max(1))


WRITES = {
    "lambda a, b: a + b": (0, lambda x: x.sum()),
    "lambda a, b: a * b": (1, lambda x: x.prod()),
    "lambda a, b: min(a, b)": (9, lambda x: x.min()),
    "lambda a, b: max(a, b)": (-9, lambda x: x.max()),
    "lambda a, b: a + b * b": (0, lambda x: (x.astype(np.float64) ** 2).sum()),
}


@pytest.mark.parametrize(("dtype", "kind"), [(F32, np.float32), (dace.float64, np.float64), (dace.int32, np.int32)])
def test_atomic_writes(run, dtype, kind):
    sdfg = dace.SDFG(f"writes_{np.dtype(kind).name}")
    sdfg.add_array("A", [N], dtype)
    state = sdfg.add_state()
    for i, function in enumerate(WRITES):
        sdfg.add_array(f"R{i}", [1], dtype)
        write = {"c": dace.Memlet(f"R{i}[0]", wcr=function)}
        state.add_mapped_tasklet(f"t{i}", {"i": "0:N"}, {"a": dace.Memlet("A[i]")}, "c = a", write, external_edges=True)
    a = np.ones(20000, kind)
    a[:8] = [2, -3, 1, 2, 1, -1, 2, 1]
    results = {f"R{i}": np.array([start], kind) for i, (start, _) in enumerate(WRITES.values())}
    run(sdfg, A=a, N=len(a), **results)
    for i, (_, function) in enumerate(WRITES.values()):
        assert results[f"R{i}"][0] == function(a)


def test_a_nan_survives_a_maximum(run):
    sdfg = dace.SDFG("nan_maximum")
    sdfg.add_array("A", [N], F32)
    sdfg.add_array("R", [1], F32)
    write = {"c": dace.Memlet("R[0]", wcr="lambda a, b: max(a, b)")}
    sdfg.add_state().add_mapped_tasklet(
        "t", {"i": "0:N"}, {"a": dace.Memlet("A[i]")}, "c = a", write, external_edges=True
    )
    a, r = np.ones(1000, np.float32), np.zeros(1, np.float32)
    a[700] = np.nan
    run(sdfg, A=a, R=r, N=1000)
    assert np.isnan(r[0])


def test_containers_transients_and_copies(run):
    sdfg = dace.SDFG("containers")
    sdfg.add_datadesc("P", dace.data.ContainerArray(dace.data.Array(F32, [N]), [3]))
    sdfg.add_array("C", [N], F32)
    sdfg.add_transient("T", [N, 64], F32, storage=dtypes.StorageType.CPU_Heap)
    first = sdfg.add_state()
    code = "for (long long i = 0; i < N; i++) c[i] = p[0][i] + p[2][i];"
    tasklet = first.add_tasklet("raw", {"p": None}, {"c": None}, code, dtypes.Language.CPP)
    first.add_edge(first.add_read("P"), None, tasklet, "p", dace.Memlet("P[0:3]"))
    first.add_edge(tasklet, "c", first.add_write("C"), None, dace.Memlet("C[0:N]"))
    second = sdfg.add_state_after(first)
    read, write = {"a": dace.Memlet("C[i]")}, {"t": dace.Memlet("T[i, j]")}
    second.add_mapped_tasklet("grow", {"i": "0:N", "j": "0:64"}, read, "t = a * j", write, external_edges=True)
    third = sdfg.add_state_after(second)
    third.add_nedge(third.add_read("T"), third.add_write("C"), dace.Memlet("T[0:N, 3] -> [0:N]"))
    parts = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)
    pointers = (ctypes.c_void_p * 3)(*(p.ctypes.data for p in parts))
    c = np.empty(40, np.float32)
    run(sdfg, P=pointers, C=c, N=40)
    np.testing.assert_allclose(c, (parts[0] + parts[2]) * 3, rtol=1e-6)


COPIES = {
    "A[1:5, 2:10, 0:3] -> [0:4, 0:8, 0:3]": (np.s_[1:5, 2:10, 0:3], np.s_[0:4, 0:8, 0:3]),
    "A[0:N, 0:10, 1] -> [0:N, 0:10, 2]": (np.s_[:, 0:10, 1], np.s_[:, 0:10, 2]),
    "A[2, 0:10, 0:3] -> [3, 0:10, 0:3]": (np.s_[2, 0:10, 0:3], np.s_[3, 0:10, 0:3]),
}


@pytest.mark.parametrize("memlet", COPIES)
@pytest.mark.parametrize("accumulate", [None, "lambda a, b: a + b"])
@pytest.mark.parametrize("widths", [(12, 12), (12, "M"), ("M", 12), ("M", "M")])
def test_strided_copies(run, memlet, accumulate, widths):
    sdfg = dace.SDFG("copies")
    m = dace.symbol("M")
    shapes = [[N, m if w == "M" else w, 3] for w in widths]
    sdfg.add_array("A", shapes[0], F32)
    sdfg.add_array("B", shapes[1], F32)
    state = sdfg.add_state()
    edge = dace.Memlet(memlet)
    edge.wcr = accumulate
    state.add_nedge(state.add_read("A"), state.add_write("B"), edge)
    a, b = np.random.default_rng(0).normal(size=(2, 6, 12, 3)).astype(np.float32)
    want = b.copy()
    src, dst = COPIES[memlet]
    want[dst] = a[src] + (b[dst] if accumulate else 0)
    run(sdfg, A=a, B=b, N=6, M=12)
    np.testing.assert_array_equal(b, want)


@dace.program
def row_sums(A: F32[N, 32], x: F32[32], y: F32[N], k: dace.int32):
    t = np.exp(A - x)
    for i in dace.map[0:N]:
        s = dace.float32(0)
        for j in range(32):
            s += t[i, j] * k
        y[i] = s


@dace.program
def walk(A: F32[N], n: dace.int32):
    i = 0
    while i < n:
        if A[i] > 0:
            A[i] = A[i] * 2
        else:
            A[i] = -A[i] / 2
        i = i + 1
    A[0:4] = A[4:8]


@pytest.mark.parametrize("simplify", [False, True])
def test_nested_graphs(run, simplify):
    sdfg = row_sums.to_sdfg(simplify=simplify)
    assert simplify or any(isinstance(n, nodes.NestedSDFG) for n, _ in sdfg.all_nodes_recursive())
    rng = np.random.default_rng(0)
    a, x, y = (rng.normal(size=s).astype(np.float32) for s in ((20, 32), 32, 20))
    run(sdfg, A=a, x=x, y=y, k=3, N=20)
    np.testing.assert_allclose(y, 3 * np.exp(a.astype(np.float64) - x).sum(1), rtol=1e-5)


def test_control_flow(run):
    a = np.random.default_rng(0).normal(size=32).astype(np.float32)
    want = np.where(a > 0, a * 2, -a / 2)
    want[0:4] = want[4:8]
    run(walk.to_sdfg(simplify=True), A=a, n=32, N=32)
    np.testing.assert_array_equal(a, want)


def test_persistent_and_register_transients(run):
    sdfg = dace.SDFG("lifetimes")
    sdfg.add_array("A", [N], dace.float64)
    sdfg.add_transient("T", [1024], F32, lifetime=dtypes.AllocationLifetime.Persistent)
    sdfg.add_transient("U", [8], F32, storage=dtypes.StorageType.Register)
    first = sdfg.add_state()
    read, write = {"a": dace.Memlet("A[i]")}, {"c": dace.Memlet("T[i]")}
    first.add_mapped_tasklet("t", {"i": "0:Min(N, 1024)"}, read, "c = a * math.pi", write, external_edges=True)
    second = sdfg.add_state_after(first)
    read, write = {"a": dace.Memlet("T[4 * i]")}, {"c": dace.Memlet("U[i]")}
    second.add_mapped_tasklet("u", {"i": "0:8"}, read, "c = a + 1", write, external_edges=True)
    third = sdfg.add_state_after(second)
    read, write = {"a": dace.Memlet("U[i]")}, {"c": dace.Memlet("A[i]")}
    third.add_mapped_tasklet("v", {"i": "0:8"}, read, "c = a", write, external_edges=True)
    a = np.arange(100, dtype=np.float64)
    want = a.copy()
    want[:8] = np.float32(a[0:32:4] * np.pi) + np.float32(1)
    run(sdfg, A=a, N=100)
    np.testing.assert_allclose(a, want, rtol=1e-7)
