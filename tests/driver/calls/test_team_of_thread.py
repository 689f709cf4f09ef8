"""A thread's team: its size for a while, its processors, and that other threads keep theirs."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from dcir import cores
from dcir.driver.calls import team_of_thread
from dcir.driver.calls.team_of_thread import pin, set_team, shares, team_of, unpinned


def in_a_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_a_team_lasts_until_the_end_also_of_what_fails():
    before = torch.get_num_threads()
    with team_of(before + 3):
        assert torch.get_num_threads() == before + 3
    with pytest.raises(KeyError), team_of(before + 1):
        raise KeyError
    assert torch.get_num_threads() == before


def test_a_team_is_its_thread_s_alone():
    before = torch.get_num_threads()

    def work():
        set_team(before + 2)
        return torch.get_num_threads()

    assert in_a_thread(work) == before + 2
    assert torch.get_num_threads() == before == in_a_thread(torch.get_num_threads)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be pinned here")
def test_a_pinned_thread_is_free_while_it_compiles():
    mask = os.sched_getaffinity(0)
    one = {min(mask)}

    def work():
        pin(one)
        inside = os.sched_getaffinity(0)
        with unpinned():
            free = os.sched_getaffinity(0)
        return inside, free, os.sched_getaffinity(0)

    assert in_a_thread(work) == (one, mask, one)
    with unpinned():
        assert os.sched_getaffinity(0) == mask
    assert os.sched_getaffinity(0) == mask


def machine(monkeypatch, tmp_path, places, mask=None):
    """A machine whose processors have these (socket, core)."""
    for number, (socket, core) in enumerate(places):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{socket}\n")
        (folder / "core_id").write_text(f"{core}\n")
    allowed = set(range(len(places))) if mask is None else mask
    monkeypatch.setattr(team_of_thread.os, "sched_getaffinity", lambda _: allowed, raising=False)
    monkeypatch.setattr(team_of_thread.os, "sched_setaffinity", lambda *_: None, raising=False)
    monkeypatch.setattr(team_of_thread.os, "cpu_count", lambda: len(places))
    monkeypatch.setattr(cores, "usable_threads", lambda: len(allowed))


def test_streams_have_neighbours_and_cores_before_their_second_threads(monkeypatch, tmp_path):
    # Processor i and i + 4 are one core's.
    machine(monkeypatch, tmp_path, [(0, 0), (0, 1), (1, 0), (1, 1)] * 2)
    assert shares(2, 2, tmp_path) == [{0, 1}, {2, 3}]
    assert shares(2, 4, tmp_path) == [{0, 4, 1, 5}, {2, 6, 3, 7}]
    assert shares(8, 1, tmp_path)[:2] == [{0}, {4}]


def test_nothing_is_pinned_where_the_machine_is_not_the_process_s_own(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, [(0, i) for i in range(4)], mask={0, 1})
    assert shares(2, 1, tmp_path) == [set(), set()]
    machine(monkeypatch, tmp_path / "quota", [(0, i) for i in range(4)])
    monkeypatch.setattr(cores, "usable_threads", lambda: 2)
    assert shares(2, 1, tmp_path / "quota") == [set(), set()]


def test_a_machine_that_says_nothing_of_its_cores(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, [])
    monkeypatch.setattr(team_of_thread.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(cores, "usable_threads", lambda: 4)
    assert shares(4, 1, tmp_path) == [{0}, {1}, {2}, {3}]
