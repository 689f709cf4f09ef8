"""Run in order: what is set, what is left as it is, the numbers, and what level 0 makes of a network."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import dcir
from dcir.ir.schedule import PLAIN
from dcir.transforms.pipelines import pipeline
from dcir.transforms.tidy.run_in_order import RunInOrder
from tests.harness import check_close
from tests.transforms.imported import imported, same_numbers


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def step(x: torch.Tensor, w: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    y = F.conv2d(x, k, padding=1).relu()
    return torch.softmax(y.mean((2, 3)) @ w, -1)


INPUTS = rand(2, 3, 9, 9), rand(8, 5), rand(8, 3, 3, 3)


def test_changed() -> None:
    net = imported(step, *INPUTS).network
    outcome = RunInOrder().apply(net)
    assert outcome.changed == len(net.ops()) > 2 and not outcome.refused
    assert {op.own_schedule for op in net.ops()} == {PLAIN}
    assert RunInOrder().apply(net).changed == 0


def test_refused_what_is_no_loop_nest() -> None:
    net = imported(lambda x: torch.sort(x)[0] + 1.0, rand(4, 9)).network
    outcome = RunInOrder().apply(net)
    assert outcome.changed == 1 and dict(outcome.refused) == {"sort is equal to no loop nest": 1}


def test_unchanged_calls_into_torch() -> None:
    net = imported(lambda x: torch.linalg.inv(x), rand(4, 4)).network
    assert RunInOrder().apply(net).changed == sum(not op.spec.calls_out for op in net.ops())


@pytest.mark.processor
def test_numbers() -> None:
    same_numbers(step, *INPUTS, passes=(RunInOrder(),))


@pytest.mark.processor
def test_long_sums_are_as_exact_as_at_other_levels() -> None:
    """One running sum of 200,000 numbers of one sign would be wrong in the fifth digit."""
    x = rand(3, 200_000).abs()
    fast = dcir.optimize(lambda x: (x.sum(1), (x * x).mean(1)), level=0, strict=True)
    for got, want, exact in zip(
        fast(x), (x.sum(1), (x * x).mean(1)), (x.double().sum(1), x.double().square().mean(1)), strict=True
    ):
        check_close(got, want, exact, factor=10)


def test_level_0_is_this_alone() -> None:
    assert pipeline(0) == (RunInOrder(),)
    assert not any(isinstance(p, RunInOrder) for level in (1, 2, 3, 4) for p in pipeline(level))
