"""Predicted bytes: what is counted of a network, that layouts and libraries' copies are seen, and how much batch-norm networks move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dcir.cost.cuda import SETTING, TWIN
from dcir.driver.measure.predicted_bytes import (
    COPIED,
    POINTWISE,
    PRODUCTS,
    REDUCTIONS,
    TURNED,
    Traffic,
    predicted_bytes,
)
from dcir.options import Options

pytestmark = pytest.mark.in_turn(3)


@pytest.fixture(autouse=True)
def twin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The target is one without a GPU."""
    monkeypatch.setenv(SETTING, TWIN)
    torch._dynamo.reset()
    yield
    torch.set_default_dtype(torch.float32)


class Residual(nn.Module):
    """A block of two normalised convolutions, and what goes around it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.first, self.second = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(self.one(x)).relu()
        return (x + self.second(self.two(y))).relu()


class Network(nn.Module):
    """Blocks, and a loss."""

    def __init__(self, channels: int = 32, blocks: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.blocks = nn.Sequential(*(Residual(channels) for _ in range(blocks)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.norm(self.stem(x)).relu()).float().mean()


def predicted(dtype: torch.dtype = torch.float32, *, train: bool = True, level: int = 4) -> Traffic:
    """Of tensors that this machine has no memory for."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.set_grad_enabled(train):
        torch.set_default_dtype(dtype)
        model, x = Network().train(train), torch.randn(4096, 3, 56, 56)
        return predicted_bytes(model, [x], Options.make(level=level, target="cuda"))


def test_convolutions_count_as_they_are() -> None:
    found, image = predicted(train=False), 4096 * 56 * 56 * 4
    weights = 4 * 9 * (3 * 32 + 8 * 32 * 32)
    assert found.activations == 9 * 32 * image
    assert found.floor == found.by_kind[PRODUCTS] == (3 + 8 * 32 + 9 * 32) * image + weights


def test_a_library_that_has_to_turn_images_around_is_seen() -> None:
    """Of half types without a choice of layouts all are turned; with it the photograph alone."""
    before, after = predicted(torch.bfloat16, level=2), predicted(torch.bfloat16)
    assert before.by_kind[TURNED] > 9 * before.activations
    assert after.by_kind[TURNED] <= 0.05 * after.activations


def test_results_that_are_copied_are_seen() -> None:
    """Below the level that lets libraries keep what they make."""
    assert predicted(level=3).by_kind[COPIED] > 1.5 * predicted().activations
    assert predicted().by_kind[COPIED] <= 0.01 * predicted().activations


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_training_step_of_normalised_convolutions(dtype: torch.dtype) -> None:
    """A convolution has 6 times its results to move, batch norm and activation by kernels of their own 8 times; every second one has a
    sum behind it, which is read and written, masks its gradient, and adds to it: 4 times the more."""
    found = predicted(dtype)
    assert 5.5 < found.by_kind[PRODUCTS] / found.activations < 6.5
    assert found.by_kind[REDUCTIONS] + found.by_kind[POINTWISE] <= 10.5 * found.activations
