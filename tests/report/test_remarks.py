"""Remarks as a table and as JSON, and which of them answer a question."""

from __future__ import annotations

import json
from types import SimpleNamespace as Record

import pytest

from dcir.errors import OptionError
from dcir.ir.remarks import NamedOperator, Remark
from dcir.report.remarks import Remarks

CONV = NamedOperator("forward_3", "convolution 8->16", "Block.first (model.py:12)")
RELU = NamedOperator("program_7", "loops 3x16: max", "Block (model.py:13)")
FUSED = NamedOperator("forward_20", "convolution 8->16, then max", "Block.first (model.py:12)")
HOSTILE = NamedOperator("program_9", "loops 4: exp", "[bold]<img src=x onerror=alert(1)>[/bold]")


def remarks() -> Remarks:
    site = "fuse-epilogues@forward_3+program_7"
    passed = Remark(
        "passed", "fuse-epilogues", 9, site, (CONV, RELU), (FUSED,), figures={"bytes": 4096, "bytes_saved": 2.5e6}
    )
    again = Remark(
        "missed", "fuse-producers", 13, "fuse-producers@program_9", (HOSTILE,), reason="it has other readers"
    )
    found = Remark("analysis", "plan-arena", 40, reason="the peak", figures={"peak_before": 3e9})
    many = Remark("passed", "plan-arena", 40, count=12)
    graphs = [
        Record(passes=[Record(remarks=[passed]), Record(remarks=[again])]),
        Record(passes=[Record(remarks=[found, many])]),
    ]
    return Remarks.of(graphs)


def test_a_question_about_an_operator_a_pass_or_a_kind() -> None:
    all_, labels = remarks(), ["forward_3", "forward_20", "program_7", "program_9"]
    assert [len(all_.where(operator=label)) for label in labels] == [1, 1, 1, 1]
    assert [r.remark.by for r in all_.where(operator="model.py:13")] == ["fuse-epilogues"]
    assert not all_.where(operator="forward_2")  # a label is no part of another one
    assert len(all_.where(by="plan-arena")) == 2 and len(all_.where(by="plan-arena", kind="analysis")) == 1
    assert [r.graph for r in all_.where(kind="passed")] == [0, 1]
    with pytest.raises(OptionError, match="no kind of remarks 'pased'") as told:
        all_.where(kind="pased")
    assert told.value.hint == "passed"


def test_an_operator_is_found_by_what_it_became() -> None:
    later = Remark(
        "missed", "fuse-producers", 13, "fuse-producers@forward_3+program_7+program_8", (FUSED,), reason="too long"
    )
    found = Remarks.of([Record(passes=[Record(remarks=[later])])])
    assert len(found.where(operator="program_8")) == 1


def test_the_table() -> None:
    text = remarks().to_text()
    lines = text.splitlines()
    assert lines[0] == "remarks: 13 passed, 1 missed, 1 analysis"
    for part in ("forward_3: convolution 8->16  Block.first (model.py:12)", "-> forward_20", "bytes saved 2.5 MB",
                 "skip=fuse-epilogues@forward_3+program_7", "it has other readers", "12 times", "peak before 3 GB"):  # fmt: skip
        assert part in text, part
    assert "skip=fuse-producers" not in text  # there is nothing to switch off
    assert all(len(line) <= 160 for line in lines) and "\x1b" not in text
    assert all(len(line) <= 60 for line in remarks().to_text(width=60).splitlines())
    assert str(Remarks()) == "remarks: none"


def test_names_from_models_are_text() -> None:
    assert "[bold]<img src=x onerror=alert(1)>[/bold]" in remarks().to_text()


def test_what_is_left_out_is_said() -> None:
    assert "and 3 more: ask about an operator" in remarks().to_text(most=1)
    assert "more: ask" not in remarks().to_text()


def test_json() -> None:
    (first, *_), *_ = [json.loads(json.dumps(remarks().to_json()))]
    assert first == {
        "graph": 0, "kind": "passed", "pass": "fuse-epilogues", "index": 9, "site": "fuse-epilogues@forward_3+program_7",
        "ops": [{"label": o.label, "what": o.what, "origin": o.origin} for o in (CONV, RELU)],
        "made": [{"label": FUSED.label, "what": FUSED.what, "origin": FUSED.origin}],
        "reason": "", "count": 1, "args": {"bytes": 4096, "bytes_saved": 2.5e6},
    }  # fmt: skip
