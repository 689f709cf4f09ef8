"""That every run takes its share of the cases, and every case has its turn."""

from __future__ import annotations

import pytest

from tests.endtoend import rotation
from tests.endtoend.rotation import turn

_NAMES = [f"network-{i}" for i in range(60)]


@pytest.fixture(autouse=True)
def _samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DCIR_TEST_ALL", raising=False)
    rotation._commit.cache_clear()


def test_one_commit_takes_the_same_ones_everywhere() -> None:
    first = turn(_NAMES, 12, "c0ffee")
    assert len(first) == 12 and first <= set(_NAMES)
    assert turn(reversed(_NAMES), 12, "c0ffee") == first
    assert turn(_NAMES, 12) == turn(_NAMES, 12)


def test_commits_take_other_ones_and_none_is_left_out() -> None:
    turns = [turn(_NAMES, 12, f"commit {i}") for i in range(60)]
    assert len({frozenset(t) for t in turns}) == 60
    assert set.union(*turns) == set(_NAMES)


def test_all_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCIR_TEST_ALL", "1")
    assert turn(_NAMES, 12) == set(_NAMES)


def test_without_git_the_day_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert rotation._commit().count("-") == 2
    assert len(turn(_NAMES, 12)) == 12
