"""Models that the command line names: what is advised of them is in the session, as the command line says it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dcir.driver.measure.advise import advise
from dcir.driver.view.files import view_files

pytestmark = pytest.mark.in_turn(3)

SOURCE = f"{Path(__file__).parents[2]}/view/models.py:mlp"


def test_advice_of_a_session_has_gains_evidence_and_a_line_for_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    found = []
    monkeypatch.setattr(
        "dcir.driver.view.files.measured_advice", lambda *a, **k: found.append(advise(*a, **k)) or found[-1]
    )
    record = view_files([SOURCE], seconds=0.05, advise=True).sessions[0]
    (given,) = found
    told = record["advice"]
    assert [(p["what"], p["gain"], p["evidence"], p["python"]) for p in told["pieces"]] == [
        (p.what, p.gain, p.evidence, p.python) for p in given.pieces
    ]
    assert told["pieces"] and all(p["gain"] > 1 and p["evidence"] and p["python"] for p in told["pieces"])
    assert told["advised"]["gain_over_eager"] == given.headline and told["now"]["items_per_second"] > 0
    assert record["roofline"]["paths"] and len(record["roofline"]["runs"]) > 1
