"""The example of data-parallel training runs under torchrun, with one graph and equal gradients."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ddp.py"


def test_the_example() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(EXAMPLE)]
    done = subprocess.run(
        [*command, "--network", "resnet20", "--batch", "4", "--seconds", "0"], capture_output=True, text=True, check=False, timeout=400
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    difference = re.search(r"gradients differ by (\S+)", done.stdout)
    assert difference is not None, done.stdout
    assert float(difference[1]) < 1e-3
    assert "buckets sent at" in done.stdout
