"""The digest of what decides generated code covers every file and library that does, and a repair reaches a warm cache."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dcir.identity import LIBRARIES, PACKAGE, digest_of, foreign_identity, package_files, source_identity

VERSIONS = dict.fromkeys(LIBRARIES, "1.0")
# One of each kind: what prints text, what is compiled with it, what chooses, what lowers and rewrites, what runs it.
EDITED = (
    "codegen/compile.py", "codegen/cpp/tiles/gemm/packed.py", "codegen/cpp/include/prelude_math.h", "codegen/cpp/include/dace_shim.h",
    "ops/library/winograd.py", "cost/matrix_unit.py", "isa.py", "cost/machine.py", "transforms/tier2_fusion/fuse_producers.py",
    "frontends/torch/importer.py", "frontends/onnx/ops/math.py", "ir/dace/expand.py", "runtime/program.py", "driver/compile.py",
)  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The package as a user has it, its stages inside."""
    folder = tmp_path_factory.mktemp("package") / "dcir"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_a_copy_has_the_same_digest(copy):
    versions = {"dace": "2", "torch": "3"}
    assert digest_of(copy, versions) == digest_of(PACKAGE, versions) != digest_of(PACKAGE, versions | {"dace": "2.1"})
    assert source_identity() == source_identity()


@pytest.mark.parametrize("name", EDITED)
def test_every_kind_of_file_counts(copy, name):
    before, text = digest_of(copy, VERSIONS), (copy / name).read_text()
    (copy / name).write_text(text + "\n")
    after = digest_of(copy, VERSIONS)
    (copy / name).write_text(text)
    assert after != before == digest_of(copy, VERSIONS)


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_counts(library):
    assert digest_of(PACKAGE / "cli", VERSIONS) != digest_of(PACKAGE / "cli", VERSIONS | {library: "1.1"})


def test_a_new_a_renamed_and_a_removed_file_count(copy):
    digests = [digest_of(copy, VERSIONS)]
    (copy / "codegen" / "table.json").write_text("{}")
    digests.append(digest_of(copy, VERSIONS))
    (copy / "codegen" / "table.json").rename(copy / "codegen" / "other.json")
    digests.append(digest_of(copy, VERSIONS))
    (copy / "codegen" / "other.json").unlink()
    assert len(set(digests)) == 3 and digest_of(copy, VERSIONS) == digests[0]


def test_no_file_of_the_package_is_left_out():
    root = PACKAGE.parent
    inside = [root / "dcir", *(root / stage for stage in ("frontends", "transforms", "codegen"))]
    walked = [(Path(folder), names) for top in inside for folder, _, names in os.walk(top)]
    files = {(folder / name).resolve() for folder, names in walked for name in names if folder.name != "__pycache__"}
    assert files == {path.resolve() for path in package_files().values()} and len(files) > 300


RUN = """
import torch, dcir
x = torch.linspace(-2, 2, 64)
with torch.no_grad():
    print(float((dcir.optimize(torch.exp)(x) / x.exp()).mean()))
"""


def test_a_repair_in_a_header_reaches_a_warm_cache(copy, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(copy.parent), "DCIR_CACHE_DIR": str(tmp_path)}

    def ratio():
        done = subprocess.run(
            [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
        )
        return float(done.stdout)

    header = copy / "codegen" / "cpp" / "include" / "prelude_math.h"
    text = header.read_text()
    assert ratio() == pytest.approx(1)
    try:
        changed = text.replace(
            "D_INLINE float d_exp(float x) {", "D_INLINE float d_exp(float x) {\n    x += 0.6931472f;", 1
        )
        assert changed != text
        header.write_text(changed)
        assert ratio() == pytest.approx(2)
    finally:
        header.write_text(text)


def test_code_of_others_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    source = "class Spec:\n    def program(self):\n        return {}\ndef emit(spec, machine):\n    return {}\n"
    digests = set()
    for number in (1, 2):
        (tmp_path / "users_kernels.py").write_text(source.replace("{}", str(number)))
        sys.modules.pop("users_kernels", None)
        module = __import__("users_kernels")
        digests |= {foreign_identity([module.Spec]), foreign_identity([module.emit])}
    assert len(digests) == 2 and "" not in digests  # one file, twice
    assert foreign_identity([package_files, source_identity]) == ""


def test_code_that_was_typed_in_counts():
    def typed(body):
        scope = {"__name__": "typed_in"}
        exec(f"class Spec:\n    def program(self):\n        return {body}", scope)
        return scope["Spec"]

    assert foreign_identity([typed(1)]) == foreign_identity([typed(1)]) != foreign_identity([typed(2)])
    assert foreign_identity([type("Bare", (), {"__module__": "typed_in"})]) != foreign_identity(
        [type("Bare", (), {"__module__": "typed_in"})]
    )
