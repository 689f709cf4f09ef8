"""Training with dcir learns what eager PyTorch learns: the short form of examples/convergence.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.in_turn(2)
CONVERGENCE = Path(__file__).parents[2] / "examples" / "convergence.py"


def run(*arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(CONVERGENCE), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_both_networks_learn_what_eager_learns():
    code, out, err = run("--steps", "40", "--seeds", "2", "--json")
    assert code == 0, out + err
    data = json.loads(out)
    assert list(data) == ["cnn", "transformer"]
    for network in data.values():
        ways = network["ways"]
        assert list(ways) == ["eager", "optimize", "train_step"]
        for way in ways.values():
            assert len(way["losses"]) == 2 and max(way["losses"]) < 0.85 * network["untrained"]
        # Dropout draws what eager's draws, so a seed's training differs by rounding alone.
        for mine, eagers in zip(ways["optimize"]["losses"], ways["eager"]["losses"], strict=True):
            assert mine != eagers and abs(mine - eagers) < 0.01 * network["untrained"]
