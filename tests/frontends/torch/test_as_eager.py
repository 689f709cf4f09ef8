"""What PyTorch's decompositions compute otherwise than its kernels is computed as by these (recurrent layers: test_long_recurrent)."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dcir
from tests.harness import check_close


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("shape", [(5,), (3, 5)])
def test_the_margin_loss_of_a_vector_is_a_number(shape: tuple[int, ...], inference: bool, reduction: str) -> None:
    torch._dynamo.reset()
    loss = nn.MultiLabelMarginLoss(reduction=reduction)
    fast = dcir.optimize(loss)
    target = torch.tensor([1, 3, -1, 0, 2]).expand(shape)
    seen = []
    for m in (loss, fast):
        x = torch.linspace(-1, 1, 5).expand(shape).clone().requires_grad_(not inference)
        with torch.inference_mode(inference):
            y = m(x, target)
        if not inference:
            y.sum().backward()
        seen.append([y.detach(), x.grad if x.grad is not None else torch.zeros(1)])
    torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("rows", [(), (1,), (3,)], ids=str)
def test_margin_losses_of_rows_and_vectors(rows: tuple[int, ...], reduction: str, inference: bool) -> None:
    """A vector of scores has a target with or without a dimension for rows."""
    torch._dynamo.reset()
    classes = torch.arange(math.prod(rows)).reshape(rows) % 4
    shape = rows if rows != (1,) else ()
    losses: list[tuple[nn.Module, torch.Tensor]] = [
        (nn.MultiMarginLoss(2, margin=0.7, weight=torch.arange(5.0), reduction=reduction), classes),
        (nn.MultiLabelMarginLoss(reduction=reduction), torch.tensor([1, 3, -1, 0, 2]).expand(*shape, 5)),
    ]
    for loss, target in losses:
        seen = []
        for m in (loss, dcir.optimize(loss)):
            x = torch.linspace(-1, 1, 5).expand(*shape, 5).clone().requires_grad_(not inference)
            with torch.inference_mode(inference):
                y = m(x, target)
            if not inference:
                y.sum().backward()
            seen.append([y.detach(), x.grad if x.grad is not None else torch.zeros(1)])
        torch.testing.assert_close(seen[1], seen[0])


class Turned(nn.Module):
    """Images turned by maps that are read off them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = F.affine_grid(x[:, 0, :2, :3], list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)


class Volumes(nn.Module):
    """Grids of volumes for maps that are read off images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.affine_grid(x[:, 0, :3, :4], [x.shape[0], 1, 3, 2, x.shape[3]], align_corners=True)


class Smoothed(nn.Module):
    """Images of another size, bicubic with antialiasing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=(5, 20), mode="bicubic", antialias=True)


@pytest.mark.parametrize("kind", [Turned, Volumes, Smoothed])
def test_gradients_of_moving_sizes_where_pytorch_has_them_for_constant_ones(kind: type[nn.Module]) -> None:
    torch._dynamo.reset()
    net = kind()
    fast = dcir.optimize(net)
    for shape in [(2, 3, 6, 6), (2, 3, 8, 6), (3, 3, 9, 8), (1, 3, 5, 7)]:
        torch.manual_seed(0)
        data = torch.randn(shape)
        seen = []
        for m, x in ((fast, data), (net, data), (net, data.double())):
            leaf = x.clone().requires_grad_()
            y = m(leaf)
            y.sin().sum().backward()
            assert leaf.grad is not None
            seen.append((y.detach(), leaf.grad))
        for got, want, exact in zip(*seen, strict=True):
            check_close(got, want, exact)


def test_nothing_of_torch_is_changed_afterwards() -> None:
    aten = torch.ops.aten
    changed = (
        aten.multi_margin_loss.default, aten.multilabel_margin_loss_forward.default, aten.affine_grid_generator.default,
        aten._upsample_bicubic2d_aa_backward.default,
    )  # fmt: skip

    def state() -> tuple[list[dict[object, object]], object]:
        return [dict(op.py_kernels) for op in changed], torch._decomp.decompositions.select_one_layer_lstm_function

    before = state()
    dcir.optimize(nn.MultiLabelMarginLoss())(torch.zeros(5), torch.zeros(5, dtype=torch.int64))
    assert state() == before
