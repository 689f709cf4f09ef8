"""Every threat of a compiler that makes machine code from model files has its test; those of a whole process are here."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parents[2]
ONNX = "tests/frontends/onnx/test_security.py"
BUILD = "tests/codegen/cpp/test_toolchain.py"
CACHE = "tests/test_cache.py"
HERE = "tests/robustness/test_threats.py"

THREATS: dict[str, tuple[str, ...]] = {
    "T1 code in symbolic sizes": (
        f"{ONNX}::test_code_in_a_symbolic_dimension_is_refused",
        f"{ONNX}::test_symbolic_dimensions_are_never_evaluated",
        "tests/driver/ahead/test_sized_artefact.py::test_a_broken_manifest_is_refused",
    ),
    "T2 code in names": (
        f"{ONNX}::test_names_are_never_identifiers",
        f"{ONNX}::test_names_that_no_exporter_writes_are_refused",
    ),
    "T3 names that collide when cleaned": (f"{ONNX}::test_names_that_collide_when_cleaned_stay_apart",),
    "T4 shell text in paths and flags": (f"{BUILD}::test_names_are_arguments_not_shell_text",),
    "T5 external data elsewhere": (
        f"{ONNX}::test_external_data_elsewhere_is_refused",
        f"{ONNX}::test_external_data_through_links_is_refused",
        f"{ONNX}::test_external_data_of_an_attribute_is_checked_too",
    ),
    "T6 external data with wrong numbers": (f"{ONNX}::test_external_data_with_wrong_numbers_is_refused",),
    "T7 malformed tensors": (f"{ONNX}::test_inconsistent_tensors", f"{ONNX}::test_sparse_tensors_are_checked"),
    "T8 malformed graphs": (
        f"{ONNX}::test_bad_graphs",
        f"{ONNX}::test_functions_that_explode_or_recur_are_refused",
        f"{ONNX}::test_deeply_nested_subgraphs_are_refused",
    ),
    "T9 bombs": (
        f"{ONNX}::test_too_many_nodes",
        f"{ONNX}::test_functions_that_explode_or_recur_are_refused",
        f"{ONNX}::test_huge_fills_fail_without_memory",
        f"{ONNX}::test_towers_of_powers_do_not_hang",
    ),
    "T10 integer division that traps": (
        f"{ONNX}::test_the_smallest_integer_by_minus_one_does_not_trap",
        "tests/codegen/cpp/test_scalar_ops.py::test_integer_guards",
    ),
    "T11 indices out of range": (
        f"{ONNX}::test_indices_out_of_range",
        "tests/robustness/test_sanitizers.py::test_clean",
    ),
    "T12 the code cache": (
        f"{CACHE}::test_a_base_that_others_can_write_is_refused",
        f"{CACHE}::test_a_cache_that_others_could_write_is_emptied_and_made_private",
        f"{CACHE}::test_a_damaged_file_is_rebuilt",
        f"{CACHE}::test_a_link_or_a_file_that_others_may_write_does_not_count",
        f"{CACHE}::test_a_kill_in_the_middle_of_a_build_breaks_nothing",
        "tests/robustness/test_processes.py::test_eight_processes_build_every_kernel_once",
    ),
    "T13 pickles": (
        "tests/driver/ahead/test_artefact.py::test_weights_are_never_unpickled",
        "tests/cli/test_cli.py::test_run_never_unpickles",
    ),
    "T14 the network": (f"{HERE}::test_no_module_knows_the_network", f"{HERE}::test_nothing_is_fetched"),
    "T15 planted files": (
        f"{BUILD}::test_the_working_directory_offers_no_compiler",
        "tests/ir/dace/test_settings.py::test_only_the_user_s_own_settings_count",
        f"{HERE}::test_planted_files_are_not_used",
    ),
}


@pytest.mark.parametrize("threat", THREATS)
def test_it_has_tests(threat: str) -> None:
    """By name, so that none is renamed or dropped unseen."""
    for test in THREATS[threat]:
        path, _, name = test.partition("::")
        tree = ast.parse((ROOT / path).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


_NETWORK = {"socket", "ssl", "urllib", "http", "ftplib", "smtplib", "requests", "httpx", "aiohttp", "huggingface_hub"}

_LISTENS = ROOT / "dcir" / "view" / "server.py"
"""The page's server: it opens no connection, and is reached from this machine alone (``tests/view/test_server.py``)."""


