"""That every run takes its share of the cases, and every case has its turn."""

from __future__ import annotations

import pytest

from tests import rotation
from tests.rotation import chosen

_NAMES = [f"network-{i}" for i in range(60)]


@pytest.fixture(autouse=True)
def _samples(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DCIR_TEST_ALL", "DCIR_TEST_ROTATION"):
        monkeypatch.delenv(name, raising=False)
    rotation._commit.cache_clear()


def test_one_commit_takes_the_same_ones_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(_NAMES, 12) == chosen(_NAMES, 12)
    monkeypatch.setenv("DCIR_TEST_ROTATION", "c0ffee")
    first = chosen(_NAMES, 12)
    assert len(first) == 12 and first == [name for name in _NAMES if name in first]
    assert chosen(reversed(_NAMES), 12) == first[::-1]


def test_commits_take_other_ones_and_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []
    for number in range(60):
        monkeypatch.setenv("DCIR_TEST_ROTATION", f"commit {number}")
        turns.append(frozenset(chosen(_NAMES, 12)))
    assert len(set(turns)) == 60
    assert frozenset.union(*turns) == set(_NAMES)


def test_all_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCIR_TEST_ALL", "1")
    assert chosen(_NAMES, 12) == _NAMES


def test_without_git_the_day_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert rotation._commit().count("-") == 2
    assert len(chosen(_NAMES, 12)) == 12
