"""Random networks give what eager PyTorch gives: as many of a fixed list as fit the time (DCIR_FUZZ_SECONDS, 45 unless given)."""

from __future__ import annotations

import os
import time

import pytest
import torch

import dcir
from tests.fuzz.case import Case, Input
from tests.fuzz.check import Differs, NotACase, check
from tests.fuzz.generate import random_case, shrunk
from tests.fuzz.run import outcome

_SECONDS = float(os.environ.get("DCIR_FUZZ_SECONDS", "45"))
_LEAST, _MOST = 10, 400


def test_random_networks() -> None:
    """The same cases in the same order every time; a failure is shrunk to a small program. What compiles nothing is no case."""
    end = time.monotonic() + _SECONDS
    compiled = 0
    for seed in range(_MOST):
        if compiled >= _LEAST and time.monotonic() > end:
            break
        case, choices = random_case(seed)
        found, why = outcome(case)
        if found == "wrong":
            small = shrunk(choices, lambda c: outcome(c)[0] == "wrong")
            pytest.fail(f"case {seed}: {why}\n{small}\n{small.source()}")
        compiled += found == "right"
    assert compiled >= _LEAST


def test_shrinking_finds_the_one_step_that_matters() -> None:
    """Of a network with many steps, the smallest one with a softmax is left."""
    seed = next(n for n in range(100) if "softmax" in str(random_case(n)[0].lines) and len(random_case(n)[0].lines) > 8)
    small = shrunk(random_case(seed)[1], lambda case: "softmax" in str(case.lines), tries=1000)
    assert len(small.lines) <= 2
    assert "softmax" in small.lines[-1]


def _wrong(value: str) -> Case:
    grid = Input((5, 7), (7, 1), grad=True)
    return Case((grid,), ("nn.Linear(7, 3)",), (f"v0 = {value}",), ("v0",))


@pytest.mark.parametrize("factor", [1.0005, 1.00001])
def test_the_comparison_finds_a_wrong_result(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Half a per mille off is off, and so is a hundred-thousandth: no rounding of eager's is."""
    check(_wrong("self.l0(x0)"))
    other = _wrong(f"self.l0(x0) * {factor}").module()
    optimize = dcir.optimize

    def wrong(module: torch.nn.Module, **_: object) -> torch.nn.Module:
        other.l0 = module.l0
        return optimize(other)

    monkeypatch.setattr("tests.fuzz.check.dcir.optimize", wrong)
    with pytest.raises(Differs, match="out0"):
        check(_wrong("self.l0(x0)"))


@pytest.mark.parametrize("line", ["x0.transpose(0, 1)", "(torch.sin(x0), x0[:])[1]"], ids=["views", "dead code"])
def test_what_computes_nothing_is_no_case(line: str) -> None:
    """There is nothing compiled that could be wrong."""
    with pytest.raises(NotACase, match="nothing to compile"):
        check(_wrong(line))


def test_a_case_of_which_nothing_is_compiled_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager's own numbers are no success."""

    def uncompiled(module: torch.nn.Module, **_: object) -> torch.nn.Module:
        fast = optimize(module)
        fast._compiled_call_impl = None
        return fast

    optimize = dcir.optimize
    monkeypatch.setattr("tests.fuzz.check.dcir.optimize", uncompiled)
    with pytest.raises(Differs, match="no compiled graph"):
        check(_wrong("self.l0(x0)"))
