"""What is compiled can be asked afterwards, also what torch.compile made; the first compilation says one line in the log."""

import gc
import logging
import re

import pytest
import torch
from torch import nn

import dcir
from dcir.errors import InvalidInput


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 40)  # enough columns for a panel of every instruction set

    def forward(self, words, scale):
        return self.out(self.norm(self.table(words)) * scale)


def batch():
    return torch.randint(3, 11, (5,)), torch.rand(5, 6).t().contiguous().t()


def test_sessions_live_as_long_as_what_they_tell_of():
    before = dcir.sessions()
    fast = dcir.optimize(model := Words().eval())
    plain = torch.compile(model, backend="dcir")
    with torch.no_grad():
        fast(*batch()), plain(*batch())
    ours, graph = (s for s in dcir.sessions() if s not in before)
    assert ours is fast.dcir and ours.name == "Words"
    assert re.fullmatch(r"forward \(test_handle\.py:\d+\)", graph.name)
    assert [g.kind for g in graph.explain().graphs] == ["inference"]
    del ours, graph, fast, plain
    torch._dynamo.reset()
    gc.collect()
    assert [s for s in dcir.sessions() if s not in before] == []


def test_a_graph_of_torch_compile_is_profiled_as_it_was_compiled():
    model = Words()
    plain = torch.compile(model, backend="dcir")
    plain(*batch())[0].sum().backward()
    training = dcir.sessions()[-1]
    kept = {n: b.clone() for n, b in model.named_buffers()}
    profile = training.profile(seconds=0.01, loss=lambda results: results[0].sum())
    assert profile.graphs == ["forward", "backward"]
    assert all(torch.equal(b, kept[n]) for n, b in model.named_buffers())  # its running statistics stayed
    model.eval()
    with torch.no_grad():
        plain(*batch())
    inference = dcir.sessions()[-1]
    profile = inference.profile(seconds=0.01)
    assert any("packed" in step.what for step in profile.steps)  # the weights are known as such
    assert inference.profile(*batch(), seconds=0.01).graphs == ["inference"]
    with pytest.raises(InvalidInput, match="has 2 inputs, not 1"):
        inference.profile(torch.ones(5))
    del plain, model
    gc.collect()
    torch._dynamo.reset()
    with pytest.raises(InvalidInput, match=r"the model of forward .* is gone"):
        inference.profile()


def test_drawn_inputs_are_possible_ones():
    model = Words().eval()
    with torch.no_grad():
        torch.compile(model, backend="dcir")(*(given := batch()))
    words, scale = (g.drawn() for g in dcir.sessions()[-1]._given if g.tensor is None)
    assert words.dtype is torch.int64 and given[0].min() <= words.min() and words.max() <= given[0].max()
    assert (scale.shape, scale.stride()) == (given[1].shape, given[1].stride())


def test_the_first_compilation_is_one_line_in_the_log(caplog):
    caplog.set_level(logging.INFO, logger="dcir")
    fast = dcir.optimize(Words())
    fast(*batch()).sum().backward()  # two graphs
    fast(*(torch.cat([t, t]) for t in batch()))
    (line,) = [r.getMessage() for r in caplog.records if r.name == "dcir"]
    assert "operators" in line and "kernels" in line and line.endswith("next: model.dcir.explain()")


def test_passes_without_an_effect_share_a_line():
    fast = dcir.optimize(Words().eval())
    with torch.no_grad():
        fast(*batch())
    report = fast.dcir.explain()
    passes = report.graphs[0].passes
    (idle,) = [line for line in str(report).splitlines() if line.startswith("  changed nothing: ")]
    assert all(p.name in idle for p in passes if not p.changed)
    shown = re.findall(r"^     [0-4]  (\S+)", str(report), flags=re.M)
    assert shown == [p.name for p in passes if p.changed] != []
