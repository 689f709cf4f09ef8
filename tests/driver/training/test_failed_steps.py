"""A step that fails at an index leaves parameters and the optimiser's state as they were, and the next one goes on from there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dcir
from dcir.errors import IndexOutOfRange

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "adam": lambda p: torch.optim.AdamW(p, lr=0.01),
}


class _Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(30, 8), nn.Linear(8, 30)

    def forward(self, at: Tensor) -> Tensor:
        return self.out(torch.tanh(self.words(at)).mean(1))


def _layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 30))


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    found = {n: p.detach().clone() for n, p in model.named_parameters()}
    for n, p in model.named_parameters():
        for key, value in optimizer.state.get(p, {}).items():
            if isinstance(value, Tensor) and value.ndim:
                found[f"{n} {key}"] = value.clone()
    return found


@pytest.mark.parametrize("level", [0, 2, 4])
@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("what", ["target", "word", "target of words"])
def test_a_bad_index_updates_nothing(what: str, name: str, level: int) -> None:
    torch.manual_seed(0)
    model: Any = _layers() if what == "target" else _Words()
    twin = copy.deepcopy(model)
    ours, theirs = OPTIMISERS[name](model.parameters()), OPTIMISERS[name](twin.parameters())
    step = dcir.train_step(model, nn.CrossEntropyLoss(), ours, level=level)

    def batch() -> list[Tensor]:
        return [torch.randn(12, 6) if what == "target" else torch.randint(0, 30, (12, 5)), torch.randint(0, 30, (12,))]

    for bad in (True, False, True, False):
        x, y = batch()
        if not bad:
            loss = nn.functional.cross_entropy(twin(x), y)
            loss.backward()
            theirs.step()
            theirs.zero_grad()
            torch.testing.assert_close(step(x, y), loss.detach())
            continue
        (x if what == "word" else y).view(-1)[3] = 77
        before = _state(model, ours)
        with pytest.raises(IndexOutOfRange):
            step(x, y)
        after = _state(model, ours)
        assert all(torch.equal(after[n], t) for n, t in before.items())
    for n, p in model.named_parameters():
        torch.testing.assert_close(p, twin.get_parameter(n), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", [0, 4])
def test_a_cache_written_in_place(level: int) -> None:
    """By an operator that follows the bad one, or does both."""

    def fn(cache: Tensor, table: Tensor, at: Tensor) -> Tensor:
        rows = table[at]
        cache.mul_(0.5).add_(rows.sum(0))
        return rows.tanh()

    compiled = dcir.optimize(fn, level=level)
    cache, table, at = torch.ones(8), torch.randn(30, 8), torch.randint(0, 30, (5,))
    with torch.no_grad():
        compiled(cache, table, at)
        before = cache.clone()
        at[2] = 99
        with pytest.raises(IndexOutOfRange):
            compiled(cache, table, at)
    assert torch.equal(cache, before)
