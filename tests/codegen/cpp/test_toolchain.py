"""Units are compiled once per content, in parallel, by a compiler that nobody could have planted."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dcir.cache import Cache
from dcir.codegen.cpp import toolchain as build
from dcir.codegen.cpp.compiler_process import compiler_runs
from dcir.codegen.cpp.toolchain import (
    Toolchain,
    Unit,
    compile_objects,
    default_flags,
    find_compiler,
    link_shared,
)
from dcir.errors import CompilerFailed, CompilerNotFound, OptionError
from dcir.isa import host_isa

EXPORT = '__attribute__((visibility("default")))'


def adder(name, amount):
    return Unit("", f'extern "C" {EXPORT} int {name}(int x) {{ return x + {amount}; }}\n')


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_compile_link_load(cache, toolchain):
    objects = compile_objects([adder("one", 1), adder("two", 2)], toolchain, default_flags(host_isa()), cache)
    library = ctypes.CDLL(link_shared(objects, "", toolchain, cache))
    assert (library.one(5), library.two(5)) == (6, 7)


def test_the_same_content_is_compiled_once(cache, toolchain):
    before = compiler_runs.compiles
    units = [adder("one", 1), adder("two", 2), adder("one", 1)]
    first = compile_objects(units, toolchain, default_flags(host_isa()), cache, jobs=2)
    assert first[0] == first[2] != first[1]
    assert compile_objects(units, toolchain, default_flags(host_isa()), cache) == first
    assert compiler_runs.compiles - before == 2
    compile_objects(units, toolchain, [*default_flags(host_isa()), "-DX"], cache)
    compile_objects([Unit("other", units[0].text)], toolchain, default_flags(host_isa()), cache)
    assert compiler_runs.compiles - before == 5


def test_a_second_process_runs_no_compiler(tmp_path):
    code = """
import sys
from pathlib import Path
from dcir.cache import Cache
from dcir.codegen.cpp.compiler_process import compiler_runs
from dcir.codegen.cpp.toolchain import *
from dcir.isa import host_isa
cache = Cache(Path(sys.argv[1]))
tools = Toolchain.find(cache)
link_shared(compile_objects([Unit("", "int x;")], tools, default_flags(host_isa()), cache), "", tools, cache)
print(compiler_runs.probes, compiler_runs.compiles, compiler_runs.links)
"""
    run = [sys.executable, "-c", code, str(tmp_path)]
    counts = [subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() for _ in range(2)]
    assert counts == ["1 1 1", "0 0 0"]


def test_a_locale_without_the_letters_of_a_path(tmp_path):
    code = """
