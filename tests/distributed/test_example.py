"""The example of data-parallel training runs under torchrun: equal gradients, and equal parameters after whole compiled steps."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ddp.py"


@pytest.mark.parametrize(("options", "compared"), [([], "gradients"), (["--step"], "parameters")])
def test_the_example(options: list[str], compared: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(EXAMPLE), *options]
    done = subprocess.run(
        [*command, "--network", "resnet20", "--batch", "4", "--seconds", "0"], capture_output=True, text=True, check=False, timeout=400
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    difference = re.search(rf"{compared} differ by (\S+)", done.stdout)
    assert difference is not None, done.stdout
    assert float(difference[1]) < 1e-3
    assert "buckets sent at" in done.stdout
