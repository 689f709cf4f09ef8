"""A model is measured where rules look, advice that can be tried is tried, and eager PyTorch is as it is by default."""

import json

import pytest
import torch
from torch import nn

from dcir.driver.measure import advise as advising
from dcir.driver.measure import api
from dcir.driver.measure import roofline as measuring
from dcir.driver.measure.advise import advise
from dcir.errors import InvalidInput, OptionError
from dcir.isa import ISAS
from dcir.report import advice_pieces
from dcir.report.advice_pieces import Call
from dcir.report.roofline_points import Setting
from tests.cost.test_machine import MODEL


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    torch.manual_seed(0)
    torch._dynamo.reset()
    monkeypatch.setattr(measuring, "rates", lambda: MODEL)


def net():
    return nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 8)).eval()


def make(batch=None):
    return net(), (torch.ones(batch or 2, 24),)


def fixed(batch):
    if batch is not None:
        raise OptionError("there is no batch to choose", where=str(batch))
    return net(), (torch.ones(2, 24),)


@pytest.fixture
def everything(monkeypatch):
    """Every prediction is worth giving, whatever the machine does meanwhile."""
    monkeypatch.setattr(advice_pieces, "LEAST_GAIN", 0.0)


def test_pieces_are_tried_next_to_the_call_of_now(everything):
    found = advise(make, threads=[1], batches=[1, 4], seconds=0.01, apply=1)
    assert found.applied and found.now.call == Call(1, 1) and found.eager.call == Call(1, 1, None)
    assert {r.setting for r in found.roofline.runs} == {Setting(1, 1, 4), Setting(1, 4, 4)}
    assert "precision" in [p.rule for p in found.pieces]
    assert [p.measured is not None for p in found.pieces] == [True] + [False] * (len(found.pieces) - 1)
    first = found.pieces[0]
    assert first.measured.call == first.call and first.measured.bursts >= 9
    assert first.ratio == pytest.approx(first.measured.gain / first.gain)
    if found.together is not None:
        assert found.together.measured is not None and found.together.call.half is False
    advice = json.loads(json.dumps(found.to_json()))["advice"]
    assert advice["applied"] and advice["advised"]["measured"]
    assert advice["pieces"][0]["holds"] == first.holds


def test_nothing_is_tried_unless_asked():
    found = advise(make, threads=[1], batches=[1], seconds=0.01)
    assert not found.applied and all(p.measured is None for p in found.pieces)
    assert found.eager.items_per_second > 0 and found.now.items_per_second > 0


def test_a_larger_batch_and_one_thread_are_looked_at_by_themselves():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = advise(make, seconds=0.01)
    finally:
        torch.set_num_threads(before)
    assert {(r.setting.threads, r.setting.batch) for r in found.roofline.runs} == {
        (t, b) for t in (1, 2) for b in (None, 8)
    }
    assert found.now.call == Call(2, None) and found.eager.call == Call(2, 1, None)
    assert torch.get_num_threads() == before


def test_a_model_without_a_batch_is_taken_as_it_is():
    found = advise(fixed, threads=[1], seconds=0.01)
    assert [r.setting.batch for r in found.roofline.runs] == [None]
    assert found.eager.call == Call(1, None, None) and "batch" not in [p.rule for p in found.pieces]


def test_the_highest_level_is_looked_at_too(everything):
    found = advise(make, threads=[1], batches=[2], levels=[0], seconds=0.01)
    assert [r.setting.level for r in found.roofline.runs] == [0, 4] and found.now.call.level == 0


def test_training_steps(everything):
    found = advise(make, threads=[1], batches=[2], mode="train", optimiser="adam", seconds=0.01, apply=1)
    (piece,) = [p for p in found.pieces if p.rule == "step"]
    assert piece.measured is not None and piece.evidence.startswith("adam takes")
    assert found.eager.call == Call(1, 2, None), "as many items as now"


