"""No two gradients share memory: what clips, scales or accumulates one of them leaves the others as they are."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

import dcir


class Twice(nn.Module):
    """Two parameters with one gradient, in one shape or in two."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.p, self.q = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.p + self.q.view(4))


NETS = {
    "lstm": (lambda: nn.LSTM(6, 4), (5, 3, 6)),
    "long lstm": (lambda: nn.LSTM(6, 4), (70, 3, 6)),
    "rnn": (lambda: nn.RNN(6, 4), (5, 3, 6)),
    "one shape": (lambda: Twice(4), (3, 4)),
    "two shapes": (lambda: Twice(2, 2), (3, 4)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("level", [1, 4])
@pytest.mark.parametrize("name", NETS)
def test_gradients(name: str, level: int, dynamic: bool) -> None:
    torch.manual_seed(0)
    make, shape = NETS[name]
    net = make()
    wide = copy.deepcopy(net).double()
    fast = dcir.optimize(net, level=level, dynamic=dynamic)
    for _ in range(2):  # the second time they are added to
        x = torch.randn(shape)
        for run, data in ((fast, x), (wide, x.double())):
            y = run(data)
            (y[0] if isinstance(y, tuple) else y).square().sum().backward()
    gradients = [p.grad for p in net.parameters()]
    assert len({g.untyped_storage().data_ptr() for g in gradients}) == len(gradients)
    for clipped in (False, True):
        for p, exact in zip(net.parameters(), wide.parameters(), strict=True):
            torch.testing.assert_close(p.grad.double(), exact.grad, rtol=1e-4, atol=1e-5)
        if not clipped:
            for module in (net, wide):
                torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)


WINDOWS = {
    "transposed": lambda x: x.copy_(x.t().contiguous()),
    "first row": lambda x: x.__setitem__(slice(None), x[0]),
    "column repeated": lambda x: x.copy_(x[:, :1].expand(6, 6).clone()),
    "itself": lambda x: x.copy_(x.clone()),
    "shifted": lambda x: x[1:].copy_(x[:-1].clone()),
    "viewed": lambda x: x.copy_(x.clone().view(36).view(6, 6)),
}


@pytest.mark.parametrize(("name", "level"), itertools.product(WINDOWS, (1, 4)))
def test_an_input_takes_a_window_of_itself(name: str, level: int) -> None:
    def fn(x: Tensor) -> Tensor:
        WINDOWS[name](x)
        return x.sum(0)

    x = torch.arange(36.0).view(6, 6)
    mine = x.clone()
    want = fn(x)
    torch.testing.assert_close(dcir.optimize(fn, level=level)(mine), want)
    torch.testing.assert_close(mine, x)


def test_a_buffer_takes_a_window_of_itself() -> None:
    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.arange(16.0).view(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            self.state.copy_(self.state.t().clone())
            return x @ self.state

    net = Turning()
    twin, fast, x = copy.deepcopy(net), dcir.optimize(net), torch.ones(2, 4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), twin(x))
            torch.testing.assert_close(net.state, twin.state)
