"""What both processes do with a small transformer whose blocks ``fully_shard`` shards: many steps in PyTorch and compiled."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.nn import functional as F

import dcir
from tests.distributed import sharded

WORDS, WIDTH, HEADS, LENGTH = 40, 32, 4, 12


class Block(nn.Module):
    """Causal attention and two dense layers, each around a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.triple, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.triple(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))
        result: Tensor = x + self.narrow(F.gelu(self.wide(self.norm2(x))))
        return result


class Transformer(nn.Module):
    """Two blocks over words with places, and the next word of each."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.last = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.last(x)
        return result


def transformer(compiled: bool) -> Any:
    """The blocks and the rest sharded, compiled block by block."""
    torch.manual_seed(0)
    model = Transformer().double()
    if compiled:
        for number, block in enumerate(model.blocks):
            model.blocks[number] = dcir.optimize(block)
    sharded.shard(model, layers=True)
    return model


def step(model: Any, optimizer: torch.optim.Optimizer, rank: int, number: int) -> Tensor:
    words = torch.randint(WORDS, (4, LENGTH + 1), generator=torch.Generator().manual_seed(100 * number + rank))
    loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def trained(rank: int) -> tuple[Counter[str], list[float]]:
    """Twenty steps with clipping by the norm over all processes. After ten, either goes on from what the other one has saved."""
    models = [transformer(compiled) for compiled in (False, True)]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in models]
    losses: list[list[Tensor]] = [[], []]
    for number in range(20):
        for found, model, optimizer in zip(losses, models, optimizers, strict=True):
            found.append(step(model, optimizer, rank, number))
        if number == 9:
            options = StateDictOptions(full_state_dict=True)
            saved = [
                (get_model_state_dict(m, options=options), get_optimizer_state_dict(m, o, options=options))
                for m, o in zip(models, optimizers, strict=True)
            ]
            models = [transformer(compiled) for compiled in (False, True)]
            optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in models]
            whole = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
            for m, o, (parameters, state) in zip(models, optimizers, reversed(saved), strict=True):
                set_model_state_dict(m, parameters, options=whole)
                set_optimizer_state_dict(m, o, state, options=whole)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-7, atol=1e-9)
    for e, f in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(sharded.whole(f), sharded.whole(e), rtol=1e-6, atol=1e-8)
    return sharded.graphs(models[1]), [found.item() for found in losses[1]]
