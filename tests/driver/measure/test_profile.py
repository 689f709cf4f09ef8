"""A profile accounts for every kernel of a call, changes nothing of the model, and costs nothing when it is off."""

import json
import types

import pytest
import torch
from torch import nn

import dcir
from dcir.driver.measure import profile as measuring
from dcir.driver.measure.profile import Recorder
from dcir.driver.session import Session
from dcir.errors import InvalidInput, OptionError
from dcir.ops.library.operand_types import alike
from dcir.options import Options
from dcir.report.profile import ProfileStep
from tests.cost.test_machine import MODEL


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


def convnet():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 5)
    )


def test_every_step_has_its_time_its_work_and_its_place():
    model = convnet().eval()
    fast = dcir.optimize(model, threads=1)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        fast(x)
        result = fast.dcir.profile(x, seconds=0.05)
    (graph,) = fast.dcir.explain().graphs
    assert result.graphs == ["inference"] and len(result.steps) == graph.calls
    assert all(s.ms >= s.least_ms > 0 and s.bytes > 0 for s in result.steps)
    assert sum(s.bytes for s in result.steps) == graph.bytes_moved
    # 2 x outputs x taps that lie inside the image; the epilogue may add to it, fusion never takes away.
    taps = sum(1 for p in range(8) for k in range(3) if 0 <= p + k - 1 < 8) ** 2
    convolution = next(s for s in result.steps if s.what.startswith("convolution"))
    assert convolution.flops >= 2 * 2 * 8 * 3 * taps
    assert "test_profile.py" in convolution.origin or "0" in convolution.origin
    assert 0 < result.kernel_ms + result.team_ms < result.wall_ms * 1.5
    assert result.wall_ms >= result.least_wall_ms > 0
    assert sum(r.share for r in result.rows()) == pytest.approx(1)
    assert sum(r.calls for r in result.rows()) == len(result.steps)
    assert json.loads(json.dumps(result.to_json()))["rows"][0]["ms"] == result.rows()[0].ms
    assert "convolution forward n2 3->8 at 8x8 kernel 3x3" in result.to_text()


def test_backward_is_measured_and_gradients_and_buffers_stay():
    model = convnet().train()
    fast = dcir.optimize(model)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    result = fast.dcir.profile(torch.randn(2, 3, 8, 8), seconds=0.05, loss=lambda y: y.square().sum())
    assert sorted(result.graphs) == ["backward", "forward"]
    assert any("backward_weight" in s.what for s in result.steps)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return self.norm(self.linear(x))


@pytest.mark.parametrize("trains", [False, True], ids=["eval", "a part trains"])
@pytest.mark.parametrize("verb", ["profile", "report"])
def test_buffers_stay_where_the_root_does_not_train(verb, trains):
    model = Counted().eval()
    model.norm.train(trains)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        getattr(dcir.optimize(model).dcir, verb)(torch.randn(8, 4), seconds=0.02)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.norm.training == trains


def test_time_is_booked_where_it_is_spent():
    class Two(nn.Module):
        def forward(self, a, b):
            return a @ a, b @ b

    fast = dcir.optimize(Two(), threads=1)
    with torch.no_grad():
        result = fast.dcir.profile(torch.randn(24, 24), torch.randn(384, 384), seconds=0.2)
    (small,) = [s for s in result.steps if "m24" in s.what]
    (large,) = [s for s in result.steps if "m384" in s.what]
    assert large.flops == small.flops * 16**3
    assert large.least_ms > 50 * small.least_ms


def test_the_floor_of_float64_is_that_of_its_peak(monkeypatch):
    monkeypatch.setattr(measuring, "rates", lambda: MODEL)
    fast = dcir.optimize(lambda a, b: a @ b, threads=1)
    a, b = torch.randn(96, 96), torch.randn(96, 96)
    with torch.no_grad():
        (single,) = fast.dcir.profile(a, b, seconds=0.01).steps
        (double,) = fast.dcir.profile(a.double(), b.double(), seconds=0.01).steps
    assert (single.dtype, double.dtype) == ("f32", "f64") and double.flops == single.flops
    assert double.floor_ms == 2 * single.floor_ms == double.flops / 50e9 * 1e3


