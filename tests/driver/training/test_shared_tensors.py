"""train_step where tensors are shared: modules of two names, batches of one tensor, batches in the model's own memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import dcir
from dcir.errors import Unsupported


class _TwoNames(nn.Module):
    """A layer and a norm that are members themselves and of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.layers = nn.Sequential(self.layer, self.norm, nn.Tanh(), self.layer)

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        return self.norm(self.layers(x)) + shift


class _OfModel(nn.Module):
    """A loss that holds the model, too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        return (y - target).square().mean() + sum(p.square().sum() for p in self.model.parameters()) / 100


@pytest.mark.parametrize("holds", ["nothing", "model"])
def test_modules_of_two_names(holds: str) -> None:
    """They keep their own tensors and are trained once; what is one tensor in the first batch is two in later ones."""
    torch.manual_seed(0)
    model = _TwoNames().double()
    twin = copy.deepcopy(model)
    own = dict(model.named_parameters(remove_duplicate=False))
    loss, eager = (_OfModel(m) if holds == "model" else nn.functional.mse_loss for m in (model, twin))
    step = dcir.train_step(model, loss, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    theirs = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    a, b, c = torch.randn(3, 5, 4, dtype=torch.float64)
    for batch in ((a, a, b), (a, c, b), (b, c, b)):
        expected = eager(twin(*batch[:-1]), batch[-1])
        expected.backward()
        theirs.step()
        theirs.zero_grad()
        torch.testing.assert_close(step(*batch), expected.detach())
    for (name, got), want in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}")
    assert all(p is own[n] for n, p in model.named_parameters(remove_duplicate=False))
    assert len(step._compiled) == 1


class _Shifted(nn.Module):
    """What it adds may be its own running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        return self.norm(x) + shift


def test_a_batch_in_memory_that_the_model_writes_is_refused() -> None:
    model = _Shifted()
    own = dict(model.named_buffers())
    step = dcir.train_step(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(Unsupported, match="share storage"):
        step(torch.randn(5, 4), model.norm.running_mean, torch.randn(5, 4))
    assert all(b is own[n] for n, b in model.named_buffers())
    step(torch.randn(5, 4), torch.randn(4), torch.randn(5, 4))
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with pytest.raises(Unsupported, match="a step writes"):
        step(torch.randn(5, 4), model.norm.running_mean, torch.randn(5, 4))
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


class _Layers(nn.Module):
    """Two layers, whose weights may be parts of one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


@pytest.mark.parametrize("how", ["same", "transposed"])
@pytest.mark.parametrize("when", ["before", "between"])
def test_two_parameters_of_one_memory_are_refused(how: str, when: str) -> None:
    model = _Layers()
    step = dcir.train_step(
        model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5)
    )
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    own = model.b.weight.data
    if when == "between":
        step(x, y)
    model.b.weight.data = model.a.weight.data if how == "same" else model.a.weight.data.t()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with pytest.raises(Unsupported, match=r"(?s)share memory.*a\.weight and b\.weight.*b\.weight = a\.weight"):
        step(x, y)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    model.b.weight.data = own
    step(x, y)
    model.b.weight = model.a.weight
    step(x, y)


def test_columns_of_one_matrix_are_apart() -> None:
    whole = torch.randn(4, 8)
    model = _Layers()
    model.a.weight.data, model.b.weight.data = whole[:, :4], whole[:, 4:]
    twin = copy.deepcopy(model)
    step = dcir.train_step(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))
    theirs = torch.optim.SGD(twin.parameters(), lr=0.1)
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    nn.functional.mse_loss(twin(x), y).backward()
    theirs.step()
    step(x, y)
    torch.testing.assert_close(whole, torch.cat([twin.a.weight, twin.b.weight], 1).detach())


def test_what_is_not_written_may_be_shared() -> None:
    model = _Layers()
    model.b.weight.data = model.a.weight.data
    model.a.weight.requires_grad_(False)
    model.b.weight.requires_grad_(False)
    step = dcir.train_step(model, nn.functional.mse_loss, torch.optim.SGD([model.a.bias, model.b.bias], lr=0.1))
    assert step(torch.randn(5, 4), torch.randn(5, 4)).isfinite()
