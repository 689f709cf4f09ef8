"""Whole numbers that a trace takes for constants: as arguments of training, and as what a call leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dcir

CASES: dict[str, Any] = {
    "softmax": lambda x, d: x.softmax(d),
    "sum": lambda x, d: x.sum(d),
    "cumsum": lambda x, d: x.cumsum(d),
    "flip": lambda x, d: x.flip(d),
    "topk": lambda x, d: x.topk(d + 1)[0],
    "chunk": lambda x, d: x.chunk(d + 1)[0],
    "places": lambda x, d: x[:, [0, d]],
    "round": lambda x, d: x.round(decimals=d) + x,
}


@pytest.mark.parametrize("name", CASES)
def test_arguments_of_training(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)

    class Net(nn.Module):
        def forward(self, x: Tensor, d: int) -> Tensor:
            result: Tensor = CASES[name](x, d)
            return result

    model = Net()
    fast = dcir.optimize(model)
    for d in (2, 1, 0, 2):
        x = torch.randn(4, 6, 8)
        seen = []
        for m in (model, fast):
            given = x.clone().requires_grad_()
            m(given, d).square().sum().backward()
            seen.append(given.grad)
        torch.testing.assert_close(seen[1], seen[0])
    found = fast.dcir.explain()
    assert {g.kind for g in found.graphs} == {"forward", "backward"} and not found.uncompiled


@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (3, 4, 5, 6)], ids=["equal sizes", "moving sizes"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_numbers_that_are_left_behind(train: bool, sizes: tuple[int, ...]) -> None:
    """They are Python's, whether the trace had them as constants or as sizes."""
    torch._dynamo.reset()

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n, self.seen, self.factor = 0, 0, nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            n = self.n
            self.n, self.seen = n + 1, self.seen + x.shape[1]
            for _ in range(n):
                x = x * 1.5
            return x * self.factor

    model, plain = Counter(), Counter()
    fast = dcir.optimize(model)
    for size in sizes:
        x = torch.randn(2, size)
        with torch.set_grad_enabled(train):
            torch.testing.assert_close(fast(x), plain(x))
        assert (type(fast.n), type(fast.seen)) == (int, int)
        assert (fast.n, fast.seen) == (plain.n, plain.seen)
        hash((fast.n, fast.seen))
    assert fast.dcir.explain().graphs and not fast.dcir.explain().uncompiled


@pytest.mark.parametrize(
    "ask", [lambda k: k == 3.0, lambda k: k > 4.5, lambda k: k * 2], ids=["equal", "more", "product"]
)
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_what_is_asked_of_a_number_beside_sizes_that_move(ask: Any, train: bool) -> None:
    torch._dynamo.reset()

    class Scaled(nn.Module):
        scale = 0.0

        def forward(self, x: Tensor) -> tuple[Tensor, Any]:
            return x.sin() * self.scale, ask(self.scale)

    model = Scaled()
    fast = dcir.optimize(model)
    for i, k in enumerate((2.0, 9.0, 3.0, 4.0, 5.0, 3.0)):
        model.scale = k
        x = torch.arange(3.0 + i).requires_grad_(train)
        result, told = fast(x)
        assert told == ask(k), k
        torch.testing.assert_close(result, x.sin() * k)


def test_zeros_and_nan_beside_sizes_that_move() -> None:
    """A program for 0.0 is none for -0.0, and that for NaN is found again."""
    torch._dynamo.reset()

    def fn(x: Tensor, s: float) -> Tensor:
        return torch.copysign(torch.ones_like(x), torch.full_like(x, s)) + x * s

    nan = float("nan")
    fast = dcir.optimize(fn)
    made = []
    for n, s in ((5, 1.0), (7, 2.0), (9, 0.0), (9, -0.0), (9, 0.0), (9, -0.0), (9, nan), (9, nan), (9, -1.5)):
        x = torch.ones(n, 2)
        torch.testing.assert_close(fast(x, s), fn(x, s), equal_nan=True, msg=lambda m, s=s: f"{s}: {m}")
        made.append(len(fast.dcir.explain().graphs))
    assert made[4] == made[5] == made[3] and made[7] == made[6]
