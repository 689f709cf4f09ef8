"""That ``follow`` sees what is a little off, also in results of many elements, and lets nothing pass because its own reference is off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import dcir
from tests.endtoend.follows_eager import _compare, follow


class _Off(nn.Module):
    """A module whose gradients, or results, are off by a hundredth of a per cent."""

    def __init__(self, module: nn.Module, off: str) -> None:
        super().__init__()
        self.module, self.off, self.dcir = module, off, module.dcir

    def forward(self, input: torch.Tensor) -> Any:
        """What the module gives, nearly."""
        out = self.module(input)
        more = out * 1.0001
        return out if self.off == "nothing" else more if self.off == "results" else more + (out - more).detach()

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        """Of the module, by the module's names."""
        return self.module.named_parameters(*args, **kwargs)


@pytest.mark.parametrize("off", ["nothing", "results", "gradients"])
@pytest.mark.parametrize("rows", [1, 8])
def test_what_is_off_is_seen(off: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of 3 and of 64 elements: PyTorch's random numbers depend on that."""
    optimize = dcir.optimize
    monkeypatch.setattr(
        "tests.endtoend.follows_eager.dcir.optimize", lambda m, **options: _Off(optimize(m, **options), off)
    )
    torch.manual_seed(0)
    done = follow(nn.Linear(5, 3 if rows == 1 else 8), {"input": torch.randn(rows, 5)}, train=True)
    assert bool(done.wrong) == (off != "nothing"), done.wrong
    assert all(not name.startswith("out") for name in done.wrong) or off == "results"


def test_one_lucky_rounding_of_eagers_is_not_the_measure() -> None:
    """A loss of mobilevit's, as it was found: what eager is off by depends on how it rounds; ten times as much is wrong either way."""
    exact, off = torch.tensor([9.05e-3], dtype=torch.float64), torch.tensor([2.65e-8], dtype=torch.float64)
    lucky, others = exact + 5e-10, [exact + error for error in (9.7e-9, -1.6e-8, 8.9e-9, 3.3e-8)]
    near = [exact + 1e-10]
    assert _compare("loss", exact + off, [lucky], exact, near, 0.0).wrong
    assert not _compare("loss", exact + off, [lucky, *others], exact, near, 0.0).wrong
    assert _compare("loss", exact + 10 * off, [lucky, *others], exact, near, 0.0).wrong


class _Edge(nn.Module):
    """A ReLU with an operand at its kink: by the sign of it, a row of a gradient has one summand more or less."""

    def __init__(self, x: torch.Tensor, above: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(x.shape[1], 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.first.bias[0] = above - (x[0].double() @ self.first.weight[0].double())
        self.way = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.first(x)
        if self.way:  # what lies at the kink goes this way
            before = torch.where(before.abs() < 3e-6, torch.full_like(before, self.way), before)
        return self.second(torch.relu(before))


def _followed(above: float, way: float, factor: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is wrong with a run that goes ``way`` at the kink, and has the gradient of another weight ``factor`` times as large."""
    torch.manual_seed(5)
    x = torch.randn(6, 40)

    def optimize(module: _Edge) -> _Edge:
        module.way = way
        module.second.weight.register_hook(lambda g: g * factor)
        report = type("Report", (), {"fallbacks": [], "breaks": [], "graphs": []})
        module.dcir = type("Handle", (), {"explain": staticmethod(lambda: report)})
        return module

    monkeypatch.setattr("tests.endtoend.follows_eager.dcir.optimize", optimize)
    return follow(_Edge(x, above), {"x": x}, train=True).wrong


@pytest.mark.parametrize("way", [-1e-9, 1e-9])
def test_what_rounding_decides_may_go_either_way(way: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _followed(0.0, way, 1.0, monkeypatch)


def test_a_defect_is_seen_beside_a_kink(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = _followed(0.0, -1e-9, 1.001, monkeypatch)
    assert [name.partition(":")[0] for name in wrong] == ["second.weight.grad"]


@pytest.mark.parametrize(("goes", "passes"), [(9, True), (100, False)])
def test_one_of_eagers_runs_that_goes_the_same_way_is_enough(
    goes: int, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operand that is seldom taken for one on the other side: what no run of eager's does is wrong."""

    class Disturbed(TorchDispatchMode):
        """One run of several goes the other way."""

        def __init__(self, seed: int) -> None:
            super().__init__()
            self.other = seed == goes

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if self.other and func is torch.ops.aten.relu.default:
                args = (torch.where(args[0].abs() < 3e-6, -args[0], args[0]),)
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr("tests.endtoend.follows_eager._Disturbed", Disturbed)
    wrong = _followed(2e-6, -1e-9, 1.0, monkeypatch)
    assert bool(wrong) != passes, wrong
