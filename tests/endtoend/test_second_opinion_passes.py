"""Small networks through stock DaCe after all passes, and after each by itself: a training step as generated code and float64 have it.

A build of stock DaCe takes seconds, so of the single passes every commit takes some (``tests/rotation.py``); DCIR_TEST_ALL=1 takes all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dcir.transforms.pipelines import PASSES
from tests.endtoend.reduced_networks import Attending
from tests.endtoend.second_opinion import agree
from tests.rotation import chosen

_AT_ONCE = 8
_NONE = "no pass"


class Convolved(nn.Module):
    """Convolution, norm over the batch and activation, twice: one with channels enough for Winograd's form, one after the other's sums."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.second, self.head = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x)))
        return self.head(F.relu(h + self.second(h)).mean((2, 3)))


class Recurrent(nn.Module):
    """An embedding and an LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(12, 6), nn.LSTM(6, 8, bidirectional=True, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(self.embed(tokens))[0]


class Scattered(nn.Module):
    """Rows of a table, sums of rows, and messages along edges: their gradients, and one result, are scattered sums."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.bag = nn.Embedding(9, 4), nn.EmbeddingBag(9, 4, mode="sum")
        self.own, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, rows: Tensor, edges: Tensor) -> Tensor:
        x = self.table(rows).sum(1) + self.bag(rows)
        sent = F.relu(self.other(x)[edges[0]])
        return self.own(x) + torch.zeros_like(x).index_add(0, edges[1], sent)


class Dropped(nn.Module):
    """Dropout, whose masks are drawn one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.second(F.dropout(F.relu(self.first(x)), 0.3, self.training)), 0.2, self.training)


class Ranked(nn.Module):
    """The best of a list and where they were, running sums and extremes of their numbers, and these in order."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        best, where = self.score(x).squeeze(-1).topk(4)
        highest = torch.cummax(x.sum(-1), -1)
        order = torch.sort(highest.values * self.score.bias, descending=True)
        places = torch.cat([where, highest.indices, order.indices], 1)
        return torch.cat([best, best.cumsum(-1), order.values], 1), places


def _edges() -> Tensor:
    return torch.randint(0, 7, (2, 15))


NETWORKS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "convolutions": lambda: (Convolved(), {"x": torch.randn(3, 3, 12, 12)}),
    "attention": lambda: (Attending(16, 2, before=True), {"x": torch.randn(2, 7, 16)}),
    "recurrent": lambda: (Recurrent(), {"tokens": torch.randint(0, 12, (3, 4))}),
    "scattered": lambda: (Scattered(), {"rows": torch.randint(0, 9, (7, 3)), "edges": _edges()}),
    "dropout": lambda: (Dropped(), {"x": torch.randn(5, 6)}),
    "ranked": lambda: (Ranked(), {"x": torch.randn(3, 9, 8)}),
}
_ALONE = [f"{p} on {name}" for p in (_NONE, *dict.fromkeys(p.name for p in PASSES)) for name in NETWORKS]


@pytest.mark.parametrize("name", NETWORKS)
def test_all_passes(name: str) -> None:
    torch.manual_seed(0)
    agree(*NETWORKS[name](), train=True)


@pytest.mark.parametrize("case", _ALONE)
def test_one_pass(case: str) -> None:
    if case not in chosen(_ALONE, _AT_ONCE):
        pytest.skip("passes and networks that have their turn with another commit; DCIR_TEST_ALL=1 runs all")
    one, _, name = case.partition(" on ")
    torch.manual_seed(0)
    passes = tuple(p for p in dict.fromkeys(PASSES) if p.name == one)
    assert len(passes) == (one != _NONE)
    agree(*NETWORKS[name](), train=True, pipeline=passes, only_changed=one != _NONE)
