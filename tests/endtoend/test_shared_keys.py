"""Decoders whose heads share keys and values: a training step follows eager PyTorch, and keys are nowhere repeated."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dcir.ir.network import Network
from dcir.ops.library.attention import AttentionSpec
from tests.endtoend.follows_eager import follow
from tests.harness import keeping

pytestmark = pytest.mark.in_turn(3)

BATCH, TOKENS, HEADS, KEYS, SIZE = 2, 70, 6, 2, 16
ONE = BATCH * KEYS * TOKENS * SIZE * 4
"""Bytes of the keys of a layer."""
MASKS = ("causal", "numbers", "least", "bools")


def repeated(x: torch.Tensor) -> torch.Tensor:
    """As transformers writes it out."""
    b, h, n, d = x.shape
    return x[:, :, None].expand(b, h, HEADS // KEYS, n, d).reshape(b, HEADS, n, d)


class Layer(nn.Module):
    """A layer of Llama."""

    def __init__(self, written_out: bool) -> None:
        super().__init__()
        width = HEADS * SIZE
        self.written_out = written_out
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, KEYS * SIZE, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 3 * width // 2, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width // 2, width, bias=False)

    def forward(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], mask: Any) -> torch.Tensor:
        b, n, _ = x.shape
        y = self.before(x)
        q, k, v = (part(y).view(b, n, -1, SIZE).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = (t * turn[0] + torch.cat([-t[..., SIZE // 2 :], t[..., : SIZE // 2]], -1) * turn[1] for t in (q, k))
        seen = {"is_causal": True} if mask is None else {"attn_mask": mask}
        if self.written_out:
            mixed = F.scaled_dot_product_attention(q, repeated(k), repeated(v), **seen)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, **seen, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(b, n, -1))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Two of them between an embedding and a head."""

    def __init__(self, written_out: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, HEADS * SIZE), nn.Linear(HEADS * SIZE, 50, bias=False)
        self.layers = nn.ModuleList(Layer(written_out) for _ in range(2))
        self.norm = nn.RMSNorm(HEADS * SIZE)
        angles = torch.arange(TOKENS)[:, None] * 10000.0 ** (-torch.arange(0, SIZE, 2) / SIZE)
        self.register_buffer("turn", torch.stack([f(torch.cat([angles, angles], -1)) for f in (torch.cos, torch.sin)]))

    def forward(self, tokens: torch.Tensor, mask: Any = None) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, (self.turn[0], self.turn[1]), mask)
        return self.head(self.norm(x))


def inputs(kind: str) -> dict[str, Any]:
    """Tokens, and for all but causal masks one that pads the second text on the left."""
    tokens = torch.randint(0, 50, (BATCH, TOKENS))
    if kind == "causal":
        return {"tokens": tokens}
    seen = torch.ones(BATCH, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
    seen[1, :, :, :7] = False
    seen[1, 0].fill_diagonal_(True)
    low = {"numbers": -math.inf, "least": torch.finfo(torch.float32).min}
    return {
        "tokens": tokens,
        "mask": seen if kind == "bools" else torch.zeros(seen.shape).masked_fill(~seen, low[kind]),
    }


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("written_out", [False, True], ids=["enable_gqa", "repeat_kv"])
def test_follows_eager(written_out: bool, kind: str, train: bool) -> None:
    """Results and all gradients; nothing runs through torch."""
    torch.manual_seed(0)
    done = follow(Decoder(written_out), inputs(kind), train=train)
    assert not done.wrong
    assert done.operators and not done.fallbacks and not done.breaks


def networks(module: nn.Module, given: dict[str, Any]) -> list[Network]:
    """The graphs of a training step, as they are when code is made."""
    backend, kept = keeping()
    torch._dynamo.reset()
    fast = torch.compile(module, backend=backend)
    fast(**given).sum().backward()
    return kept


@pytest.mark.parametrize("kind", MASKS)
def test_keys_are_not_repeated(kind: str) -> None:
    """By bytes: both ways to write it move the same, and attention reads every key and value once, and adds up their gradients."""
    torch.manual_seed(0)
    moved = []
    for written_out in (False, True):
        forward, backward = networks(Decoder(written_out), inputs(kind))
        for net in (forward, backward):
            attentions = [op for op in net.ops() if isinstance(op.spec, AttentionSpec)]
            assert [op.spec.group for op in attentions] == [HEADS // KEYS] * 2
            for op in attentions:
                reads, writes = op.spec.footprint()
                first = 2 if op.spec.grads else 1
                assert reads[first : first + 2] == (ONE, ONE)
                assert not op.spec.grads or writes[1:3] == (ONE, ONE)
        moved.append((forward.bytes_moved(), backward.bytes_moved()))
    # What is kept for the backward may be the keys in the shape of a view, written beside them. Repeating would write three times the keys
    # and values of two layers, and read them again, in both directions.
    assert all(0 <= b - a <= 2 * ONE for a, b in zip(*moved, strict=True)), moved
