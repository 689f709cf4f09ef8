"""Levels 0 to 3 on networks of different kinds: results and gradients are those of eager torch (of level 4, other tests tell)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dcir
from tests.harness import check_close, double

pytestmark = pytest.mark.processor

LEVELS = (0, 1, 2, 3)


class ConvNet(nn.Module):
    """3 x 3 convolutions wide enough for Winograd's form, one with a bias, and one with so few results that it is a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(32)
        self.wide = nn.Conv2d(32, 32, 3, padding=1)
        self.last = nn.Conv2d(32, 128, 5)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.stem(x)))
        h = F.max_pool2d(h + F.relu(self.wide(h)), 2)
        return self.head(F.relu(self.last(F.adaptive_avg_pool2d(h, 5))).flatten(1))


class Squeezed(nn.Module):
    """A block with a depthwise convolution, statistics of a batch, and channels that are scaled before a 1 x 1 convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.grow, self.first = nn.Conv2d(24, 96, 1, bias=False), nn.BatchNorm2d(96)
        self.depth, self.second = nn.Conv2d(96, 96, 3, padding=1, groups=96, bias=False), nn.BatchNorm2d(96)
        self.down, self.up = nn.Conv2d(96, 8, 1), nn.Conv2d(8, 96, 1)
        self.shrink, self.third = nn.Conv2d(96, 24, 1, bias=False), nn.BatchNorm2d(24)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.first(self.grow(x)))
        h = F.silu(self.second(self.depth(h)))
        h = h * torch.sigmoid(self.up(F.silu(self.down(h.mean((2, 3), keepdim=True)))))
        return x + self.third(self.shrink(h))


class Transformer(nn.Module):
    """A layer with two query heads for each of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(64), nn.LayerNorm(64)
        self.q, self.kv, self.out = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.grow, self.shrink = nn.Linear(64, 160), nn.Linear(160, 64)

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm(x)
        q = self.q(n).view(*x.shape[:2], 4, 16).transpose(1, 2)
        k, v = (t.view(*x.shape[:2], 2, 16).transpose(1, 2) for t in self.kv(n).chunk(2, -1))
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.shrink(F.gelu(self.grow(self.after(x))))


class Recommender(nn.Module):
    """Rows of tables side by side, and sums of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, 16) for _ in range(4))
        self.bag = nn.EmbeddingBag(50, 16, mode="sum")
        self.head = nn.Linear(80, 1)

    def forward(self, rows: Tensor) -> Tensor:
        parts = [table(rows[:, i]) for i, table in enumerate(self.tables)]
        return self.head(torch.cat([*parts, self.bag(rows)], 1))


class Messages(nn.Module):
    """What flows along edges is summed where they end."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        m = F.relu(self.other(x)[edges[0]])
        return self.own(x) + torch.zeros_like(x).index_add(0, edges[1], m)


class Dilated(nn.Module):
    """Convolutions whose results are added to one sum."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Conv1d(16, 32, 2, dilation=d) for d in (1, 2, 4))
        self.skips = nn.ModuleList(nn.Conv1d(16, 48, 1) for _ in range(3))
        self.rests = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(())
        for gate, skip, rest in zip(self.gates, self.skips, self.rests, strict=True):
            a, b = gate(x).chunk(2, 1)
            h = torch.tanh(a) * torch.sigmoid(b)
            x = x[..., -h.shape[-1] :] + rest(h)
            total = total[..., -h.shape[-1] :] + skip(h) if total.dim() else skip(h)
        return F.relu(total)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def randint(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(0))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "convolutions": (ConvNet, (randn(2, 3, 56, 56),)),
    "squeeze and excite": (Squeezed, (randn(2, 24, 28, 28),)),
    "transformer": (Transformer, (randn(2, 24, 64),)),
    "recommender": (Recommender, (randint(50, 256, 4),)),
    "messages": (Messages, (randn(200, 32), randint(200, 2, 900))),
    "dilated": (Dilated, (randn(2, 16, 80),)),
}


def exact(network: nn.Module) -> nn.Module:
    """A twin in float64."""
    return copy.deepcopy(network).double()


def trained(module: Any, network: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """A step of a network as it is or compiled: the result and the gradients of all parameters."""
    y = module(*inputs)
    (y * torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float64).to(y.dtype).view_as(y)).sum().backward()
    return [y.detach(), *(p.grad.clone() for p in network.parameters() if p.grad is not None)]


@pytest.mark.parametrize("name", NETWORKS)
def test_inference(name: str) -> None:
    make, inputs = NETWORKS[name]
    torch.manual_seed(0)
    network = make().eval()
    with torch.no_grad():
        want, right = network(*inputs), exact(network)(*double(inputs))
        for level in LEVELS:
            fast = dcir.optimize(network, level=level, strict=True)
            check_close(fast(*inputs), want, right, what=f"level {level}")


@pytest.mark.parametrize("name", NETWORKS)
def test_training(name: str) -> None:
    make, inputs = NETWORKS[name]
    torch.manual_seed(0)
    network = make().train()
    eager, right = copy.deepcopy(network), exact(network)
    wants, rights = trained(eager, eager, inputs), trained(right, right, double(inputs))
    for level in LEVELS:
        twin = copy.deepcopy(network)
        found = trained(dcir.optimize(twin, level=level, strict=True), twin, inputs)
        for number, (got, want, true) in enumerate(zip(found, wants, rights, strict=True)):
            check_close(got, want, true, what=f"level {level}, {number}")
