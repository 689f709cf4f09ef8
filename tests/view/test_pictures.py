"""The pictures of the documentation: every page has one, they are taken of a real session, and the page makes no error meanwhile."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from tests.view import browser as driver
from tests.view import pictures

PAGE = pictures.ROOT / "docs" / "view.md"


def test_every_page_has_a_picture_in_the_documentation() -> None:
    named = set(re.findall(r"\]\(view/(\w+)\.png\)", PAGE.read_text(encoding="utf-8")))
    assert named == set(pictures.PAGES) == {f.stem for f in pictures.FOLDER.glob("*.png")}
    sizes = {f.stem: struct.unpack(">II", f.read_bytes()[16:24]) for f in pictures.FOLDER.glob("*.png")}
    assert set(sizes.values()) == {(pictures.WIDTH, pictures.HEIGHT)}
    assert sum(f.stat().st_size for f in pictures.FOLDER.glob("*.png")) < 2_000_000


@pytest.mark.in_turn(12)
@pytest.mark.skipif(driver.BROWSER is None, reason="no Chromium is installed (Debian: chromium-headless-shell)")
def test_they_are_taken_of_a_real_session(tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api", reason="playwright, which drives a browser, is not installed")
    pytest.importorskip("uvicorn", reason="the packages of the extra view are not installed")
    view = pictures.sessions(pictures.ADVISED, seconds=0.05)
    assert pictures.take(view, tmp_path) == []
    assert {f.stem for f in tmp_path.glob("*.png")} == set(pictures.PAGES) - {"advice"}