def test_no_module_knows_the_network() -> None:
    """Nor a hub of models."""
    for path in (p for top in ("dcir", "frontends", "transforms", "codegen") for p in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [node.attr] if isinstance(node, ast.Attribute) else []
            parts = {part for name in names for part in name.split(".")}
            assert not parts & {"hub", "load_state_dict_from_url"}, path
            if isinstance(node, ast.Import | ast.ImportFrom):
                found = {name.split(".")[0] for name in names} & _NETWORK
                assert found <= ({"socket"} if path == _LISTENS else set()), path
            if isinstance(node, ast.Attribute) and path == _LISTENS:
                assert node.attr not in ("connect", "connect_ex", "create_connection", "getaddrinfo"), path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """softmax(x @ w)."""
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((5, 3), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Softmax", ["m"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    path = tmp_path / "model.onnx"
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


_VERBS = """
words, codes = sys.argv[1:], []
while words:
    verb, words = (words[: words.index(";")], words[words.index(";") + 1 :]) if ";" in words else (words, [])
    try:
        main(verb)
    except SystemExit as ended:
        codes.append(ended.code)
print("codes", *codes)
"""


def _main(folder: Path, before: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program ``dcir``, for verbs with ``;`` between them, in a process that, like the installed one, does not import from its folder.

    The last line it prints holds their exit codes.
    """
    code = f"{before}\nimport sys\nfrom dcir.cli.main import main\n{_VERBS}"
    return subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", code, *map(str, arguments)],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip


_LISTEN = """
import sys
def hear(event, arguments):
    if event.startswith(("socket.connect", "socket.getaddrinfo", "socket.gethostby", "urllib", "http", "ftplib")):
        raise RuntimeError(f"the network is asked: {event} {arguments}")
sys.addaudithook(hear)
"""


def test_nothing_is_fetched(model: Path, tmp_path: Path) -> None:
    """A model is compiled and checked without a call to the network; a file elsewhere is refused, not fetched."""
    heard = subprocess.run(
        [sys.executable, "-c", _LISTEN + "import socket; socket.create_connection(('127.0.0.1', 9))"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "the network is asked" in heard.stderr  # else the rest could not fail
    proto = onnx.load(model)
    (weight,) = proto.graph.initializer
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="https://example.com/weights.bin")
    onnx.save(proto, tmp_path / "remote.onnx")
    compiled, remote = tmp_path / "model.dcir", tmp_path / "remote.onnx"
    verbs = (
        "compile",
        model,
        "-o",
        compiled,
        ";",
        "check",
        model,
        ";",
        "compile",
        remote,
        "-o",
        tmp_path / "remote.dcir",
    )
    done = _main(tmp_path, _LISTEN, *verbs)
    assert done.stdout.splitlines()[-1:] == ["codes 0 0 2"] and "network" not in done.stderr, done.stderr[-2000:]
    assert compiled.is_file() and not (tmp_path / "remote.dcir").exists()


def test_planted_files_are_not_used(model: Path, tmp_path: Path) -> None:
    """Compilers, linkers, headers, modules, libraries and settings that lie where the process was started."""
    folder, marker = tmp_path / "planted", tmp_path / "marker"
    folder.mkdir()
    for name in ("g++", "c++", "gcc", "cc", "clang++", "as", "ld", "collect2", "cmake", "sh", "lscpu"):
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {marker}\nexit 1\n")
        (folder / name).chmod(0o755)
    for name in ("omp.h", "prelude.h", "prelude_math.h", "dace_shim.h", "stdc-predef.h", "stddef.h"):
        (folder / name).write_text("#error planted\n")
    for name in ("kernel", "dcir", "dace", "torch", "onnx", "numpy", "yaml", "sitecustomize", "click"):
        (folder / f"{name}.py").write_text(
            f"open({str(marker)!r}, 'a').write({name!r})\nraise ImportError('planted')\n"
        )
    for name in ("libgomp.so.1", "libstdc++.so.6", "libm.so.6"):
        (folder / name).write_bytes(b"planted")
    (folder / ".dace.conf").write_text("execution: {}\ncompiler:\n  cpu:\n    executable: ./g++\n")
    environment = {
        "PATH": f".:{os.environ['PATH']}",
        "DCIR_CACHE_DIR": str(tmp_path / "cache"),  # an empty one, so that the compiler does run
        "HOME": str(tmp_path),
    }
    result = tmp_path / "model.dcir"
    done = _main(folder, "", "compile", model, "-o", result, **environment)
    assert done.stdout.splitlines()[-1:] == ["codes 0"] and result.is_file(), done.stderr[-2000:]
    assert not marker.exists(), marker.read_text()
    assert any((tmp_path / "cache").rglob("*.so"))
    assert not (tmp_path / ".dace.conf").exists()
