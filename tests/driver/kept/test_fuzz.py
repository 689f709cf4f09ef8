"""Damaged files of kept traces are not used, or give the right numbers; whoever calls hears nothing of it."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.in_turn(3)


@pytest.mark.parametrize("kind", ["traces", "graphs"])
def test_damaged_files_are_traced_again_or_right(kind: str) -> None:
    command = [sys.executable, "-m", "tests.driver.kept.fuzz", "--seed", "60", "--cases", "21"]
    command += ["--graphs"] * (kind == "graphs")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    # Rows in another order are as good, and so is what is left whole of a file; of a file that nobody has sealed nothing is.
    assert "reordered" in found["used"] and not found["used"].keys() & {"written_to", "truncated", "mixed"}
    assert found["refused"].keys() >= {"written_to", "flips", "truncated", "mixed", "parts"}
    assert found["traced"] >= 1
    assert sum(found["read"].values()) == 84
