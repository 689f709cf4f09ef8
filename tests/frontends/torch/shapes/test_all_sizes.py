"""Traces for all sizes: floats are constants, as they mostly are, until a program changes them; equal sizes are sizes of their own."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo import config
from torch._dynamo.utils import counters

import dcir
from dcir.frontends.torch.shapes.all_sizes import AllSizes
from tests.driver.test_moving_program import programs
from tests.harness import check_close

SIZES = ((2, 3, 20, 26), (3, 3, 33, 18), (1, 3, 24, 30))


def test_what_is_asked_of_a_float_is_no_matter_of_sizes() -> None:
    """A ReLU6 asks whether its limits are 0 and 6."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU6(), nn.Conv2d(16, 8, 1)).eval()
    fast = dcir.optimize(net, dynamic=True)
    for size in SIZES:
        x = torch.randn(size)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), net(x))
    for size in SIZES:
        fast(torch.randn(size)).square().sum().backward()
    moving, constant = programs(fast)
    assert sorted(g.kind for g in moving) == ["backward", "forward", "inference"] and not constant


def test_a_square_is_an_image_like_others() -> None:
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 8, 1)).eval()
    fast = dcir.optimize(net, dynamic=True)
    for size in ((2, 3, 20, 20), (3, 3, 26, 26), (1, 3, 24, 30), (8, 3, 8, 8)):
        x = torch.randn(size)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), net(x))
    moving, constant = programs(fast)
    assert len(moving) == 1 and not constant


def test_a_float_that_changes_does_not_compile_for_ever() -> None:
    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        return torch.tanh(x) * by + by

    fast = dcir.optimize(scaled, dynamic=True)
    before = counters["frames"]["total"]
    for k in range(20):
        x = torch.randn(5 + k % 3, 7)
        torch.testing.assert_close(fast(x, k / 8), scaled(x, k / 8))
    assert counters["frames"]["total"] - before <= 6


def test_others_keep_their_wish() -> None:
    wanted = config.specialize_float
    floats = AllSizes(on=True)
    for k in range(6):
        with floats.tracing():
            assert config.specialize_float is (True if k < 4 else wanted)
            counters["frames"]["total"] += 1
        assert config.specialize_float is wanted
    assert floats.on and not floats.constants


class _Labelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.out(self.words(ids)).flatten(0, 1), labels.flatten())


def test_sizes_that_can_only_move_together() -> None:
    """Labels are as many as words; of both inputs together that is known, of no size by itself."""
    net = _Labelled()
    fast, made = dcir.optimize(net), []
    for batch, length in ((2, 12), (3, 17), (2, 9), (4, 23)):
        given = [torch.randint(0, 50, (batch, length)) for _ in range(2)]
        gradients = []
        for called in (fast, net):
            net.zero_grad()
            called(*given).backward()
            gradients.append([p.grad for p in net.parameters()])
        torch.testing.assert_close(*gradients)
        made.append(len(fast.dcir.explain().graphs))
    assert made == [2, 4, 4, 4]


FLATTENED = [(5, 28, 28), (3, 28, 28), (12, 28, 28), (7, 28, 28), (4, 29, 31), (6, 29, 31)]
"""Images; from 16 on PyTorch asks whether another of its kernels is to run."""


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_images_that_are_flattened_are_of_one_size_and_any_number(
    train: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a linear layer or its backward asks of heights and widths makes constants of those, quietly, and where a graph was kept, too."""
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))
    exact = copy.deepcopy(net).double()
    for kept in (False, True):
        torch._dynamo.reset()
        fast = dcir.optimize(copy.deepcopy(net), dynamic=True, keep_graphs=True)
        for step, size in enumerate(FLATTENED):
            x = torch.randn(size).unsqueeze(1)
            with warnings.catch_warnings(), torch.set_grad_enabled(train):
                warnings.simplefilter("error" if step < 4 else "ignore")
                check_close(fast(x), net(x), exact(x.double()), what=f"{size}")
                for module, given in ((net, x), (fast, x), (exact, x.double())) if train else ():
                    module.zero_grad()
                    module(given).square().mean().backward()
            for (name, p), want, true in zip(
                fast.named_parameters(), net.parameters(), exact.parameters(), strict=True
            ):
                if train:
                    check_close(p.grad, want.grad, true.grad, what=f"{name} at {size}")
        moving, constant = programs(fast)
        kinds = ["backward", "backward", "forward", "forward"] if train else ["inference"] * 2
        assert sorted(g.kind for g in moving) == kinds and not constant
        assert ("as an earlier compilation left it" in str(fast.dcir.explain())) == kept
