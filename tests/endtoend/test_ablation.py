"""The table of tiers runs, and tells what the compiler tells: less traffic, and results and gradients near those of float64."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.in_turn(6)

ABLATION = Path(__file__).parents[2] / "examples" / "ablation.py"


def run(*arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ABLATION), "--small", "--seconds", "0.05", "--threads", "1", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_json_tells_every_level_of_both_networks():
    code, out, err = run("--batch", "2", "--json")
    assert code == 0, err
    data = json.loads(out)
    assert data["threads"] == 1 and data["batch"] == 2 and list(data["networks"]) == ["resnet50", "bert"]
    for network in data["networks"].values():
        levels = network["levels"]
        assert [level["level"] for level in levels] == [0, 1, 2, 3, 4] and network["eager_ms"] > 0
        assert all(level["median_ms"] >= level["least_ms"] > 0 and level["error"] < 1e-5 for level in levels)
        assert all(level["kernels"] > 0 for level in levels)
        first, *_, last = levels
        assert last["bytes_moved"] < first["bytes_moved"] and last["calls"] < first["calls"]
        assert last["scratch_bytes"] < first["scratch_bytes"]


def test_training_counts_both_directions_and_all_gradients():
    code, out, err = run("--training", "--batch", "2", "--json")
    assert code == 0, err
    data = json.loads(out)
    assert data["training"] and list(data["networks"]) == ["efficientnet_b0", "bert"]
    for network in data["networks"].values():
        levels = network["levels"]
        assert [level["level"] for level in levels] == [0, 1, 2, 3, 4]
        assert 0 < network["eager_error"] < 1e-5
        assert all(0 < level["error"] < 3 * network["eager_error"] for level in levels)
        assert all(level["median_ms"] >= level["least_ms"] > 0 and level["saved_bytes"] > 0 for level in levels)
        first, *_, last = levels
        assert last["bytes_moved"] < first["bytes_moved"] and last["calls"] < first["calls"]
        assert last["scratch_bytes"] < first["scratch_bytes"]


def test_text_is_a_table():
    code, out, err = run("--networks", "resnet50")
    assert code == 0, err
    lines = out.strip().splitlines()
    assert lines[0].startswith("small CNN: eager PyTorch")
    assert [line.split()[0] for line in lines[2:]] == ["-O0", "-O1", "-O2", "-O3", "-O4"]


def test_an_unknown_network_is_named():
    code, _, err = run("--networks", "alexnet")
    assert code == 2 and "alexnet" in err
