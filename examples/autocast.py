"""A training step of a small language model in float32 and under autocast to bfloat16, eager PyTorch, inductor and dcir in turn.

python examples/autocast.py [--threads 1] [--steps 9]: 4 layers, 512 wide, 4 sequences of 128 words, AdamW; medians, and the losses of the
first steps.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dcir

WORDS, WIDTH, HEADS, LAYERS = 8000, 512, 8, 4


class Block(nn.Module):
    """Attention over what came before, and two layers with GELU, each around a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    """Words (batch, length) to scores of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(words))))


def main() -> None:
    """Losses and times, a line for each."""
    parser = argparse.ArgumentParser(description="a training step under autocast")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=9)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    plain, words, following = LanguageModel(), *torch.randint(0, WORDS, (2, 4, 128))
    ways: dict[str, Callable[[nn.Module], Callable[..., Tensor]]] = {
        "eager": lambda module: module,
        "inductor": torch.compile,
        "dcir": dcir.optimize,
    }
    steps: dict[str, Callable[[], float]] = {}
    for way, compiled in ways.items():
        for half in (False, True):
            steps[f"{way}{', autocast' if half else ''}"] = _step(
                compiled, copy.deepcopy(plain), words, following, half
            )
    for name, step in steps.items():
        print(f"{name}: losses", *(f"{step():.4f}" for _ in range(4)))
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(chosen.steps):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    for name, taken in times.items():
        print(f"{name}: {1e3 * statistics.median(taken):.1f} ms a step (median, least {1e3 * min(taken):.1f})")


def _step(
    compiled: Callable[[nn.Module], Callable[..., Tensor]],
    module: nn.Module,
    words: Tensor,
    following: Tensor,
    half: bool,
) -> Callable[[], float]:
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-4)
    fast = compiled(module)

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            scores = fast(words)
        loss = F.cross_entropy(scores.float().flatten(0, 1), following.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return loss.item()

    return step


if __name__ == "__main__":
    main()
