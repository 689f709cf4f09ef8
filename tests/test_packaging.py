"""The package list equals the tree, and a wheel holds nothing but dcir."""

import configparser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("frontends", "transforms", "codegen")


def listed():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config["options"]["packages"].split()


def test_the_package_list_equals_the_tree():
    files = [path for top in ("dcir", *STAGES) for path in (ROOT / top).rglob("*.py")]
    links = {ROOT / "dcir" / stage for stage in STAGES}
    folders = {path.parent.relative_to(ROOT).parts for path in files if not links & set(path.parents)}
    names = {".".join(parts if parts[0] == "dcir" else ("dcir", *parts)) for parts in folders}
    assert sorted(listed()) == sorted(names)
    assert len(listed()) == len(set(listed()))


def test_every_package_has_an_init_file():
    assert [name for name in listed() if not (ROOT / name.replace(".", "/") / "__init__.py").is_file()] == []


@pytest.mark.parametrize("stage", STAGES)
def test_the_stage_folders_are_linked_for_the_tools(stage):
    link = ROOT / "dcir" / stage
    assert link.is_symlink()
    assert link.resolve() == ROOT / stage


def test_a_wheel_holds_nothing_but_dcir(monkeypatch, tmp_path):
    setuptools = pytest.importorskip("setuptools")
    monkeypatch.chdir(ROOT)
    distribution = setuptools.dist.Distribution({"script_name": "setup.py"})
    distribution.parse_config_files()
    command = distribution.get_command_obj("build_py")
    command.build_lib = str(tmp_path)
    command.ensure_finalized()
    outputs = [Path(path).relative_to(tmp_path) for path in command.get_outputs(include_bytecode=False)]
    assert {path.parts[0] for path in outputs} == {"dcir"}
    assert Path("dcir/codegen/cpp/toolchain.py") in outputs
    sources = {
        path.relative_to(ROOT / "codegen") for ext in ("h", "inc") for path in (ROOT / "codegen").rglob(f"*.{ext}")
    }
    assert len({path.suffix for path in sources}) == 2
    assert sources <= {path.relative_to("dcir/codegen") for path in outputs if path.parts[1] == "codegen"}
    assert Path("dcir/ir/dace/tasklets.h") in outputs
