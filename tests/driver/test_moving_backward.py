"""Training steps compiled once for all sizes: losses and gradients are as near to float64 as eager PyTorch's at every size."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dcir.driver.moving_graph import MovingGraph
from dcir.ir.sizes import Bounds
from tests.harness import check_close
from tests.moving import Moving


class Sentences(nn.Module):
    """An encoder with learnt positions, a mask of bools and a mean over what it lets through."""

    def __init__(self, width: int = 96, heads: int = 3, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(200, width), nn.Embedding(150, width)
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width), "n1": nn.LayerNorm(width),
                "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width), "n2": nn.LayerNorm(width),
            })
            for _ in range(layers)
        )  # fmt: skip

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, s = ids.shape
        x = self.norm(self.tokens(ids) + self.places(torch.arange(s)))
        for m in self.layers:
            q, k, v = m["qkv"](x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :].bool())
            x = m["n1"](x + m["out"](a.transpose(1, 2).reshape(b, s, -1)))
            x = m["n2"](x + m["down"](F.gelu(m["up"](x))))
        w = mask[..., None].to(x.dtype)
        means = (x * w).sum(1) / w.sum(1).clamp(min=1)
        return (means * torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)).sum() / b


class Llama(nn.Module):
    """A decoder with rotary positions, grouped heads, causal attention, gated products and a loss over its vocabulary."""

    def __init__(self, width: int = 64, heads: int = 4, keys: int = 2, layers: int = 2, words: int = 300) -> None:
        super().__init__()
        self.heads, self.keys, self.part = heads, keys, width // heads
        self.tokens, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "qkv": nn.Linear(width, width + 2 * keys * self.part, bias=False), "out": nn.Linear(width, width, bias=False),
                "gate": nn.Linear(width, 176, bias=False), "up": nn.Linear(width, 176, bias=False),
                "down": nn.Linear(176, width, bias=False), "n1": nn.RMSNorm(width), "n2": nn.RMSNorm(width),
            })
            for _ in range(layers)
        )  # fmt: skip
        self.norm = nn.RMSNorm(width)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        b, n = ids.shape
        torch._check(targets.shape[0] == b)
        torch._check(targets.shape[1] == n)
        x = self.tokens(ids)
        frequencies = 1.0 / 10000 ** (torch.arange(0, self.part, 2, dtype=torch.float32) / self.part)
        angles = (torch.arange(n, dtype=torch.float32)[:, None] * frequencies).repeat(1, 2)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)

        def turn(t: torch.Tensor) -> torch.Tensor:
            half = t.shape[-1] // 2
            return t * cos + torch.cat((-t[..., half:], t[..., :half]), -1) * sin

        for m in self.layers:
            y = m["qkv"](m["n1"](x))
            q, k, v = y.split([self.heads * self.part, self.keys * self.part, self.keys * self.part], -1)
            q = turn(q.view(b, n, self.heads, self.part).transpose(1, 2))
            k = turn(k.view(b, n, self.keys, self.part).transpose(1, 2))
            v = v.view(b, n, self.keys, self.part).transpose(1, 2)
            k, v = (t.repeat_interleave(self.heads // self.keys, 1) for t in (k, v))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + m["out"](a.transpose(1, 2).reshape(b, n, -1))
            y = m["n2"](x)
            x = x + m["down"](F.silu(m["gate"](y)) * m["up"](y))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


class Classifier(nn.Module):
    """Rows of numbers through wide layers to a loss over classes."""

    def __init__(self, *norms: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(70, 300), nn.ReLU(), *norms, nn.Linear(300, 130), nn.Tanh(), nn.Linear(130, 17)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch._check(y.shape[0] == x.shape[0])
        return F.cross_entropy(self.layers(x), y)


class Normed(Classifier):
    """The same with a norm over all rows, which divides by what hardly varies where rows are few."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(300))


class Dropped(nn.Module):
    """Numbers dropped at random by calls into torch, between layers over rows of any number."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm, self.head = nn.Embedding(50, 40), nn.LayerNorm(40), nn.Linear(40, 9)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.tokens(ids), 0.3, self.training)
        return self.head(F.dropout(self.norm(x), 0.2, self.training)).square().sum() / ids.shape[1]


class Pairs(nn.Module):
    """Every row of a set against every other one: products of which all extents move."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(24, 40), nn.Linear(24, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.left(x) @ self.right(x).transpose(-1, -2) / 6.0
        return (torch.softmax(scores, -1) @ x - x).square().sum() / x.shape[1]


