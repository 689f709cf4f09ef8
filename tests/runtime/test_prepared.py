"""Prepared values: computed once, computed again when a parameter changed in whatever way, safe among threads."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dcir


class _Folded(nn.Module):
    """A product by what is computed from parameters and a buffer alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 16))
        self.scale = nn.Parameter(torch.rand(24))
        self.register_buffer("shift", torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (torch.tanh(self.weight) * torch.softmax(self.scale, 0)[:, None] + self.shift).t()


def _pair() -> tuple[nn.Module, Any, Tensor]:
    torch.manual_seed(0)
    model = _Folded().eval()
    fast = dcir.optimize(model)
    return model, fast, torch.randn(5, 16)


def _same(model: nn.Module, fast: Any, x: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


def test_is_prepared_and_reported() -> None:
    model, fast, x = _pair()
    _same(model, fast, x)
    (graph,) = fast.dcir.session.graphs
    assert graph.prepared_bytes >= 24 * 16 * 4
    assert "prepared" in str(fast.dcir.explain())
    assert graph.bytes_moved < 3 * (24 * 16 + 5 * 16 + 5 * 24) * 4


@pytest.mark.parametrize("way", ["in place", "data", "set data", "replaced", "state dict", "buffer", "optimiser"])
def test_follows_every_change(way: str) -> None:
    """Each way a user can change parameters shows in the next call."""
    model, fast, x = _pair()
    _same(model, fast, x)
    new = {k: torch.randn_like(v) for k, v in model.state_dict().items()}
    with torch.no_grad():
        if way == "in place":
            model.weight.mul_(2)
        elif way == "data":  # goes around the version counter
            model.weight.data.copy_(new["weight"])
        elif way == "set data":
            model.weight.data = new["weight"]
        elif way == "replaced":
            model.weight = fast.weight = nn.Parameter(new["weight"])
        elif way == "state dict":
            fast.load_state_dict(new)
        elif way == "buffer":
            model.shift.zero_()
    if way == "optimiser":
        optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
        model(x).square().sum().backward()
        optimiser.step()
    _same(model, fast, x)
    _same(model, fast, x)


def test_replaced_many_times() -> None:
    """New tensors that take over the address of freed ones are not mistaken for them."""
    model, fast, x = _pair()
    for _ in range(50):
        model.weight = fast.weight = nn.Parameter(torch.randn(24, 16))
        _same(model, fast, x)


def test_training_in_between() -> None:
    """Gradients and inference alternate."""
    model, fast, x = _pair()
    twin = copy.deepcopy(model)
    for _ in range(3):
        for m in (twin, fast):
            m.zero_grad()
            m(x).square().sum().backward()
            with torch.no_grad():
                for p in m.parameters():
                    p -= 0.1 * p.grad
        with torch.no_grad():
            torch.testing.assert_close(fast(x), twin(x))


def test_inference_mode_parameters() -> None:
    """Tensors whose writes nobody counts are prepared anew in every call."""
    with torch.inference_mode():
        model = _Folded().eval()
        fast, x = dcir.optimize(model), torch.randn(3, 16)
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x))
            model.weight.mul_(1.5)


def test_threads() -> None:
    """Calls from many threads while the parameter changes between rounds."""
    model, fast, x = _pair()
    _same(model, fast, x)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                _same(model, fast, x)
        except BaseException as e:
            errors.append(e)

    for _ in range(3):
        with torch.no_grad():
            model.weight.mul_(-1.1)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not errors