@pytest.mark.parametrize("times", [1, 3])
def test_times_add_up_where_that_is_wanted(times):
    """Of four calls the third is disturbed in its kernel and the fourth around it; a graph runs once or several times in each."""
    step = ProfileStep(0, "k", "product", "", 8, 8)
    graph = types.SimpleNamespace(kind="inference", steps=[step], samples=[])
    ticks = [(4_000_000, 1_000_000), (6_000_000, 1_000_000), (50_000_000, 1_000_000), (5_000_000, 2_000_000)]
    graph.samples += [row for row in ticks for _ in range(times)]
    around = [2.0, 1.0, 2.0, 40.0]
    walls = [times * sum(row) * 1e-6 + extra for row, extra in zip(ticks, around, strict=True)]
    recorder = types.SimpleNamespace(graphs=[graph])
    found = measuring.summary(recorder, walls, around, 1, adds_up=True)
    assert (found.steps[0].ms, found.team_ms, found.around_ms) == (5.0 * times, times, 1.5)
    assert found.kernel_ms + found.team_ms + found.around_ms == pytest.approx(found.wall_ms)
    medians = measuring.summary(recorder, walls, around, 1)
    assert (medians.steps[0].ms, medians.team_ms, medians.around_ms) == (5.5 * times, times, 2.0)
    assert medians.kernel_ms + medians.team_ms + medians.around_ms < medians.wall_ms


def test_a_call_into_torch_is_a_step():
    def inverse(x):
        return torch.linalg.inv(x) + 1

    fast = dcir.optimize(inverse)
    with torch.no_grad():
        result = fast.dcir.profile(torch.eye(40) * 3, seconds=0.05)
    assert any(s.what.startswith("torch aten.") and s.ms > 0 for s in result.steps)


def test_results_of_the_twin_are_the_models():
    recorder = Recorder()
    model = convnet().eval()
    from dcir.driver.optimize import compiled_with

    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        got = compiled_with(model, Session(Options.make(), watch=recorder))(x)
        assert torch.equal(got, dcir.optimize(model)(x))
    (graph,) = recorder.graphs
    assert len(graph.samples) == 1 and recorder.nanoseconds == sum(graph.samples[0]) > 0


def test_the_driver_has_no_clock_unless_asked():
    from dcir.codegen.cpp.print_driver import driver_text
    from dcir.codegen.steps import Call

    calls = [Call("k", 0, (), True, True), Call(None, 1, (), False, False), Call("k", 2, (), False, False)]
    plain, measured = driver_text(calls), driver_text(calls, profile=True)
    assert "clock" not in plain and " lap(" not in plain
    assert [measured.count(f" lap({i});") for i in range(3)] == [1, 1, 1]
    assert measured.count(" lap(3);") == 5  # the start of the call, and each of two teams before and after


def test_what_cannot_be_profiled_is_refused():
    with pytest.raises(OptionError):
        dcir.optimize(convnet(), target="dace").dcir.profile(torch.randn(1, 3, 8, 8))
    with pytest.raises(InvalidInput, match="nothing was compiled"):
        dcir.optimize(lambda x: None).dcir.profile(torch.ones(2), seconds=0.01)


def test_names_are_on_one_line():
    from dcir.ir.loop_nest_builder import LoopNestBuilder
    from dcir.ops.library.contraction import ContractionSpec
    from dcir.ops.library.convolution import ConvolutionSpec
    from dcir.ops.library.convolution_statistics import ConvolutionStatisticsSpec
    from dcir.ops.library.winograd import WinogradWeightsSpec

    spec = ContractionSpec(alike("f32"), (3,), 4, 5, 6, (24, 6, 1), (30, 5, 1), (20, 5, 1))
    assert spec.describe() == "product 3 of m4 n5 k6"
    x, w = (252, 1, 21, 3), (27, 1, 9, 3)
    sizes = ((12, 7), (3, 3), (12, 7), (1, 1), (1, 1), (1, 1))
    layer = ConvolutionSpec("forward", alike("f32"), 2, 1, 3, 3, *sizes, x, w, x)
    assert layer.describe() == "convolution forward n2 3->3 at 12x7 kernel 3x3 stride 1x1"
    body = LoopNestBuilder((3,), (2, 12, 7))
    body.store(body.output("f32"), (1, 0, 0, 0), body.reduce("sum", body.load(body.input("f32"), (1, 252, 21, 3))))
    assert ConvolutionStatisticsSpec(layer, body.finish()).describe() == f"{layer.describe()}, then sum"
    weights = WinogradWeightsSpec("f32", (2, 4), 3, 5, 16, (27, 9, 3, 1), False)
    assert weights.describe() == "winograd weights 3->5"
