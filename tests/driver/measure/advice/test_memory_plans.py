"""A training step's memory is planned without code; limits that it cannot keep give way to the least one."""

import copy

import pytest
import torch
from torch import nn

import dcir
from dcir.driver.measure.advice import memory_plans
from dcir.driver.measure.advice.memory_plans import memory_of
from dcir.report.advice_pieces import Call

NOW = Call(1, None, 4)


class Net(nn.Module):
    """Much to keep, and cheap to compute again: convolutions and activations of a large image."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.sigmoid(layer(x)).exp()
        return x


@pytest.fixture
def model():
    torch.manual_seed(0)
    torch._dynamo.reset()
    return Net().eval(), (torch.randn(2, 8, 32, 32),)


def test_what_fits_has_no_limit(model):
    net, inputs = model
    before = copy.deepcopy(net.state_dict())
    found = memory_of(net, inputs, NOW, 100, allowed=1 << 40)
    assert found.kept == () and found.peak > 0 and found.asked
    parameters = sum(p.nbytes for p in net.parameters())
    assert found.beside == 100 + 2 * parameters + inputs[0].nbytes
    assert not net.training and all(torch.equal(v, before[n]) for n, v in net.state_dict().items())


def test_a_limit_leaves_room_for_what_lies_beside_and_is_the_one_that_can_be_set(model):
    net, inputs = model
    free = memory_of(net, inputs, NOW, 0, allowed=1 << 40)
    allowed = free.beside + free.peak * 3 // 4
    (kept,) = memory_of(net, inputs, NOW, 0, allowed=allowed).kept
    assert kept.limit == allowed - free.beside and kept.peak <= kept.limit < free.peak
    assert kept.again[0] > 0
    fast = dcir.optimize(copy.deepcopy(net).train(), memory_limit=kept.limit, dynamic=False, threads=1)
    fast(*inputs).sum().backward()
    (partition,) = [g.partition for g in fast.dcir.session.graphs if g.kind == "forward"]
    assert (partition.planned.peak, partition.unlimited.peak) == (kept.peak, free.peak)


def test_the_least_limit_takes_the_place_of_one_that_cannot_be(model):
    net, inputs = model
    found = memory_of(net, inputs, NOW, 0, allowed=1)
    (kept,) = found.kept
    assert 0 < kept.peak <= kept.limit < found.peak and kept.peak + found.beside > found.allowed


def test_unasked_only_a_large_part_of_the_machine_is_looked_at(model, monkeypatch):
    net, inputs = model
    monkeypatch.setattr(memory_plans, "resident_peak", lambda: 4 << 30)
    monkeypatch.setattr(memory_plans, "machine_memory", lambda: 9 << 30)
    monkeypatch.setattr(memory_plans, "_planned", None)
    assert memory_of(net, inputs, NOW, 0) is None
    monkeypatch.undo()
    monkeypatch.setattr(memory_plans, "machine_memory", lambda: 4000)
    found = memory_of(net, inputs, NOW, 0)
    assert not found.asked and found.allowed == 2000
    assert len(found.kept) == 2 and found.kept[0].peak >= found.kept[1].peak


def test_several_graphs_have_no_one_limit(model):
    class Broken(Net):
        def forward(self, x):
            x = super().forward(x)
            torch._dynamo.graph_break()
            return super().forward(x)

    assert memory_of(Broken(), model[1], NOW, 0, allowed=1 << 40) is None


def test_the_machine_and_the_process_have_memory(monkeypatch, tmp_path):
    assert 0 < memory_plans.resident_peak() <= memory_plans.machine_memory() * 2
    monkeypatch.setattr(memory_plans, "_CGROUP", tmp_path / "memory.max")
    whole = memory_plans.machine_memory()
    for text, expected in (("max\n", whole), ("4096\n", 4096)):
        (tmp_path / "memory.max").write_text(text)
        assert memory_plans.machine_memory() == expected
