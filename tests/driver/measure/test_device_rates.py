"""Rates of a GPU, and profiles with its clock: through the twin, whose clock is the host's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import dcir
from dcir.cache import Cache
from dcir.cost.cuda import SETTING, TWIN
from dcir.cost.device_rates import DeviceRates, remember_device, remembered_device
from dcir.driver.measure.device_rates import TWIN_NAME, device_rates, measure_device
from dcir.errors import OptionError

pytestmark = pytest.mark.in_turn(3)

RATES = DeviceRates("a GPU", 4e12, {"f32": 50e12, "bf16": 800e12}, measured=True)


@pytest.fixture(autouse=True)
def twin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels run on the CPU."""
    monkeypatch.setenv(SETTING, TWIN)
    torch._dynamo.reset()
    yield


def test_rates_are_kept_by_device(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert remembered_device("a GPU", cache) is None
    remember_device(RATES, cache)
    assert remembered_device("a GPU", cache) == RATES and remembered_device("another", cache) is None
    faster = DeviceRates("a GPU", 5e12, {"f32": 60e12}, measured=True)
    remember_device(faster, cache)
    assert remembered_device("a GPU", cache) == faster


@pytest.mark.parametrize(
    "data", [{}, {"name": "x", "memory": -1, "flops": {"f32": 1}, "measured": True}, {**RATES.to_json(), "flops": {}}]
)
def test_other_data_is_no_rates(data: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        DeviceRates.from_json(data)


def test_a_floor_is_the_longer_of_work_and_traffic() -> None:
    assert RATES.floor_seconds(0, 4_000_000_000_000) == 1.0
    assert RATES.floor_seconds(50_000_000_000_000, 8) == 1.0
    assert RATES.floor_seconds(800_000_000_000_000, 8, dtype="bf16") == 1.0
    assert RATES.floor_seconds(50_000_000_000_000, 8, dtype="i8") == 1.0


def test_measuring(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert not device_rates(cache).measured
    found = measure_device(cache=cache)
    assert found.measured and found.name == TWIN_NAME and found.memory > 0 and set(found.flops) >= {"f32", "bf16"}
    assert measure_device(cache=cache) == found == device_rates(cache)
    assert "TFLOP/s" in found.to_text()


def test_a_machine_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(SETTING, "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError, match="no GPU"):
        measure_device(cache=Cache(tmp_path))


def test_a_profile_has_every_kernel_and_every_call_of_a_library() -> None:
    """With rates, and what the device could do."""
    model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 16))
    fast = dcir.optimize(model.eval(), target="cuda")
    x = torch.randn(32, 64)
    with torch.no_grad():
        fast(x)
        found = fast.dcir.profile(x, seconds=0.05)
    (graph,) = fast.dcir.explain().graphs
    assert len(found.steps) == graph.calls and found.device == TWIN_NAME
    assert all(s.ms > 0 for s in found.steps) and found.team_ms == 0
    products = [s for s in found.steps if s.torch]
    assert len(products) == 2 and all(s.flops >= 2 * 32 * 64 * 16 for s in products)
    text = str(found)
    assert TWIN_NAME in text and "GB/s" in text and "threads" not in text and "by a library" in text


def test_a_profile_of_a_training_step_has_both_graphs() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
    fast = dcir.optimize(model, target="cuda")
    found = fast.dcir.profile(torch.randn(8, 16), seconds=0.05, loss=lambda y: y.square().sum())
    assert sorted(found.graphs) == ["backward", "forward"] and all(s.ms > 0 for s in found.steps)


@pytest.mark.parametrize("own", [True, False])
def test_of_products_of_half_types_the_peak_is_theirs(own: bool) -> None:
    fast = dcir.optimize(
        nn.Linear(16, 16, bias=own).bfloat16().eval(), target="cuda"
    )  # a bias is what fits into one of ours
    with torch.no_grad():
        found = fast.dcir.profile(torch.randn(8, 16, dtype=torch.bfloat16), seconds=0.05)
    assert [s.dtype for s in found.steps if s.flops >= 2 * 8 * 16 * 16] == ["bf16"]
    assert any(s.torch for s in found.steps) != own
