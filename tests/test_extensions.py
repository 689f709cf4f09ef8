"""Other packages' entry points are found when they are asked for; one that fails is left out with a warning, once."""

import sys
from pathlib import Path

import pytest

from dcir.extensions import OPERATORS, PASSES, ExtensionWarning, extensions, read_again


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An installed package with one module that is well and one that is not."""
    (tmp_path / "well.py").write_text("VALUE = 7\n")
    (tmp_path / "ill.py").write_text("raise RuntimeError('no')\n")
    info = tmp_path / "another-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text(
        f"[{PASSES}]\nb = well:VALUE\na = well\n[{OPERATORS}]\nc = ill\nd = well:NOTHING\ne = well\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    read_again()
    yield
    read_again()
    for name in ("well", "ill"):
        sys.modules.pop(name, None)


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    assert "well" not in sys.modules
    extensions(PASSES)
    assert "well" in sys.modules


def test_they_come_in_the_order_of_their_names_with_their_package() -> None:
    found = [e for e in extensions(PASSES) if e.package == "another 2.1"]
    assert [e.name for e in found] == ["a", "b"]
    assert found[0].value is sys.modules["well"]
    assert found[1].value == 7


def test_what_fails_is_left_out_and_told_once() -> None:
    with pytest.warns(ExtensionWarning) as told:
        found = extensions(OPERATORS)
    assert [e.name for e in found if e.package == "another 2.1"] == ["e"]
    texts = [str(w.message) for w in told]
    assert len(texts) == 2
    assert "'c' of group 'dcir.operators' (another 2.1) is left out: RuntimeError: no" in texts[0]
    assert "AttributeError" in texts[1]
    assert extensions(OPERATORS) is found
