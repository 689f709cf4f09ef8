"""Bytes are counted as the references run: each once, on the data of the call, where it takes no long time; and nothing is changed."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dcir.driver.measure import touched_bytes
from dcir.driver.measure.profile import profile
from dcir.driver.measure.touched_bytes import counted
from dcir.driver.optimize import compiled_with
from dcir.options import Options


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


def steps(model, *inputs, count=counted, **settings):
    with torch.set_grad_enabled("loss" in settings):
        result = profile(model, compiled_with, Options.make(threads=1), inputs, seconds=0.0, count=count, **settings)
    return result.steps


def test_an_embedding_touches_the_rows_that_are_asked_for():
    (step,) = steps(nn.Embedding(1000, 16), torch.tensor([3, 3, 3, 7]))
    assert step.counted == 4 * 8 + 2 * 16 * 4 + 4 * 16 * 4 < step.bytes


def test_indices_are_those_of_the_call_whatever_computes_them():
    def function(table, x):
        return table[(x * 0).argmax(-1) + 2] * 2

    found = steps(function, torch.randn(50, 8), torch.randn(5, 4))
    (gather,) = [s for s in found if "where" in s.what]
    assert gather.counted == 5 * 8 + 8 * 4 + 5 * 8 * 4 < gather.bytes, "one row of the table"


def test_what_strides_leave_out_is_not_touched():
    (step,) = steps(lambda x, w: F.conv2d(x, w, stride=3), torch.randn(1, 1, 7, 7), torch.randn(1, 1, 1, 1))
    assert step.counted == step.bytes == 4 * (9 + 1 + 9)


def test_a_container_that_is_read_twice_counts_once():
    (step,) = steps(lambda x: x @ x, torch.randn(32, 32))
    assert step.counted == step.bytes == 2 * 32 * 32 * 4


def test_windows_of_one_container_count_what_either_touches():
    def function(x):
        return x[:30] + x[10:40]

    (step,) = steps(function, torch.randn(40, 4))
    assert step.counted == 4 * 4 * (40 + 30) < step.bytes == 4 * 4 * 90


def test_equal_operators_are_counted_once(monkeypatch):
    runs = []

    def counting(*arguments):
        runs.append(arguments)
        return original(*arguments)

    original = touched_bytes.touched_by_running
    monkeypatch.setattr(touched_bytes, "touched_by_running", counting)

    def function(x, v, w):
        return torch.linalg.matrix_exp(torch.linalg.matrix_exp(x @ v) @ w)

    found = [s for s in steps(function, *(torch.randn(16, 16) for _ in range(3))) if s.what.startswith("product")]
    assert len(found) == 2 and len(runs) == 1 and {s.counted for s in found} == {3 * 16 * 16 * 4}


def test_what_torch_does_is_not_counted():
    found = steps(lambda x: torch.linalg.inv(x) + 1, torch.eye(8) * 3)
    assert [s.counted is None for s in found] == [s.what.startswith("torch ") for s in found] and len(found) >= 2


def model_and_tokens():
    return nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.Softmax(-1)).eval(), torch.randint(0, 9, (3, 4))


def test_what_takes_long_is_not_counted(monkeypatch):
    assert all(s.counted is not None for s in steps(*model_and_tokens()))
    monkeypatch.setattr(touched_bytes, "_MOST_POINTS", 10)
    assert all(s.counted is None for s in steps(*model_and_tokens()))
    monkeypatch.undo()
    monkeypatch.setattr(touched_bytes, "_MOST_ELEMENTS", 10)
    assert all(s.counted is None for s in steps(*model_and_tokens()))
    monkeypatch.undo()
    # The network's values are not found, and only the embedding's addresses depend on any.
    monkeypatch.setattr(touched_bytes, "_MOST_OPERATIONS", 10)
    assert [s.counted is None for s in steps(*model_and_tokens())].count(True) == 1


def test_counting_draws_no_random_numbers_and_changes_no_model():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(9, 8), nn.BatchNorm1d(8)

        def forward(self, at):
            return F.dropout(self.norm(self.table(at)), 0.5)

    model, at = Noisy(), torch.randint(0, 9, (6,))
    before = {k: v.clone() for k, v in model.state_dict().items()}

    def after(count):
        torch._dynamo.reset()
        torch.manual_seed(1)
        found = steps(model, at, count=count, loss=lambda y: y.sum())
        return torch.get_rng_state(), {s.counted for s in found}

    state, counts = after(counted)
    assert len(counts) > 3 and after(None)[1] == {None}
    assert torch.equal(state, after(None)[0])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
