"""What PyTorch's decompositions compute otherwise than its kernels is computed as by these (recurrent layers: test_long_recurrent)."""

from __future__ import annotations

import copy
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


NORMS = {
    "batch": nn.BatchNorm1d(6),
    "without statistics": nn.BatchNorm1d(6, track_running_stats=False),
    "group": nn.GroupNorm(3, 6),
}


def _norm(name: str) -> nn.Module:
    net = copy.deepcopy(NORMS[name])
    with torch.no_grad():
        for number, p in enumerate(net.parameters()):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(number)))
    return net


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_statistics_of_halves_are_kept_in_float32(name: str, dtype: torch.dtype) -> None:
    """With weights of float32, whatever another backend has found out of the same shapes, and for sizes that move."""
    torch._dynamo.reset()
    net = _norm(name)
    fast, exact = dcir.optimize(copy.deepcopy(net)), copy.deepcopy(net).double()
    for length in (40, 40, 30, 50):
        x = (torch.randn(4, 6, length, generator=torch.Generator().manual_seed(length)) * 0.5 + 1).to(dtype)
        if length == 40:
            torch.compile(net, backend="aot_eager")(x.clone().requires_grad_())
        seen = []
        for m, data in ((fast, x), (net, x), (exact, x.double())):
            m.zero_grad()
            leaf = data.clone().requires_grad_()
            m(leaf).cos().double().sum().backward()
            assert leaf.grad is not None
            # The sum of a channel's gradients, which is small, is what a layer below gets for its bias.
            grads = [p.grad for p in m.parameters() if p.grad is not None]
            seen.append([leaf.grad, *grads, leaf.grad.double().sum((0, 2))])
        for got, want, right in zip(*seen, strict=True):
            check_close(got, want, right)


@pytest.mark.parametrize("name", NORMS)
def test_statistics_of_halves_in_whole_steps(name: str) -> None:
    torch._dynamo.reset()
    net = _norm(name)
    x = (torch.randn(4, 6, 40, generator=torch.Generator().manual_seed(1)) + 1).bfloat16()
    seen = []
    for m, data in ((copy.deepcopy(net), x), (copy.deepcopy(net), x), (copy.deepcopy(net).double(), x.double())):
        optimizer = torch.optim.SGD(m.parameters(), lr=1.0)
        if not seen:
            dcir.train_step(m, lambda y, w: (y.cos().float() * w).sum(), optimizer)(data, torch.ones(40))
        else:
            m(data).cos().to(torch.promote_types(data.dtype, torch.float32)).sum().backward()
            optimizer.step()
        seen.append([p.detach() for p in m.parameters()])
    for got, want, right in zip(*seen, strict=True):
        check_close(got, want, right)


def test_nothing_of_torch_is_changed_afterwards() -> None:
    aten = torch.ops.aten
    changed = (
        aten.multi_margin_loss.default, aten.multilabel_margin_loss_forward.default, aten.affine_grid_generator.default,
        aten._upsample_bicubic2d_aa_backward.default, aten.native_group_norm.default,
    )  # fmt: skip

    def state() -> tuple[list[dict[object, object]], object]:
        return [dict(op.py_kernels) for op in changed], torch._decomp.decompositions.select_one_layer_lstm_function

    before = state()
    dcir.optimize(nn.MultiLabelMarginLoss())(torch.zeros(5), torch.zeros(5, dtype=torch.int64))
    assert state() == before
