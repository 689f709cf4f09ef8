"""Calls a second are counted for dcir's streams and for rivals on the same inputs, and every row has its error."""

import json
import threading

import pytest
import torch
from torch import nn

from dcir.driver import api
from dcir.driver.measure import baselines, rival_streams
from dcir.driver.measure.models import BenchModel
from dcir.driver.measure.throughput import bench_throughput, measure_bursts
from dcir.errors import InvalidInput, OptionError

SOURCE = """
import torch
from torch import nn

def make(batch=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 6), nn.Softmax(-1)).eval(), (torch.randn(batch, 9),)
"""


@pytest.fixture
def source(tmp_path):
    torch._dynamo.reset()
    (tmp_path / "nets.py").write_text(SOURCE)
    return f"{tmp_path / 'nets.py'}:make"


def test_streams_stand_next_to_one_call_at_a_time_and_rivals(source):
    done = bench_throughput(source, ["eager"], 0.05, 1)
    assert [r.name for r in done.rows] == ["dcir", "dcir, one by one", "eager"] and not done.notes
    assert done.reference == "float64" and all(0 < r.error < 1e-6 for r in done.rows)
    ours, *others = done.rows
    assert ours.at_once == 1 and all(r.gain == pytest.approx(ours.median / r.median) for r in others)
    assert all(0 < r.median <= r.best and r.calls >= 5 for r in done.rows)
    assert json.loads(json.dumps(done.to_json()))["rows"][2]["name"] == "eager"
    assert "1 stream" in done.to_text() and "dcir gains" in done.to_text()


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="two streams want two processors")
def test_the_number_of_streams_may_be_given(source):
    done = bench_throughput(source, [], 0.02, 2, streams=2)
    assert done.rows[0].at_once == 2 and done.why.startswith("2 streams of 1 thread each: asked for")


def test_all_rivals_give_the_same_results(tmp_path):
    torch._dynamo.reset()
    model = BenchModel("m", nn.Sequential(nn.Linear(9, 6), nn.Tanh()).eval(), (torch.randn(4, 9),))
    with torch.no_grad():
        want = model.module(*model.inputs)
        made, notes = rival_streams.bursts(model, baselines.BASELINES, 2, tmp_path)
        absent = {name for name in baselines.PACKAGES if any(n.startswith(name) for n in notes)}
        assert set(made) == set(baselines.BASELINES) - absent and len(notes) == len(absent)
        for burst, at_once in made.values():
            (got,) = burst(3)
            assert at_once >= 1
            torch.testing.assert_close(torch.as_tensor(got), want, rtol=1e-5, atol=1e-6)


def test_a_rivals_calls_run_at_the_same_time(tmp_path):
    together = threading.Barrier(2, timeout=20)  # passes only if two calls are under way

    def meet(x):
        together.wait()
        return x + torch.get_num_threads()

    made, notes = rival_streams.bursts(BenchModel("m", meet, (torch.zeros(1),)), ["eager"], 2, tmp_path)
    assert not notes and made["eager"][1] == 2
    assert made["eager"][0](4)[0].item() == 1  # each with a team of one


def test_turns_are_taken():
    order = []

    def burst(name):
        return lambda calls: order.append((name, calls)) or [torch.ones(1)]

    rows = measure_bursts({"dcir": (burst("dcir"), 2), "other": (burst("other"), 1)}, 0.0, [torch.ones(1)])
    assert [r.name for r in rows] == ["dcir", "other"] and [r.error for r in rows] == [0.0, 0.0]
    turns = [name for name, _ in order[4:]]
    assert turns == ["dcir", "dcir", "other", "other"] * 5
    # Of five calls on two teams the last would run alone.
    assert all(calls % 2 == 0 for name, calls in order if name == "dcir")


def test_what_has_no_streams_is_refused(source, tmp_path):
    path = tmp_path / "net.dcir"
    api.save(nn.Linear(3, 2).eval(), [torch.randn(2, 3)], path)
    with pytest.raises(InvalidInput, match="no streams"):
        bench_throughput(path, [], 0.01, 1)
    with pytest.raises(OptionError, match="nothing known"):
        bench_throughput(source, ["tensorflow"], 0.01, 1)
