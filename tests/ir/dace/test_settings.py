"""A file with DaCe's settings in the working directory decides nothing; the user's own does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_CODE = """
import sys, threading
import dcir.ir.types
assert "dace" not in sys.modules
import dcir.ir.network, dace
seen = []
def look():
    seen.append((dace.Config.get("compiler", "cpu", "executable"), dace.Config.get("compiler", "build_type")))
look()
thread = threading.Thread(target=look)
thread.start(); thread.join()
print(*(part for both in seen for part in both), sep="|")
"""


def _said(folder: Path, home: Path, code: str = _CODE, **environment: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"HOME": str(home)} | environment,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.strip().split("|")


def test_only_the_user_s_own_settings_count(tmp_path: Path) -> None:
    """In every thread; nor is the user's file written, as DaCe does for a local file of the old form."""
    folder, home = tmp_path / "models", tmp_path / "home"
    folder.mkdir(), home.mkdir()
    plain = _said(folder, home)
    assert len(plain) == 4
    planted = "execution: {}\ncompiler:\n  build_type: Planted\n  cpu:\n    executable: /planted/g++\n"
    (folder / ".dace.conf").write_text(planted)
    assert _said(folder, home) == plain
    assert not list(home.glob(".dace*"))
    (home / ".dace.conf").write_text("compiler:\n  build_type: Debug\n")
    assert _said(folder, home) == [plain[0], "Debug", plain[2], "Debug"]
    (home / "other").write_text("compiler:\n  build_type: MinSizeRel\n")
    assert _said(folder, home, DACE_CONFIG=str(home / "other"))[1::2] == ["MinSizeRel"] * 2


def test_a_program_that_imports_dace_first_keeps_its_settings(tmp_path: Path) -> None:
    """It chose them itself."""
    (tmp_path / ".dace.conf").write_text("compiler:\n  build_type: Debug\n")
    code = "import dace, dcir.ir.network\nprint(dace.Config.get('compiler', 'build_type'))"
    assert _said(tmp_path, tmp_path / "home", code) == ["Debug"]


def test_what_dace_is_warned_of_stops_nobody(tmp_path: Path) -> None:
    """A program that takes warnings for errors can use dcir."""
    code = "import warnings; warnings.simplefilter('error'); import dcir.ir.network; print('there')"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stdout == "there\n", run.stderr[-2000:]
