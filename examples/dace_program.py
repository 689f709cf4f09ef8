"""An operator given as a program of DaCe: inside a PyTorch module, compiled, fused with its neighbours, trained through.

    python examples/dace_program.py

The program is a smooth, gated activation over the two halves of a row. DaCe's Python frontend parses it, dcir reads its maps as loop nests,
and PyTorch derives its gradient from these.
"""

from __future__ import annotations

import dace
import numpy as np
import torch
from torch import nn

import dcir

N, M = dace.symbol("N"), dace.symbol("M")


@dace.program
def gated(left: dace.float32[N, M], right: dace.float32[N, M]):
    """left * sigmoid(right) + left, element by element."""
    return left / (1.0 + np.exp(-right)) + left


class Block(nn.Module):
    """A linear layer whose result is gated by its other half."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)
        self.gated = dcir.dace_operator(gated)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.linear(x).chunk(2, -1)
        return self.gated(left, right).tanh()


def main(width: int = 256, rows: int = 64) -> float:
    """Train one step compiled and in eager PyTorch; the largest difference of a gradient over the largest gradient."""
    torch.manual_seed(0)
    model = Block(width)
    fast = dcir.optimize(model)
    x, worst = torch.randn(rows, width), 0.0
    gradients = []
    for f in (fast, model):
        model.zero_grad()
        f(x).square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for g, w in zip(*gradients, strict=True):
        worst = max(worst, float((g - w).abs().max() / w.abs().max()))
    for graph in fast.dcir.explain().graphs:
        print(f"{graph.kind}: {graph.operators} operators, {graph.calls} kernels, {len(graph.fallbacks)} through torch")
    print(f"largest error of a gradient {worst:.1e}")
    return worst


if __name__ == "__main__":
    main()
