"""torch's team is made to fit a container's quota, once, and unless somebody chose its size."""

import pytest
import torch

import dcir
from dcir.driver import team


@pytest.fixture(autouse=True)
def container(monkeypatch):
    """64 processors of 32 cores, of which 2 may be used at a time."""
    before = torch.get_num_threads()
    for name in team._CHOSEN_BY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(team, "runnable_threads", lambda: 64)
    monkeypatch.setattr(team, "_cores", lambda: 32)
    monkeypatch.setattr(team, "usable_threads", lambda: 2)
    team.fit_team.cache_clear()
    yield
    team.fit_team.cache_clear()
    torch.set_num_threads(before)


@pytest.mark.parametrize(("threads", "wanted"), [(64, 2), (32, 2), (7, 7), (1, 1)])
def test_only_what_nobody_chose(threads, wanted):
    torch.set_num_threads(threads)
    dcir.optimize(torch.nn.Linear(2, 2))
    assert torch.get_num_threads() == wanted
    torch.set_num_threads(64)
    dcir.optimize(torch.nn.Linear(2, 2))
    assert torch.get_num_threads() == 64


def test_what_the_environment_says_stays(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    torch.set_num_threads(64)
    dcir.optimize(torch.nn.Linear(2, 2))
    assert torch.get_num_threads() == 64
