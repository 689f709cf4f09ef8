"""Small units are compiled together and are found one by one."""

import ctypes

import pytest

from dcir.codegen.cpp.bundles import bundle_text, bundles
from dcir.codegen.cpp.compiler_process import compiler_runs
from dcir.codegen.cpp.toolchain import Unit, compile_objects, default_flags, link_shared
from dcir.errors import CompilerFailed
from dcir.isa import host_isa

SHARED = "#define ONE 1\n"
EXPORT = 'extern "C" __attribute__((visibility("default")))'


def unit(name, amount, shared=SHARED):
    """A hidden function around a helper whose name every unit has."""
    text = f'static int helper(int x) {{ return x + {amount} * ONE; }}\nextern "C" int {name}(int x) {{ return helper(x); }}\n'
    return Unit("", text, shared)


def caller(*names):
    lines = [
        f'extern "C" int {name}(int);\n{EXPORT} int call_{name}(int x) {{ return {name}(x); }}\n' for name in names
    ]
    return Unit("", "".join(lines))


def build(units, toolchain, cache, jobs=None):
    objects = compile_objects(units, toolchain, default_flags(host_isa()), cache, jobs)
    return objects, link_shared(objects, "", toolchain, cache)


def test_units_that_share_a_header_are_one_compilation(cache, toolchain):
    before = compiler_runs.compiles
    units = [caller("a", "b", "c"), *(unit(name, i) for i, name in enumerate("abc"))]
    objects, path = build(units, toolchain, cache)
    assert compiler_runs.compiles - before == 2
    assert len(set(objects)) == 4 and len({p.stat().st_ino for p in objects}) == 2
    library = ctypes.CDLL(path)
    assert [library.call_a(5), library.call_b(5), library.call_c(5)] == [5, 6, 7]
    build(units, toolchain, cache)
    assert compiler_runs.compiles - before == 2


def test_other_headers_are_other_compilations(cache, toolchain):
    before = compiler_runs.compiles
    units = [caller("a", "b"), unit("a", 1), unit("b", 1, "#define ONE 10\n")]
    library = ctypes.CDLL(build(units, toolchain, cache)[1])
    assert (library.call_a(0), library.call_b(0)) == (1, 10)
    assert compiler_runs.compiles - before == 3


def test_another_network_finds_a_unit_and_carries_no_other(cache, toolchain):
    build([caller("first_unit", "second_unit"), unit("first_unit", 1), unit("second_unit", 2)], toolchain, cache)
    before = compiler_runs.compiles
    path = build([caller("second_unit"), unit("second_unit", 2)], toolchain, cache)[1]
    assert compiler_runs.compiles - before == 1  # its own caller
    assert ctypes.CDLL(path).call_second_unit(0) == 2
    symbols = path.read_bytes()
    assert b"second_unit" in symbols and b"first_unit" not in symbols


def test_a_unit_in_two_bundles_is_linked_once(cache, toolchain):
    first = compile_objects([unit("a", 1), unit("b", 2)], toolchain, default_flags(host_isa()), cache)
    first[0].unlink()
    units = [caller("a", "b", "c"), unit("a", 1), unit("b", 2), unit("c", 3)]
    before = compiler_runs.compiles
    library = ctypes.CDLL(build(units, toolchain, cache)[1])
    assert compiler_runs.compiles - before == 2  # the caller, and the bundle of a and c: b is still there
    assert (library.call_a(0), library.call_b(0), library.call_c(0)) == (1, 2, 3)


def test_a_file_system_without_links(cache, toolchain, monkeypatch):
    def refuse(*_):
        raise OSError("no links")

    monkeypatch.setattr("os.link", refuse)
    library = ctypes.CDLL(build([caller("a", "b"), unit("a", 1), unit("b", 2)], toolchain, cache)[1])
    assert (library.call_a(0), library.call_b(0)) == (1, 2)


def test_the_source_of_a_refused_bundle_is_kept(cache, toolchain):
    with pytest.raises(CompilerFailed, match="nonsense") as caught:
        compile_objects(
            [unit("a", 1), Unit("", "int x = nonsense;", SHARED)], toolchain, default_flags(host_isa()), cache
        )
    with open(caught.value.source) as file:
        assert file.read().startswith(SHARED)
    assert compile_objects([unit("a", 1)], toolchain, default_flags(host_isa()), cache)[0].exists()


def test_bundles_are_cut_by_size_and_workers():
    def cut(sizes, workers, shared="h"):
        return bundles({f"{i:03}": (shared, size) for i, size in enumerate(sizes)}, workers)

    assert cut([100] * 50, 16) == [tuple(f"{i:03}" for i in range(50))]  # not worth a second compiler
    assert len(cut([1000] * 100, 2)) == 2
    assert len(cut([1000] * 100, 64)) == 5
    assert len(cut([10_000] * 100, 2)) == 7  # 150,000 characters at most
    assert cut([900_000], 4) == [("000",)]
    assert cut([100] * 3, 2, shared="") == [("000",), ("001",), ("002",)]
    assert bundles({}, 4) == []
    assert cut([70_000, 10_000, 10_000, 10_000, 40_000], 2) == [("000",), ("001", "002", "003", "004")]


def test_the_text_of_one_unit_needs_no_namespace():
    assert bundle_text("h\n", ["x"]) == "h\nx"
    assert bundle_text("h\n", ["x", "y"]).count("namespace") == 2
