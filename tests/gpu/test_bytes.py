"""The table of predicted bytes, for a file of networks as a benchmark has it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.gpu import bytes as table

FILE = """
import torch
import torch.nn.functional as F
from torch import nn

class Small(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))

REGISTRY = {
    "small": (
        Small, lambda b, g: (torch.randn(b, 3, 8, 8, generator=g),), lambda b, g: torch.randint(0, 10, (b,), generator=g),
        lambda out, target: F.cross_entropy(out, target), "sgd", (1,), 8, True,
    ),
    "other_decode": (lambda: nn.Linear(4, 4), lambda b, g: (torch.randn(b, 4, generator=g),), None, None, "sgd", (1,), 0, False),
}
"""


def test_every_network_mode_and_type_has_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models.py").write_text(FILE)
    words = ["--models", str(tmp_path / "models.py"), "--json", str(tmp_path / "rows"), "--largest", "2"]
    monkeypatch.setattr(sys, "argv", ["bytes", *words])
    monkeypatch.setenv("DCIR_CUDA", "twin")
    table.main()
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert [(r["network"], r["mode"], r["type"]) for r in rows] == [
        ("small", "train", "float32"), ("small", "train", "bfloat16"), ("small", "infer", "float32"), ("small", "infer", "bfloat16"),
        ("other_decode", "infer", "float32"), ("other_decode", "infer", "bfloat16"),
    ]  # fmt: skip
    assert all(r["moved"] >= r["floor"] > 0 for r in rows)
    assert capsys.readouterr().out.count("| small |") == 4
