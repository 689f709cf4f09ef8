"""Every way to call a model computes what the model does, and ways take turns."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dcir.driver.measure.advice import running as module
from dcir.driver.measure.advice.running import Running, running, taking_turns
from dcir.driver.measure.training_step import OPTIMISERS, mean_squares
from dcir.errors import InvalidInput
from dcir.report.advice_pieces import Call


class Net(nn.Module):
    """A small CNN."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def maker():
    net, images = Net().eval(), torch.randn(8, 3, 6, 6)
    return lambda batch: (net, (images[: batch or 2],))


@pytest.mark.parametrize(
    "call",
    [Call(1, level=None), Call(1, 4), Call(1, 8, 2), Call(1, turned=True), Call(1, half=True), Call(1, streams=1)],
    ids=str,
)
def test_results_are_those_of_eager_pytorch(call):
    make = maker()
    model, (x,) = make(call.batch)
    way = running(make, call, x.shape[0])
    way.warm_up()
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
    error = float((way.once().double() - exact).abs().max() / exact.abs().max())
    assert error < (2e-2 if call.half else 1e-5) and (error > 1e-5) == call.half
    assert way.seconds > 0 and min(way.turn(0.001)) > 0
    assert next(model.parameters()).dtype == torch.float32, "the model itself is as it was"


def test_streams_run_what_is_submitted(monkeypatch):
    from dcir import cores

    monkeypatch.setattr(cores, "usable_threads", lambda: 2)
    make = maker()
    model, (x,) = make(None)
    way = running(make, Call(1, streams=2), 2)
    way.warm_up()
    kept = []
    monkeypatch.setattr("dcir.driver.handle.Handle.submit", recorded(kept))
    way.several(7)
    assert len(kept) == 7
    with torch.no_grad():
        for future in kept:
            torch.testing.assert_close(future.result(), model(x))


def recorded(kept):
    from dcir.driver.handle import Handle

    original = Handle.submit

    def submit(self, *inputs, **named):
        kept.append(original(self, *inputs, **named))
        return kept[-1]

    return submit


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.parametrize(
    "call",
    [Call(1, level=None), Call(1), Call(1, 4, whole_step=True), Call(1, fused=True), Call(1, memory_limit=20_000)],
    ids=str,
)
def test_steps_have_the_loss_of_eager_pytorch_and_change_nothing(call, optimiser):
    make = maker()
    model, (x,) = make(call.batch)
    before = copy.deepcopy(model.state_dict())
    loss = mean_squares(copy.deepcopy(model).double().train()(x.double()))
    way = running(make, call, 1, mode="train", optimiser=optimiser)
    way.warm_up()
    assert float(way.once()) == pytest.approx(float(loss.detach()), rel=1e-4), "the rate is zero"
    assert not model.training and all(p.grad is None for p in model.parameters())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("call", "update", "stated"),
    [
        (Call(1), "loop", {"foreach": False, "fused": False}),
        (Call(1, fused=True), "loop", {"fused": True}),
        (Call(1, whole_step=True), "foreach", {"foreach": True}),
        (Call(1), None, {}),
    ],
)
def test_an_update_has_the_form_that_is_asked_for_unless_the_call_has_it_fused(call, update, stated, monkeypatch):
    heard = []
    sgd = OPTIMISERS["sgd"]
    monkeypatch.setitem(OPTIMISERS, "sgd", lambda parameters, **form: heard.append(form) or sgd(parameters, **form))
    way = running(maker(), call, 2, mode="train", update=update)
    assert heard == [stated] and way.once() is not None


def test_a_memory_limit_reaches_the_compilation(monkeypatch):
    heard = []
    own = module.optimize
    monkeypatch.setattr(module, "optimize", lambda model, **options: heard.append(options) or own(model, **options))
    running(maker(), Call(1, memory_limit=20_000), 2, mode="train").once()
    assert heard == [{"dynamic": False, "level": 4, "threads": 1, "memory_limit": 20_000}]


def test_what_is_no_module_is_refused():
    def make(batch):
        return torch.sin, (torch.ones(3),)

    running(make, Call(1), 1).warm_up()
    for call, mode in ((Call(1, half=True), "infer"), (Call(1), "train")):
        with pytest.raises(InvalidInput, match="module"):
            running(make, call, 1, mode=mode)


@pytest.mark.parametrize(("seconds", "calls"), [(0.2, [2]), (0.001, [2, 20]), (0.01, [2, 2])])
def test_a_burst_is_as_many_calls_for_each_stream(seconds, calls):
    """A short call is made once before it counts; a long one is not."""
    ran = []
    way = Running(Call(1, streams=2), 4, lambda: None, ran.append, seconds)
    assert len(way.turn(0.0)) == 1
    assert ran == calls and torch.get_num_threads() == 2


def test_a_turn_has_bursts_until_its_time_has_passed(monkeypatch):
    clock = iter([0.0, 0.5, 0.75, 1.25, 9.0])
    monkeypatch.setattr("dcir.driver.measure.advice.running.time.perf_counter", lambda: next(clock))
    assert Running(Call(1), 3, lambda: None, lambda n: None, 0.5).turn(1.0) == [6.0, 12.0, 6.0]


class Told(Running):
    """A way whose rates are known."""

    rates: list

    def warm_up(self):
        assert len(self.rates) == 4, "no turn before it"

    def turn(self, seconds):
        assert seconds == 0.25
        return [self.rates.pop(0)]


def told(call, items, rates):
    way = Told(call, items, lambda: None, lambda n: None)
    way.rates = rates
    return way


def test_gains_are_of_the_best_bursts_and_over_the_first():
    heard = []
    slow = told(Call(1), 1, [10.0, 5.0, 10.0, 10.0])
    fast = told(Call(2), 4, [30.0, 15.0, 20.0, 40.0])
    first, other = taking_turns([slow, fast], 1.0, lambda *row: heard.append(row), rounds=4)
    assert (first.gain, first.spread, first.ms) == (1.0, 0.0, 100.0), "the best of its bursts"
    assert other.gain == 4.0 and other.items_per_second == 40.0 and other.ms == pytest.approx(100.0)
    assert other.spread == pytest.approx(1 - 25 / 40) and other.bursts == 4
    assert heard == [("advised calls", n, 2) for n in range(3)]
