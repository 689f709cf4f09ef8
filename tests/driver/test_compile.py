"""Compiling leaves the process as it was."""

import gc

import pytest
import torch

import dcir
from dcir.driver import compile as driver


@pytest.fixture
def seen(monkeypatch):
    """Whether the collector was on whenever a graph was imported."""
    states = []
    plain = driver.import_graph
    monkeypatch.setattr(driver, "import_graph", lambda *given: (states.append(gc.isenabled()), plain(*given))[1])
    return states


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_and_is_as_before(seen, enabled):
    x = torch.randn(3, 4)
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        torch.testing.assert_close(dcir.optimize(torch.nn.Linear(4, 5))(x).shape, torch.Size([3, 5]))
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()
    assert seen and not any(seen)


def test_the_collector_is_on_after_an_error(monkeypatch):
    def fail(*_):
        assert not gc.isenabled()
        raise RuntimeError("no import")

    monkeypatch.setattr(driver, "import_graph", fail)
    with pytest.raises(Exception, match="no import"):
        dcir.optimize(torch.nn.Linear(4, 5))(torch.randn(3, 4))
    assert gc.isenabled()
