"""Python numbers and sizes that change, in graphs with control flow: programs of each, never an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dcir


def chosen(x: Tensor) -> Tensor:
    """One of two branches."""
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,))


OF_NUMBERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "condition": lambda x, k: torch.cond(k > 2, lambda x: x.sin(), lambda x: x * 2, (x,)),
    "roll": lambda x, k: chosen(x).roll(k, 0),
    "top": lambda x, k: chosen(x).topk(k, 0).values,
    "inside": lambda x, k: torch.cond(x.sum() > 0, lambda x: x[k % 3 :] * k, lambda x: x[k % 3 :] - k, (x,)),
    "select": lambda x, k: torch.cond(x.sum() > 0, lambda x: x[k].sin(), lambda x: x[k] * 2, (x,)),
}
OF_SIZES: dict[str, Callable[[Tensor], Tensor]] = {
    "condition": lambda x: torch.cond(x.shape[0] > 6, lambda x: x.sin(), lambda x: x * 2, (x,)),
    "index": lambda x: chosen(x)[x.shape[0] // 2 :],
    "inside": lambda x: torch.cond(x.sum() > 0, lambda x: x / x.shape[0], lambda x: x * (x.shape[0] % 3), (x,)),
}


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_numbers(name: str) -> None:
    fn = OF_NUMBERS[name]
    fast = torch.compile(fn, backend="dcir")
    for k in (1, 2, 3, 5):
        x = torch.randn(8, 3)
        torch.testing.assert_close(fast(x, k), fn(x, k))
    torch._dynamo.reset()


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", OF_SIZES)
def test_sizes(name: str, dynamic: bool | None, train: bool) -> None:
    fn = OF_SIZES[name]
    fast = dcir.optimize(fn, **({} if dynamic is None else {"dynamic": dynamic}))
    for rows in (4, 6, 5, 9):
        x = torch.randn(rows, 4)
        a, b = x.clone().requires_grad_(train), x.clone().requires_grad_(train)
        got, want = fast(a), fn(b)
        torch.testing.assert_close(got, want)
        if train:
            got.sum().backward()
            want.sum().backward()
            torch.testing.assert_close(a.grad, b.grad)
    torch._dynamo.reset()
