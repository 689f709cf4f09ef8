"""The example package: installed beside dcir by pip, it is found, and its own tests pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "examples" / "extension"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the package."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--target",
    ]
    subprocess.run([*command, str(folder), str(PACKAGE)], check=True)
    path = os.pathsep.join([str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def test_its_own_tests_pass(installed: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, str(PACKAGE / "test_extension.py")], env=installed, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "[100%]" in done.stdout


def test_dcir_says_what_is_installed(installed: dict[str, str], tmp_path: Path) -> None:
    code = "import sys; from dcir.cli.main import main; sys.argv = ['dcir', 'passes']; main()"
    done = subprocess.run([sys.executable, "-c", code], env=installed, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = [row for row in done.stdout.splitlines() if "read-before-cast" in row]
    assert "dcir-extension-example 0.1.0" in line