def sentences(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    mask = torch.arange(length)[None] < torch.randint(max(1, length // 3), length + 1, (batch, 1))
    return torch.randint(0, 200, (batch, length)), mask.long()


def words(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    return torch.randint(0, 300, (batch, length)), torch.randint(0, 300, (batch, length))


def rows(batch: int, _: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 70), torch.randint(0, 17, (batch,))


def sets(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, length, 24),)


BOTH, ONE = ((0, 0), (0, 1), (1, 0), (1, 1)), ((0, 0), (1, 0))
PAIRS = [(3, 37), (2, 4), (7, 16), (40, 2), (5, 129), (13, 64), (2, 150), (17, 31)]
CASES = [
    (Sentences, sentences, BOTH, (Bounds(2, 40), Bounds(2, 149)), [*PAIRS[:6], (2, 149), PAIRS[7]]),
    (Llama, words, BOTH, (Bounds(2, 40), Bounds(2, 150)), PAIRS),
    (Classifier, rows, ONE, (Bounds(2, 5000),), [(n, 0) for n in (37, 2, 3, 16, 33, 64, 1000, 4097, 5000)]),
    (Normed, rows, ONE, (Bounds(2, 5000),), [(n, 0) for n in (37, 64, 129, 5000)]),
    (Pairs, sets, BOTH[:2], (Bounds(2, 40), Bounds(2, 150)), PAIRS),
]


@pytest.mark.parametrize(("make", "inputs", "dims", "bounds", "sizes"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_step_at_any_size(make: Any, inputs: Any, dims: Any, bounds: Any, sizes: Any) -> None:
    torch.manual_seed(0)
    model = make()
    exact = copy.deepcopy(model).double()
    compiled = Moving(model, bounds, generated=True)
    for size in sizes:
        args = inputs(*size)
        wide = [a.double() if a.is_floating_point() else a for a in args]
        got = _step(lambda *a: compiled(*a, dims=dims), model, args)
        eager, reference = _step(model, model, args), _step(exact, exact, wide)
        names = ["loss", *(name for name, _ in model.named_parameters())]
        for name, g, w, e in zip(names, got, eager, reference, strict=True):
            check_close(g, w, e, what=f"{name} at {size}")
    forward, backward = compiled.graphs
    assert isinstance(forward, MovingGraph) and isinstance(backward, MovingGraph)


class Halved(Classifier):
    """The same with products in bfloat16."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x, y)


def test_autocast_at_any_size() -> None:
    """Gradients as a whole are as near to float64 as eager's; single numbers are near it by chance."""
    torch.manual_seed(0)
    model, exact = Halved(), Classifier().double()
    exact.load_state_dict(model.state_dict())
    compiled = Moving(model, (Bounds(2, 5000),), generated=True)
    for n in (37, 2, 3, 16, 1000, 5000):
        args = rows(n, 0)
        got = _step(lambda *a: compiled(*a, dims=ONE), model, args)[1:]
        eager, reference = _step(model, model, args)[1:], _step(exact, exact, [args[0].double(), args[1]])[1:]
        for g, w, e in zip(got, eager, reference, strict=True):
            ours, theirs = ((t.double() - e).norm() / e.norm() for t in (g, w))
            assert ours <= 1.5 * theirs + 1e-4, n


def test_calls_into_torch_at_any_size() -> None:
    """Dropped are the numbers that eager drops, from the same state of the generator."""
    torch.manual_seed(0)
    model = Dropped()
    compiled = Moving(model, (Bounds(2, 40), Bounds(2, 150)), generated=True)
    for number, size in enumerate(PAIRS):
        (ids,) = (torch.randint(0, 50, size),)
        steps = []
        for fn in (model, lambda x: compiled(x, dims=BOTH[:2])):
            torch.manual_seed(number)
            steps.append(_step(fn, model, (ids,)))
        for want, got in zip(*steps, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert any(op.spec.calls_out for op in compiled.graphs[0].network.widest.ops())


def _step(fn: Any, model: nn.Module, args: Any) -> list[torch.Tensor]:
    """The loss, and the gradients of all parameters."""
    loss = fn(*args)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]
