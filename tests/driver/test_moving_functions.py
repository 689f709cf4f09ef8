"""Numbers that are another function of a size beyond some value: what holds at the sizes that a graph is looked at is not taken for all."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, arange, nn

import dcir

OF_SIZES: dict[str, Callable[[Tensor], Tensor]] = {
    "index < size": lambda x: x.masked_fill(arange(8) < x.shape[1], -9.0),
    "index >= size": lambda x: x.masked_fill(arange(8) >= x.shape[1], -9.0),
    "index - 5 + size < 0": lambda x: x.masked_fill((arange(x.shape[1]) + x.shape[1] - 5 < 0)[:, None], -9.0),
    "index * 2 < two sizes": lambda x: x.masked_fill(arange(8) * 2 < x.shape[0] + x.shape[1], -9.0),
    "index mod size": lambda x: x + arange(8) % x.shape[1],
    "index // size": lambda x: x + arange(8) // x.shape[1],
    "gather of index mod size": lambda x: x[:, arange(8) % x.shape[1]].sum(1),
    "size as a tensor": lambda x: torch.where(torch.full((), x.shape[1]) < 5, x, x * 2),
    "least of sizes as a tensor": lambda x: x * torch.full((), x.shape[1]).clamp(max=9),
    "top of at most three": lambda x: (x * 2).topk(min(3, x.shape[1]), 1)[0],
    "at least ten": lambda x: torch.cat([x.flatten(), x.new_ones(max(10, x.shape[1]))]),
    "distance of a size": lambda x: x * abs(x.shape[1] - 10),
    "both ends": lambda x: x * min(x.shape[1], 10) + max(x.shape[0], 3),
}
OF_NUMBERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "index < number": lambda x, k: x.masked_fill(arange(8) < k, -9.0),
    "triu": lambda x, k: (x @ x.transpose(1, 2)).triu(k),
    "tril": lambda x, k: (x @ x.transpose(1, 2)).tril(k),
    "mod and //": lambda x, k: x + arange(8) % k + arange(8) // k,
    "max and min": lambda x, k: x * (max(k, 4) + min(k, 10) * 2),
    "factor": lambda x, k: x * k,
}


class Net(nn.Module):
    def __init__(self, f: Callable[..., Tensor]) -> None:
        super().__init__()
        self.f, self.layer = f, nn.Linear(8, 8)

    def forward(self, x: Tensor, *numbers: int) -> Tensor:
        return self.f(self.layer(x), *numbers)


def follow(net: nn.Module, fast: Callable[..., Tensor], *given: Any) -> None:
    """Result and gradient of a call, against the module in float64."""
    wide = copy.deepcopy(net).double()
    x, rest = given[0], given[1:]
    want, got = wide(x.double(), *rest), fast(x, *rest)
    torch.testing.assert_close(got, want.float(), rtol=0, atol=1e-5 * max(1.0, want.abs().max().item()))
    (expected,) = torch.autograd.grad(want.sum(), [wide.layer.weight])
    (found,) = torch.autograd.grad(got.sum(), [net.layer.weight])
    torch.testing.assert_close(found, expected.float(), rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize("name", OF_SIZES)
def test_of_sizes(name: str) -> None:
    torch.manual_seed(0)
    net = Net(OF_SIZES[name])
    fast = dcir.optimize(net)
    for shape in ((4, 12), (3, 17), (2, 33), (5, 3), (2, 2), (1, 5)):
        follow(net, fast, torch.randn(*shape, 8))


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_of_numbers(name: str) -> None:
    torch.manual_seed(0)
    net = Net(OF_NUMBERS[name])
    fast = dcir.optimize(net)
    for k in (2, 5, 3, 7, 9, 1, 20):
        follow(net, fast, torch.randn(4, 6, 8), k)


@pytest.mark.parametrize("numbers", [(2, 5, 3, -4), (2, -4, 5, 0, 1), (2, 5, 2**33 + 1, 2**61 + 5)])
def test_numbers_that_are_no_sizes(numbers: tuple[int, ...]) -> None:
    net = Net(OF_NUMBERS["factor"])
    fast = dcir.optimize(net)
    for k in numbers:
        follow(net, fast, torch.randn(4, 6, 8), k)


def test_a_step_of_training() -> None:
    torch.manual_seed(0)
    net = Net(OF_SIZES["index < size"])
    own = copy.deepcopy(net)
    step = dcir.train_step(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1))
    eager = torch.optim.SGD(own.parameters(), lr=0.1)
    for shape in ((4, 12, 8), (3, 17, 8), (2, 33, 8), (5, 3, 8), (2, 2, 8)):
        x, y = torch.randn(shape), torch.randn(shape)
        want = nn.functional.mse_loss(own(x), y)
        eager.zero_grad()
        want.backward()
        eager.step()
        torch.testing.assert_close(step(x, y), want.detach())
    torch.testing.assert_close(net.state_dict(), own.state_dict())


def test_what_is_the_same_at_all_sizes_is_still_settled() -> None:
    """One program, without the comparison."""
    net = Net(lambda x: x.masked_fill((arange(x.shape[1]) < x.shape[1])[:, None], -9.0))
    fast = dcir.optimize(net)
    with torch.no_grad():
        for shape in ((4, 12), (3, 17), (2, 33), (5, 3)):
            x = torch.randn(*shape, 8)
            torch.testing.assert_close(fast(x), net(x))
    _, of_all = str(fast.dcir.explain()).split("graph 1 (inference, for all sizes")
    assert "1 x loops 61x127x8: copy" in of_all