import os, sys
from pathlib import Path
from dcir.cache import Cache
from dcir.codegen.cpp.toolchain import *
from dcir.isa import host_isa
assert sys.getfilesystemencoding() == "ascii"
cache = Cache(Path(sys.argv[1]))
tools = Toolchain.find(cache)
unit = Unit("", "int x;  // \\u00fc")
print(os.fsencode(link_shared(compile_objects([unit], tools, default_flags(host_isa()), cache), "", tools, cache)))
"""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = [sys.executable, "-c", code, str(tmp_path / "ü")]
    done = subprocess.run(run, capture_output=True, text=True, check=False, env={**os.environ, **plain})
    assert done.returncode == 0 and "\\xc3\\xbc" in done.stdout, done.stderr


def test_a_working_directory_that_is_gone(cache, toolchain, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert os.path.isabs(find_compiler())
    objects = compile_objects([adder("five", 5)], toolchain, default_flags(host_isa()), cache)
    assert ctypes.CDLL(link_shared(objects, "", toolchain, cache)).five(5) == 10


def test_a_compiler_that_makes_nothing(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("DCIR_CXX", str(program(tmp_path / "cc", "echo g++ 12")))
    with pytest.raises(CompilerFailed, match="cc reports no error, but made no file") as caught:
        compile_objects([adder("six", 6)], Toolchain.find(cache), (), cache)
    assert "DCIR_CXX" in caught.value.hint


def test_headers_are_part_of_the_address(cache, toolchain, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "HEADERS", tmp_path / "cpp")
    (tmp_path / "cpp").mkdir()
    paths = set()
    for value in (1, 2):
        (tmp_path / "cpp" / "value.h").write_text(f"#define VALUE {value}\n")
        paths |= set(compile_objects([Unit("", '#include "value.h"\nint x = VALUE;')], toolchain, ["-O0"], cache))
    assert len(paths) == 2


def test_a_refused_unit_is_shown_and_kept(cache, toolchain):
    with pytest.raises(CompilerFailed, match="could not compile") as caught:
        compile_objects([adder("one", 1), Unit("", "int x = nonsense;")], toolchain, default_flags(host_isa()), cache)
    error = caught.value
    assert "nonsense" in str(error)
    kept = Path(error.source)
    assert kept.parent == cache.folder / "failed"
    assert "int x = nonsense;" in kept.read_text()
    assert f"// {toolchain.path}" in kept.read_text()


def test_a_refused_unit_is_kept_in_the_debug_folder(cache, toolchain, tmp_path, monkeypatch):
    monkeypatch.setenv("DCIR_DEBUG_DIR", str(tmp_path / "debug"))
    with pytest.raises(CompilerFailed) as caught:
        compile_objects([Unit("", "int x = nonsense;")], toolchain, ["-O0"], cache)
    assert Path(caught.value.source).parent == tmp_path / "debug"


def test_a_missing_symbol_is_found_when_linking(cache, toolchain):
    objects = compile_objects([Unit("", "int missing(); int x() { return missing(); }")], toolchain, ["-fPIC"], cache)
    with pytest.raises(CompilerFailed, match="could not link"):
        link_shared(objects, "", toolchain, cache)


def test_names_are_arguments_not_shell_text(tmp_path, toolchain):
    strange = Cache(tmp_path / "a b'; \"$(touch planted)")
    objects = compile_objects([adder("one", 1)], toolchain, default_flags(host_isa()), strange)
    assert ctypes.CDLL(link_shared(objects, "", toolchain, strange)).one(1) == 2


def test_progress_counts_to_the_end(cache, toolchain):
    seen = []
    units = [adder(f"f{number}", number) for number in range(4)]
    compile_objects(units, toolchain, ["-O0"], cache, progress=lambda done, all_: seen.append((done, all_)))
    assert sorted(seen) == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_working_directory_offers_no_compiler(tmp_path, monkeypatch):
    program(tmp_path / "c++", "exit 1")
    monkeypatch.chdir(tmp_path)
    for path in ("", ".", str(tmp_path)):
        monkeypatch.setenv("PATH", f"{path}{os.pathsep}/usr/bin")
        assert find_compiler().startswith("/usr/bin/")


def test_no_compiler_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DCIR_CXX", raising=False)
    with pytest.raises(CompilerNotFound) as caught:
        find_compiler()
    assert "apt-get install g++" in caught.value.hint


@pytest.mark.parametrize("setting", ["./g++", "tools/g++", "no-such-compiler", "/no/such/compiler", "/usr"])
def test_a_setting_that_names_no_compiler(setting, monkeypatch):
    monkeypatch.setenv("DCIR_CXX", setting)
    with pytest.raises(CompilerNotFound, match="DCIR_CXX"):
        find_compiler()


def test_a_setting_by_name_or_path(tmp_path, monkeypatch):
    path = program(tmp_path / "my-c++", "exit 1")
    monkeypatch.setenv("DCIR_CXX", str(path))
    assert find_compiler() == str(path)
    monkeypatch.setenv("DCIR_CXX", "my-c++")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() == str(path)


def test_the_compiler_gets_a_clean_environment_and_a_private_folder(tmp_path, cache, monkeypatch):
    path = program(tmp_path / "spy", f"pwd > {tmp_path}/log; env >> {tmp_path}/log; echo spy 1.0")
    monkeypatch.setenv("DCIR_CXX", str(path))
    monkeypatch.setenv("CPATH", "/planted")
    monkeypatch.setenv("PATH", f".:relative:{os.environ['PATH']}")
    assert Toolchain.find(cache) == Toolchain(str(path), "spy 1.0")
    folder, *settings = (tmp_path / "log").read_text().splitlines()
    assert folder != os.getcwd()
    assert not any(line.startswith("CPATH=") for line in settings)
    assert "LC_ALL=C" in settings
    searched = next(line for line in settings if line.startswith("PATH="))[5:].split(":")
    assert all(os.path.isabs(entry) for entry in searched)


def test_a_new_compiler_at_the_same_path_is_noticed(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("DCIR_CXX", str(program(tmp_path / "cc", "echo one")))
    first = Toolchain.find(cache)
    (tmp_path / "cc").unlink()
    program(tmp_path / "cc", "echo three")
    build._describe.cache_clear()
    second = Toolchain.find(cache)
    assert (first.version, second.version) == ("one", "three")
    assert first.identity != second.identity


@pytest.mark.parametrize("version", ["Debian clang version 16.0.6", "Apple clang version 15.0.0 (clang-1500.3.9.4)"])
def test_clang_is_refused_by_name(version, tmp_path, cache, monkeypatch):
    monkeypatch.setenv("DCIR_CXX", str(program(tmp_path / "c++", f"echo '{version}'")))
    with pytest.raises(CompilerNotFound, match="needs GCC") as caught:
        Toolchain.find(cache)
    assert version in caught.value.where and "apt-get install g++" in caught.value.hint


def test_a_killed_compiler_is_reported(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("DCIR_CXX", str(program(tmp_path / "cc", "kill -9 $$")))
    with pytest.raises(CompilerFailed, match="signal 9"):
        Toolchain.find(cache)


def test_sanitizers(monkeypatch):
    monkeypatch.setenv("DCIR_SANITIZE", "address,undefined")
    assert "-fsanitize=address,undefined" in default_flags(host_isa())
    monkeypatch.setenv("DCIR_SANITIZE", "address -x")
    with pytest.raises(OptionError, match="DCIR_SANITIZE"):
        default_flags(host_isa())


def test_the_library_shares_torch_s_openmp(tmp_path):
    code = """
import sys
from pathlib import Path
import ctypes, torch
from dcir.cache import Cache
from dcir.codegen.cpp.compiler_process import compiler_runs
from dcir.codegen.cpp.toolchain import *
from dcir.isa import host_isa
cache = Cache(Path(sys.argv[1]))
tools = Toolchain.find(cache)
text = '#include <omp.h>\\nextern "C" __attribute__((visibility("default"))) int f() { return omp_get_max_threads(); }'
path = link_shared(compile_objects([Unit("", text)], tools, default_flags(host_isa()), cache), "", tools, cache)
library = ctypes.CDLL(path)
torch.set_num_threads(1)
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
print(len(loaded), library.f())
"""
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]
