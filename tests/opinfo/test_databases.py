"""PyTorch's modules and higher-order operators through dcir: a part of them in turn, and those that once went wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dcir

pytest.importorskip("expecttest", reason="PyTorch's test databases import expecttest: pip install -e '.[test]'")

from tests.opinfo.check import NATIVE, NOTHING, PASS, REFUSED, SILENT, SKIPPED, WRONG, _exact, _run, check, check_calls
from tests.opinfo.entries import higher_order
from tests.opinfo.modules import ModuleCall, modules
from tests.rotation import chosen

ONCE_WRONG = ("module:nn.LazyConv1d 0 train", "module:nn.LSTM 0 train", "module:nn.MultiLabelMarginLoss 6 train")
ONCE_REFUSED = (
    "higher_order:invoke_quant-simple",
    "higher_order:auto_functionalize-simple",
    "higher_order:while_loop_stack_output-simple",
)


@pytest.mark.parametrize("name", list(dict.fromkeys([*ONCE_WRONG, *chosen(modules(), 6)])))
def test_module(name: str) -> None:
    """It follows eager; what of it is not compiled, is told."""
    outcome = check(name)
    assert outcome.kind in (PASS, SKIPPED), outcome
    assert outcome.how == NATIVE or name not in ONCE_WRONG, outcome


@pytest.mark.parametrize("name", list(dict.fromkeys([*ONCE_REFUSED, *chosen(higher_order(), 3)])))
def test_higher_order(name: str) -> None:
    """It follows eager, or eager itself or dcir refuses it."""
    outcome = check(name)
    assert outcome.kind in (PASS, SKIPPED, REFUSED), outcome
    assert outcome.kind == PASS or name not in ONCE_REFUSED, outcome


def _linear(make: Callable[[], nn.Module]) -> ModuleCall:
    tree = torch.utils._pytree.tree_flatten(((torch.randn(5, 3),), {}))
    return ModuleCall(make, tuple(tree[0]), tree[1])


def _made() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 4)


def test_a_module_that_computes_nothing() -> None:
    """It is no case of silence."""
    assert check_calls("identity", [_linear(nn.Identity)]).how == NOTHING


def test_silence_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right numbers of which none was computed by compiled code."""

    optimize = dcir.optimize

    def uncompiled(module: nn.Module, **options: Any) -> nn.Module:
        fast = optimize(module, **options)
        fast._compiled_call_impl = None
        return fast

    monkeypatch.setattr("tests.opinfo.check.dcir.optimize", uncompiled)
    assert check_calls("linear", [_linear(_made)]).kind == SILENT


def test_a_wrong_gradient_of_a_parameter_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by a hundredth of a per cent."""
    optimize = dcir.optimize

    def spoilt(module: nn.Module, **options: Any) -> nn.Module:
        module.bias.register_hook(lambda gradient: gradient * 1.0001)
        return optimize(module, **options)

    monkeypatch.setattr("tests.opinfo.check.dcir.optimize", spoilt)
    outcome = check_calls("linear", [_linear(_made)])
    assert outcome.kind == WRONG and "gradient of bias" in outcome.detail


def test_disturbed_runs_differ_by_roundings_of_float32() -> None:
    """Of operands, not of what a mode around them leaves of random numbers."""
    call = _linear(_made)
    exact, disturbed = _exact(call, _run(call.function(), call, call.tensors()))
    assert len(disturbed) == 2
    for run in disturbed:
        assert 0 < (run["out0"] - exact["out0"]).abs().max() < 1e-6 * exact["out0"].abs().max()
