"""torch.compile(backend="dcir"): what its modes stand for, and which are refused."""

import pytest
import torch
from torch import nn

from dcir.driver.backend import MODES
from dcir.driver.measure import tune


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x):
        return torch.tanh(self.linear(x)) * 2


@pytest.fixture
def measured(monkeypatch):
    """The networks that are tuned, on a machine that is quiet as long as the list of other processes is empty."""
    networks, others = [], []
    monkeypatch.setattr(tune, "share_of_others", lambda threads, work: (work(), float(bool(others)))[1])
    monkeypatch.setattr(tune, "kernels", lambda net, threads: networks.append(net) or [object()])
    monkeypatch.setattr(tune, "_varied", lambda kernel, machine, *_: bool(others))
    return networks, others


@pytest.mark.parametrize("mode", [None, *MODES])
def test_known_modes(mode, measured):
    torch._dynamo.reset()
    module, x = Tiny().eval(), torch.randn(3, 6)
    with torch.no_grad():
        fast = torch.compile(module, backend="dcir", mode=mode)
        torch.testing.assert_close(fast(x), module(x))
    assert len(measured[0]) == ("max-autotune" in str(mode))


def test_a_busy_machine_is_no_error(measured):
    torch._dynamo.reset()
    measured[1].append("another process")
    module, x = Tiny().eval(), torch.randn(3, 6)
    with torch.no_grad(), pytest.warns(UserWarning, match="not tuned"):
        torch.testing.assert_close(torch.compile(module, backend="dcir", mode="max-autotune")(x), module(x))


def test_unknown_modes_are_refused_with_the_list():
    torch._dynamo.reset()
    with pytest.raises(Exception, match="no mode 'fastest'") as raised:
        torch.compile(Tiny(), backend="dcir", mode="fastest")(torch.randn(3, 6))
    assert all(mode in str(raised.value) for mode in MODES)


def test_names_of_options_are_texts():
    torch._dynamo.reset()
    with pytest.raises(Exception, match="OptionError: 3 is no name of an option"):
        torch.compile(Tiny(), backend="dcir", options={3: 4})(torch.randn(3, 6))