@pytest.mark.in_turn(3)
def test_a_loops_update_is_advised_to_be_fused_and_tried(everything):
    found = advise(
        make, threads=[1], batches=[2], mode="train", optimiser="adamw", update="loop", seconds=0.01, apply=3
    )
    (piece,) = [p for p in found.pieces if p.rule == "update"]
    assert piece.call == Call(1, 2, fused=True) and piece.measured is not None and "4 tensors" in piece.evidence
    again = advise(make, threads=[1], batches=[2], mode="train", optimiser="adamw", seconds=0.01)
    assert "update" not in [p.rule for p in again.pieces], "it is fused by itself"


class Wide(nn.Module):
    """Keeps more than it has parameters."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.last(self.first(x).sigmoid().exp().tanh())


@pytest.mark.in_turn(3)
def test_memory_that_is_not_there_is_kept_by_a_limit(everything):
    def wide(batch):
        return Wide(), (torch.ones(batch or 2000, 16),)

    found = advise(wide, threads=[1], batches=[2000], mode="train", memory=1000, seconds=0.01, apply=1)
    first = found.pieces[0]
    assert first.rule == "memory" and first.measured is not None and first.saves > 0
    assert first.call.memory_limit < 1 << 20 and found.led_to.call == first.call and found.together is None
    assert "memory" not in [
        p.rule for p in advise(wide, threads=[1], batches=[2000], mode="train", seconds=0.01).pieces
    ]


def test_what_cannot_be_is_refused():
    with pytest.raises(OptionError, match="optimiser"):
        advise(make, optimiser="lion")
    with pytest.raises(OptionError, match="form"):
        advise(make, mode="train", update="vectors")
    for settings in ({"memory": 1 << 30}, {"memory": 0, "mode": "train"}):
        with pytest.raises(OptionError, match="memory is what a training step may take"):
            advise(make, **settings)
    with pytest.raises(OptionError, match="infer, train"):
        advise(make, threads=[1], batches=[2], mode="serve")
    with pytest.raises(InvalidInput, match="module"):
        advise(lambda batch: (torch.sin, (torch.ones(2),)), threads=[1], mode="train")
    before = torch.get_num_threads()
    with pytest.raises(InvalidInput, match="nothing was compiled"):
        advise(lambda batch: ((lambda x: None), [torch.ones(2)]), threads=[before + 1], batches=[None])
    assert torch.get_num_threads() == before


class Sized(nn.Module):
    def __init__(self, batch):
        super().__init__()
        self.batch, self.layer = batch, nn.Linear(4, 4)


def test_one_model_serves_all_batches_unless_it_knows_its_batch():
    made = advising._shared(make)
    assert made(1)[0] is made(4)[0] and made(4)[1][0].shape[0] == 4 and made(4)[1] is made(4)[1]
    sized = advising._shared(lambda batch: (Sized(batch), ()))
    assert sized(1)[0] is not sized(4)[0] and sized(4)[0].batch == 4
    functions = advising._shared(lambda batch: ((lambda x: x * batch), ()))
    assert functions(1)[0] is not functions(2)[0]


def test_pairs_are_for_float32_and_processors_that_have_them():
    assert advising._pairs_of(ISAS["avx512bf16"], net()) > 1.5 and advising._pairs_of(ISAS["avx2"], net()) == 1.0
    assert advising._pairs_of(ISAS["avx512bf16"], net().bfloat16()) is None
    assert advising._pairs_of(ISAS["avx512bf16"], torch.sin) is None


PYTHON = """
import torch
def make(batch=1):
    return torch.nn.Linear(8, 4).eval(), (torch.ones(batch, 8),)
"""


def test_a_file_is_advised(tmp_path):
    (tmp_path / "net.py").write_text(PYTHON)
    found = api.advise_file(f"{tmp_path}/net.py:make", threads=[1], batches=[1, 8], seconds=0.01)
    assert found.roofline.model == "net.py:make"
    assert all(f"{tmp_path}/net.py:make" in p.command for p in found.pieces if p.rule == "batch")
    found.save(tmp_path / "r.svg")
    assert "net.py:make" in (tmp_path / "r.svg").read_text()
