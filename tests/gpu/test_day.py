"""The GPU day without a GPU: its workers go on behind what fails or kills them, and its table says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.cases import work
from tests.gpu.day import read_rows, table


def fine() -> dict[str, Any]:
    return {"GB/s": 3.5}


def broken() -> dict[str, Any]:
    raise ValueError("no such thing")


def run(monkeypatch: pytest.MonkeyPatch, rows: Path, *, number: int = 0, of: int = 1) -> None:
    monkeypatch.setattr(sys, "argv", ["worker", "--rows", str(rows), "--number", str(number), "--of", str(of)])
    work(lambda: [("one", fine), ("two", broken), ("three", fine)])


def test_a_case_that_fails_is_told_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(monkeypatch, tmp_path / "rows")
    rows = read_rows(tmp_path / "rows")
    assert [(r["case"], r["ok"]) for r in rows] == [("one", True), ("two", False), ("three", True)]
    assert rows[1]["error"] == "ValueError: no such thing"


def test_a_case_that_killed_its_process_is_not_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text(json.dumps({"case": "one"}) + "\n")
    run(monkeypatch, tmp_path / "rows")
    rows = {r["case"]: r for r in read_rows(tmp_path / "rows")}
    assert rows["one"]["error"] == "it ended its process, or the time" and rows["three"]["ok"]


def test_workers_share_the_cases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number in range(2):
        run(monkeypatch, tmp_path / str(number), number=number, of=2)
    assert [[r["case"] for r in read_rows(tmp_path / str(i))] for i in range(2)] == [["one", "three"], ["two"]]


def test_a_fault_of_the_device_ends_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fault() -> dict[str, Any]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(sys, "argv", ["worker", "--rows", str(tmp_path / "rows")])
    with pytest.raises(SystemExit):
        work(lambda: [("one", fault), ("two", fine)])
    assert [r["case"] for r in read_rows(tmp_path / "rows")] == ["one"]


def test_the_table() -> None:
    rows = [{"case": "one", "ok": True, "GB/s": 3.14159, "seconds": 1}, {"case": "two", "ok": False, "error": "a\nb"}]
    lines = table("smoke", rows)
    assert lines[0] == "== smoke: 1 of 2 cases pass"
    assert "FAIL two" in lines[1] and "b" in lines[1]
    assert "GB/s=3.142" in lines[2] and "seconds" not in lines[2]
