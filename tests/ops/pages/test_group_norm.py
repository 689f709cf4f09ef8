"""Gradients of a group normalisation, summed: what every element has in common must not be lost."""

from __future__ import annotations

import torch

import dcir


def test_sums_of_gradients_are_as_near_as_eagers() -> None:
    """The gradient of a bias in front of the normalisation, for a loss that is a plain sum; root mean square of twelve draws."""

    def backward(
        g: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, root: torch.Tensor, w: torch.Tensor
    ) -> torch.Tensor:
        mask = [True, False, False]
        grad: torch.Tensor = torch.ops.aten.native_group_norm_backward(g, x, mean, root, w, 3, 4, 24, 1, mask)[0]
        return grad

    fast = dcir.optimize(backward)
    generator = torch.Generator().manual_seed(0)
    ours, eagers = [], []
    for _ in range(12):
        x = torch.randn(3, 4, 8, 3, generator=generator) / 4 + 0.3
        w = torch.randn(4, generator=generator)
        _, mean, root = torch.ops.aten.native_group_norm(x.double(), None, None, 3, 4, 24, 1, 1e-5)
        mean, root, g = mean.float(), root.float(), torch.ones_like(x)
        exact = backward(*(t.double() for t in (g, x, mean, root, w))).sum((0, 1, 2))
        for errors, got in ((ours, fast(g, x, mean, root, w)), (eagers, backward(g, x, mean, root, w))):
            errors.append((got.double().sum((0, 1, 2)) - exact).pow(2).mean())
    assert torch.stack(ours).mean().sqrt() <= 1.25 * torch.stack(eagers).mean().sqrt()
