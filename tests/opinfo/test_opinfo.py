"""A part of PyTorch's operator database through dcir: every 23rd entry, those that once went wrong, and the sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dcir

pytest.importorskip("expecttest", reason="PyTorch's operator database imports expecttest: pip install -e '.[test]'")

from tests.opinfo.check import NATIVE, PASS, REFUSED, SKIPPED, TORCH, WRONG, check
from tests.opinfo.entries import entries
from tests.opinfo.sweep import CRASH, page, summary, sweep

pytestmark = pytest.mark.in_turn(3)

ONCE_WRONG = ("complex", "linalg.solve", "linalg.tensorsolve", "max_pool2d_with_indices_backward", "polar")


@pytest.mark.parametrize("name", list(dict.fromkeys([*ONCE_WRONG, *list(entries())[::23]])))
def test_entry(name: str) -> None:
    """It follows eager, or eager itself or dcir refuses it."""
    outcome = check(name)
    assert outcome.kind in (PASS, REFUSED, SKIPPED), outcome
    assert outcome.kind == PASS or name not in ONCE_WRONG


def test_how() -> None:
    """A native operator is not said to run through torch, nor the other way round."""
    native, through = check("sigmoid"), check("linalg.eigh")
    assert (native.how, native.through, native.gradients) == (NATIVE, [], 1)
    assert (through.how, through.through, through.gradients) == (TORCH, ["aten._linalg_eigh.default"], 1)


@pytest.mark.parametrize("forward", [True, False])
def test_wrong_is_seen(forward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of a hundredth of a per cent, in results or in gradients alone."""

    def optimize(fn: Callable[..., torch.Tensor], **options: Any) -> Any:
        def call(*tensors: torch.Tensor) -> torch.Tensor:
            fast(torch.rand(3))  # what runs nothing compiled is silent, not wrong
            out = fn(*tensors)
            off = out * 1.0001
            return off if forward else off + (out - off).detach()

        call.dcir = fast.dcir  # type: ignore[attr-defined]
        return call

    fast = dcir.optimize(torch.sigmoid)
    monkeypatch.setattr("tests.opinfo.check.dcir.optimize", optimize)
    outcome = check("sigmoid")
    assert outcome.kind == WRONG and ("out0" in outcome.detail) == forward


def test_sweep_survives_a_child() -> None:
    """An entry at which the child dies is that entry's outcome, and the next one is tried."""
    died, fine = sweep(["no such entry", "neg"], level=4, seconds=120)
    assert (died.kind, died.name) == (CRASH, "no such entry") and "KeyError" in died.detail
    assert (fine.kind, fine.name) == (PASS, "neg")
    assert "crash: no such entry" in summary([died, fine]) and "| neg | pass | native |" in page([died, fine])
