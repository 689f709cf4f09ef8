"""That every run takes its share of the cases, and every case has its turn."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import rotation
from tests.rotation import chosen, has_turn, taken

pytest_plugins = ["pytester"]
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


def test_cases_are_taken_by_their_places() -> None:
    cases = [object() for _ in _NAMES]
    some = taken(cases, 12)
    assert len(some) == 12 and some == [c for c in cases if c in some] and some == taken(cases, 12)


def test_each_has_a_turn_in_some_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []
    for number in range(40):
        monkeypatch.setenv("DCIR_TEST_ROTATION", f"commit {number}")
        turns.append({name for name in _NAMES if has_turn(name, 3)})
    assert set.union(*turns) == set(_NAMES)
    assert 10 < sum(map(len, turns)) / len(turns) < 30


def test_all_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCIR_TEST_ALL", "1")
    assert chosen(_NAMES, 12) == taken(_NAMES, 12) == _NAMES
    assert all(has_turn(name, 3) for name in _NAMES)


_SOME_IN_TURN = """
import pytest

@pytest.mark.in_turn(4)
@pytest.mark.parametrize("n", range(40))
def test_long(n): pass

def test_short(): pass
"""


def test_a_run_of_all_leaves_others_to_other_commits(pytester: pytest.Pytester) -> None:
    """What is asked for by name runs, in processes that share the tests, too."""
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\ntestpaths = ["."]\nmarkers = ["in_turn"]')
    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems, pytest_configure")
    pytester.makepyfile(_SOME_IN_TURN)
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    for workers, asked, least, most in (
        (0, (), 2, 30),
        (2, (), 2, 30),
        (2, (".",), 41, 41),
        (0, ("-k", "long"), 40, 40),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", path)
            done = pytester.runpytest_subprocess("-n", str(workers), *asked)
        assert least <= done.parseoutcomes()["passed"] <= most, (workers, asked)


def test_without_git_the_day_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert rotation._commit().count("-") == 2
    assert len(chosen(_NAMES, 12)) == 12
