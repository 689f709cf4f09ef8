"""Slices whose bounds are differences of sizes that change: a program of each size where the trace cannot tell, never an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dcir

SLICES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "but two": lambda x, n: x[:, : n - 2],
    "but three": lambda x, n: x[:, : n - 3],
    "the last half": lambda x, n: x[:, -(n // 2) :],
    "from before the first": lambda x, n: x[:, n % 2 - n :],
    "but one": lambda x, n: x[:, : n - 1],
}
SIZES = ((2, 6), (4, 9), (1, 7), (3, 12), (3, 2))


class Net(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.weight = name, nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return SLICES[self.name](x, x.shape[1]).relu() * self.weight


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", SLICES)
def test_inference(name: str, dynamic: bool | None) -> None:
    net = Net(name).eval()
    fast = dcir.optimize(net, dynamic=dynamic) if dynamic else dcir.optimize(net)
    with torch.no_grad():
        for shape in SIZES:
            x = torch.randn(shape)
            assert torch.equal(fast(x), net(x))


@pytest.mark.parametrize("name", ["but three", "the last half"])
def test_training(name: str) -> None:
    net = Net(name)
    fast = dcir.optimize(net)
    for shape in SIZES:
        x = torch.randn(shape)
        (want,) = torch.autograd.grad(net(x).square().sum(), [net.weight])
        (got,) = torch.autograd.grad(fast(x).square().sum(), [net.weight])
        torch.testing.assert_close(got, want)
