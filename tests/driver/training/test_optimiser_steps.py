"""What an optimiser brings to a compiled update: who is held, with which numbers, and the state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dcir.driver.training.optimiser_steps import OptimiserSteps, rows_of
from dcir.errors import Unsupported


def _parameters(count: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(2, 3)) for _ in range(count)]


def test_who_is_held() -> None:
    """By name; not what wants no gradient, has no name, or is idle."""
    a, b, c, d = _parameters(4)
    c.requires_grad_(False)
    steps = OptimiserSteps(torch.optim.SGD([{"params": [b]}, {"params": [a, c, d], "lr": 1.0}], lr=0.1))
    names = {id(p): n for n, p in zip("abc", (a, b, c), strict=True)}
    assert [(h.name, h.row) for h in steps.held(names)] == [("b", (0, 0)), ("a", (1, 0))]
    assert [h.name for h in steps.held(names, {"b"})] == ["a"]


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), torch.optim.AdamW])
def test_rows_follow_the_steps_that_were_made(make) -> None:
    a, b = _parameters(2)
    steps = OptimiserSteps(make([a, b]))
    names = {id(a): "a", id(b): "b"}
    first, _ = steps.held(names)
    assert rows_of(steps.held(names)) == [(0, 0)]
    states = steps.states(first)
    a.grad = torch.ones_like(a)
    version = a._version
    steps.done([first], [a, *states])
    assert a.grad is None and a._version > version
    held = steps.held(names)
    assert [h.row for h in held] == [(0, 1), (0, 0)]
    updates, count = steps.updates(held, rows_of(held))
    # Each row has numbers of its own.
    assert {updates[0].first, updates[1].first} == {0, count // 2}
    assert steps.numbers(rows_of(held)).numel() == count
    assert [s.data_ptr() for s in steps.states(held[0])] == [s.data_ptr() for s in states]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_counter_is_of_torchs_type(dtype: torch.dtype) -> None:
    """One of 16 bits stops counting at 256 or 2048."""
    ours, theirs = _parameters(2)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        optimizer, eager = torch.optim.AdamW([ours]), torch.optim.AdamW([theirs])
        steps = OptimiserSteps(optimizer)
        steps.states(steps.held({id(ours): "ours"})[0])
        theirs.grad = torch.ones_like(theirs)
        eager.step()
    finally:
        torch.set_default_dtype(before)
    assert optimizer.state[ours]["step"].dtype == eager.state[theirs]["step"].dtype


def test_a_group_may_be_empty() -> None:
    (p,) = _parameters(1)
    steps = OptimiserSteps(torch.optim.SGD([{"params": []}, {"params": [p]}], lr=0.5))
    held = steps.held({id(p): "p"})
    assert [h.row for h in held] == [(1, 0)]
    assert 0.5 in steps.numbers(rows_of(held)).tolist()


def test_flags_are_what_changes_the_formula() -> None:
    optimizer = torch.optim.SGD(_parameters(1), lr=0.1)
    steps = OptimiserSteps(optimizer)
    before = steps.flags()
    optimizer.param_groups[0]["lr"] = 0.5
    assert steps.flags() == before
    optimizer.param_groups[0]["momentum"] = 0.9
    assert steps.flags() != before


def test_an_optimiser_without_a_formula() -> None:
    with pytest.raises(Unsupported, match="Adagrad"):
        OptimiserSteps(torch.optim.Adagrad(_parameters(1)))
