"""Convolutions in channels last on the target "cuda", through the kernels' twin: numbers and gradients of eager, in every type."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import dcir
from dcir.cost.cuda import SETTING, TWIN
from tests.harness import check_close

pytestmark = pytest.mark.in_turn(3)
TYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def twin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels run on the CPU."""
    monkeypatch.setenv(SETTING, TWIN)
    torch._dynamo.reset()
    yield


class Bottleneck(nn.Module):
    """Normalised convolutions, one in groups, a pooling, a residual sum and what a ReLU masks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
        self.squeeze, self.group, self.widen = (
            nn.Conv2d(16, 8, 1, bias=False), nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False), nn.Conv2d(8, 16, 1, bias=False)
        )  # fmt: skip
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in (16, 8, 8, 16))
        self.pool, self.head = nn.MaxPool2d(3, 2, 1), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.norms[0](self.stem(x)).relu())
        y = self.norms[1](self.squeeze(x)).relu()
        y = self.norms[2](self.group(y)).relu()
        x = (x + self.norms[3](self.widen(y))).relu()
        return self.head(x.mean((2, 3)))


def network(dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    return Bottleneck().to(dtype), torch.randn(4, 3, 22, 18, dtype=dtype)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_inference(dtype: torch.dtype, last: bool) -> None:
    """Of images as the caller has them."""
    model, x = network(dtype)
    model.eval()
    x = x.to(memory_format=torch.channels_last) if last else x
    fast = dcir.optimize(model, target="cuda")
    with torch.no_grad():
        for _ in range(2):
            check_close(fast(x), model(x), copy.deepcopy(model).double()(x.double()), factor=4)
    (graph,) = fast.dcir.explain().graphs
    assert not graph.fallbacks
    assert last or any(p.name == "assign-layouts" and p.changed for p in graph.passes)
    assert any(p.name == "leave-results-to-libraries" and p.changed for p in graph.passes)


@pytest.mark.parametrize("dtype", TYPES)
def test_gradients(dtype: torch.dtype) -> None:
    """Of every parameter, twice."""
    model, x = network(dtype)
    exact, plain = copy.deepcopy(model).double(), copy.deepcopy(model)
    fast = dcir.optimize(model, target="cuda")
    for _ in range(2):
        for m, given in ((fast, x), (plain, x), (exact, x.double())):
            m.zero_grad()
            m(given).square().sum().backward()
    for (name, p), q, e in zip(model.named_parameters(), plain.named_parameters(), exact.parameters(), strict=True):
        check_close(p.grad, q[1].grad, e.grad, factor=4, units=64, what=name)
