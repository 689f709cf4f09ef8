"""Scripts of others are those that vendor.json names, to the byte, each with its licence."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "dcir" / "view" / "static" / "vendor", ROOT / "tests" / "view" / "vendor")
FREE = {"MIT", "BSD-3-Clause", "Apache-2.0"}


@pytest.mark.parametrize("folder", FOLDERS, ids=["page", "tests"])
def test_every_file_is_in_the_table_and_has_its_sum(folder: Path) -> None:
    entries = json.loads((folder / "vendor.json").read_text())
    assert {e["file"] for e in entries} == {p.name for p in folder.iterdir()} - {"vendor.json"}
    for entry in entries:
        assert hashlib.sha256((folder / entry["file"]).read_bytes()).hexdigest() == entry["sha256"], entry["file"]


@pytest.mark.parametrize("folder", FOLDERS, ids=["page", "tests"])
def test_every_package_has_its_licence_beside_it(folder: Path) -> None:
    entries = json.loads((folder / "vendor.json").read_text())
    for package in {e["package"] for e in entries}:
        own = [e for e in entries if e["package"] == package]
        (text,) = [e for e in own if e["file"].endswith(".LICENSE")]
        assert len({(e["version"], e["licence"]) for e in own}) == 1
        assert "opyright" in (folder / text["file"]).read_text()


def test_the_wheel_holds_what_a_licence_allows_to_hand_on_as_it_is() -> None:
    entries = json.loads((FOLDERS[0] / "vendor.json").read_text())
    assert {e["licence"] for e in entries} <= FREE
