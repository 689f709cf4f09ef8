"""Networks of half types whose products run in kernels of the target's own: forward, gradients, and switched off."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dcir
from dcir.cost.cuda import SETTING, TWIN
from tests.harness import check_close

pytestmark = pytest.mark.in_turn(3)


@pytest.fixture(autouse=True)
def twin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels run on the CPU."""
    monkeypatch.setenv(SETTING, TWIN)
    torch._dynamo.reset()
    yield


class Bottleneck(nn.Module):
    """Convolutions of one tap with norms between them, and what they read added to what they make."""

    def __init__(self, channels: int = 24, inside: int = 40) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, inside, 1, bias=False), nn.BatchNorm2d(inside), nn.ReLU(),
            nn.Conv2d(inside, inside, 3, padding=1, groups=inside, bias=False), nn.BatchNorm2d(inside), nn.ReLU6(),
            nn.Conv2d(inside, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


def blocks(dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 24, 3), nn.BatchNorm2d(24), nn.ReLU(), Bottleneck(), Bottleneck())
    x = torch.randn(2, 3, 22, 26)  # smaller norms are one kernel, which reads its rows from near memory again
    return model.to(dtype).to(memory_format=torch.channels_last), x.to(dtype).to(memory_format=torch.channels_last)


def layers(dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24), nn.LayerNorm(24)).to(dtype), torch.randn(
        9, 24
    ).to(dtype)


def fused(model: Any) -> int:
    """How many products have neighbours inside, in all graphs."""
    return sum(p.changed for g in model.dcir.explain().graphs for p in g.passes if p.name == "fuse-around-products")


@pytest.mark.parametrize(("make", "dtype"), [(blocks, torch.bfloat16), (layers, torch.float16)])
def test_inference(make: Any, dtype: torch.dtype) -> None:
    model, x = make(dtype)
    model.eval()
    fast = dcir.optimize(model, target="cuda")
    with torch.no_grad():
        check_close(fast(x), model(x), copy.deepcopy(model).double()(x.double()))
    assert fused(fast) >= 1


@pytest.mark.parametrize("make", [blocks, layers])
def test_gradients(make: Any) -> None:
    """Of every parameter and of the input."""
    model, x = make(torch.bfloat16)
    plain, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    fast = dcir.optimize(model, target="cuda")
    given = [t.clone().requires_grad_() for t in (x, x, x.double())]
    for m, t in zip((fast, plain, exact), given, strict=True):
        m(t).square().mean().backward()
    assert fused(fast) >= 2
    pairs = [(name, p.grad, q.grad, e.grad) for (name, p), q, e in zip(
        model.named_parameters(), plain.parameters(), exact.parameters(), strict=True,
    )]  # fmt: skip
    for what, got, near, right in [*pairs, ("input", *(t.grad for t in given))]:
        check_close(got, near, right, factor=4, units=32, what=what)


def test_it_can_be_switched_off() -> None:
    model, x = blocks(torch.bfloat16)
    model.eval()
    fast = dcir.optimize(model, target="cuda", remarks=True)
    with torch.no_grad():
        fast(x)
        sites = [
            r.remark.site
            for r in fast.dcir.remarks()
            if r.remark.by == "fuse-around-products" and r.remark.kind == "passed"
        ]
        other = dcir.optimize(model, target="cuda", skip=sites)
        other(x)
    assert sites and fused(other) < fused(fast)
