"""An update in a loop is advised to be fused: its bytes once, and a call for each tensor."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dcir.driver.measure.advice.facts import Update
from dcir.driver.measure.advice.update import OPERATORS, update
from dcir.driver.measure.training_step import FORMS, OPTIMISERS
from dcir.report.advice_pieces import BOTH, Call
from tests.driver.measure.advice.test_facts import facts_of


def facts(update, threads=4):
    return facts_of({(threads, None, 4): 10.0}, mode="train", update=update, processors=threads)


def test_a_loop_becomes_one_kernel_for_each_tensor():
    """40 MB at 40 GB/s take a millisecond, and 200 calls of 2 and of half a microsecond, for the barrier, another half."""
    (piece,) = update(facts(Update("adamw", 5.0, 40_000_000, 200, "loop")))
    assert piece.gain == pytest.approx(10 / (10 - 5 + 1.5)) and piece.slower == pytest.approx(0.65)
    assert piece.call == Call(4, None, 4, fused=True) and piece.basis == BOTH and piece.exact
    assert "2000 operators by loop" in piece.evidence and "AdamW" in piece.python and "fused=True" in piece.python


def test_a_disturbed_update_is_no_longer_than_a_step():
    """Half of what was measured is the update, so half of the step is."""
    settled = facts(Update("adamw", 5.0, 0, 0, "loop"))
    slow = replace(settled, times={settled.now: 4.0})
    (piece,) = update(slow)
    assert piece.gain == pytest.approx(2.0)


def test_one_thread_waits_at_no_barrier_and_has_its_own_rate():
    (piece,) = update(facts(Update("sgd", 5.0, 20_000_000, 1000, "foreach"), threads=1))
    assert piece.gain == pytest.approx(10 / (10 - 5 + 1 + 2)) and "foreach" in piece.what


def test_nothing_is_slower_than_it_is_and_what_is_fused_stays():
    (piece,) = update(facts(Update("sgd", 1.0, 40_000_000_000, 10, "loop")))
    assert piece.gain == 1.0
    assert update(facts(Update("sgd", 5.0, 1))) == [] and update(facts_of({(1, None, 4): 1.0})) == []


class Counted(TorchDispatchMode):
    """Counts operators that write to tensors of many elements."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.count += isinstance(out, torch.Tensor) and out.numel() == 100
        return out


@pytest.mark.parametrize("name", OPERATORS)
def test_loops_have_about_as_many_operators(name):
    """As torch has them: what is created in the first step is not there in the next ones."""
    parameter = nn.Parameter(torch.ones(100))
    parameter.grad = torch.ones(100)
    optimiser = OPTIMISERS[name]([parameter], **FORMS["loop"])
    optimiser.step()
    with Counted() as counted:
        optimiser.step()
    assert abs(counted.count - OPERATORS[name]) <= 2
