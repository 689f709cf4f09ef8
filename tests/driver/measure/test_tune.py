"""Tuning: what wins is kept and used, what wins by less than the spread or computes something else is not, and time is kept."""

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import dcir
from dcir.cache import Cache
from dcir.cli.main import main
from dcir.codegen.choices import MODELS, Choice, decide
from dcir.codegen.cpp.emitters import EMITTERS
from dcir.codegen.tuned import KIND, MOST_TIMES, Database
from dcir.cost.machine import Machine
from dcir.driver import optimize
from dcir.driver.measure import tune
from dcir.driver.measure.api import tune_file
from dcir.driver.measure.tune import Tuner
from dcir.driver.optimize import compiled_with
from dcir.driver.targets.host import host_machine
from dcir.errors import MachineBusy, OptionError
from dcir.identity import source_identity
from dcir.ir.network import Network, Operand
from dcir.isa import host_isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from dcir.options import Options
from tests.on_host import on_host, target

TYPES = (("f32", "f32"), ("f32",))


def spec_of(n):
    return ContractionSpec(alike("f32"), (), 32, n, 400, (400, 1), (0, 0), (n, 1), 32)


def network(*columns):
    net = on_host(Network(), 1)
    x = net.add_container((32 * 400,), "f32", "input")
    for n in columns:
        w = net.add_container((-(-n // 32) * 32 * 400,), "f32", "input")
        y = net.add_container((32 * n,), "f32", "transient")
        net.add_op(spec_of(n), [Operand(x), Operand(w)], [Operand(y)])
        net.promote(y)
    return net


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path))
    return Cache.default()


class Clock:
    """A machine on which nobody else works, where a choice takes the time that a table says."""

    def __init__(self, monkeypatch):
        self.now, self.times, self.jitter, self.wrong, self.trials, self.others = 0.0, {}, 0.0, set(), [], 0.0
        clock = self

        class Trial:
            def __init__(self, buffers, choices, target, cache):
                clock.now += 1.0  # the compiler
                self.kernel, self.choices = buffers, list(choices)
                clock.trials.append((buffers.spec, self.choices))

            def run(self, seconds, least, most=1000):
                clock.now += seconds
                made = [clock.times.get(c, 1e-3) for c in self.choices]
                made[-1] *= 1 + clock.jitter
                return [[t] * least for t in made]

            def right(self, number):
                return self.choices[number] not in clock.wrong

        def share(threads, work):
            work()
            return clock.others

        monkeypatch.setattr(tune, "Trial", Trial)
        monkeypatch.setattr(tune, "Buffers", lambda kernel, parameters, machine: kernel)
        monkeypatch.setattr(tune, "share_of_others", share)
        monkeypatch.setattr(tune, "_LOOK_SECONDS", 0.0)
        monkeypatch.setattr(tune.time, "perf_counter", lambda: clock.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def verdict(cache, n=64):
    return Database(host_machine(1), EMITTERS, source_identity(), cache).find(spec_of(n), TYPES, 1)


OTHER = (8, 2, 1) if host_isa().registers >= 32 else (5, 2, 1)
TILE, COPY = Choice((("tile", OTHER),)), Choice((("ahead", (1024, 3)),))
BOTH = COPY.having("tile", OTHER)


def tuned(cache, *columns, budget=1000.0, **settings):
    tuner = Tuner(budget, cache=cache, **settings)
    tuner.tune(network(*columns))
    return tuner.tuning


def test_the_winner_is_kept(cache, clock):
    clock.times = {TILE: 0.8e-3, COPY: 0.9e-3}
    result = tuned(cache, 64)
    found = verdict(cache)
    assert found.choice == TILE and found.models == pytest.approx(1e-3) and found.seconds == pytest.approx(0.8e-3)
    (row,) = result.rows
    assert row.choice == f"tile {OTHER[0]}x2x1" and row.saved == pytest.approx(0.2e-3) and "+25.0%" in result.to_text()
    assert json.loads(json.dumps(result.to_json()))["kernels"][0]["tried"] == found.tried > 5


def test_the_times_of_all_choices_are_kept(cache, clock):
    """The fastest first, the model's own among them whatever it took, and no more than a few."""
    clock.times = {TILE: 0.8e-3, COPY: 0.9e-3}
    tuned(cache, 64)
    found = verdict(cache)
    assert found.times[0] == (TILE, pytest.approx(0.8e-3)) and (COPY, pytest.approx(0.9e-3)) in found.times
    assert (MODELS, pytest.approx(1e-3)) in found.times and len(found.times) == min(found.tried, MOST_TIMES)
    assert [t for _, t in found.times] == sorted(t for _, t in found.times)


def test_the_models_time_is_kept_where_many_choices_are_faster(cache, clock, monkeypatch):
    monkeypatch.setattr(tune, "MOST_TIMES", 2)
    clock.times = {TILE: 0.8e-3, COPY: 0.9e-3}
    tuned(cache, 64)
    assert [c for c, _ in verdict(cache).times] == [TILE, MODELS]


def test_winners_are_tried_together(cache, clock):
    clock.times = {TILE: 0.8e-3, COPY: 0.9e-3, BOTH: 0.7e-3, TILE.having("ahead", (1024, 3)): 0.7e-3}
    tuned(cache, 64)
    assert dict(verdict(cache).choice.values) == dict(BOTH.values)


def test_a_gain_within_the_spread_is_none(cache, clock):
    clock.times, clock.jitter = {TILE: 0.92e-3}, 0.1
    result = tuned(cache, 64)
    assert verdict(cache).choice == MODELS and verdict(cache).spread == pytest.approx(0.1)
    assert result.saved == 0 and result.to_text().splitlines()[1].split()[1] == "-"
    clock.jitter = 0.05
    tuned(cache, 64, again=True)
    assert verdict(cache).choice == TILE


def test_a_winner_that_computes_something_else_is_refused(cache, clock):
    clock.times, clock.wrong = {TILE: 0.5e-3, COPY: 0.9e-3}, {TILE, BOTH, TILE.having("ahead", (1024, 3))}
    result = tuned(cache, 64)
    assert verdict(cache).choice == COPY
    assert "computes something else" in result.rows[0].note and "computes something else" in result.to_text()


def test_the_budget_is_kept_and_large_kernels_come_first(cache, clock):
    result = tuned(cache, 64, 640, 128, 32, budget=6.0)
    assert clock.now < 6.0 + 2 * 1.5
    assert clock.trials[0][0] == spec_of(640)
    assert result.left + len(result.rows) == 4 and result.left >= 1
    assert verdict(cache, 32) is None
    done = len(result.rows)
    result = tuned(cache, 64, 640, 128, 32)
    assert result.left == 0 and [r.tried for r in result.rows].count(0) == done and clock.trials[-1][0] == spec_of(32)
    trials = len(clock.trials)
    assert [r.tried for r in tuned(cache, 64, 640, 128, 32).rows] == [0] * 4 and len(clock.trials) == trials


def test_a_busy_machine_is_refused(cache, clock):
    clock.times, clock.others = {TILE: 0.5e-3}, 0.5
    with pytest.raises(MachineBusy):
        tuned(cache, 64)
    assert not clock.trials and verdict(cache) is None
    tuned(cache, 64, force=True)
    assert verdict(cache).choice == TILE


def test_what_was_measured_while_others_came_is_not_kept(cache, clock, monkeypatch):
    shares = iter([0.0, 0.5, 0.0])
    monkeypatch.setattr(tune, "share_of_others", lambda threads, work: work() or next(shares))
    clock.times = {TILE: 0.5e-3}
    result = tuned(cache, 64, 128)
    assert verdict(cache, 128) is None and verdict(cache, 64).choice == TILE
    assert "other processes" in result.rows[0].note and result.rows[0].saved == 0


def test_wrong_code_is_found_out(cache, monkeypatch):
    """A real kernel with a real mistake, compiled and run: one vector stands for all."""
    right = EMITTERS.table[ContractionSpec]

    def hasty(spec, machine):
        plan = right(spec, machine)
        if decide("hasty", [0, 1]):
            wrong = plan.globals.replace("acc[i][v] += s * bv[v]", "acc[i][v] += s * bv[0]")
            assert wrong != plan.globals
            return replace(plan, globals=wrong)
        return plan

    EMITTERS.plan(spec_of(64), Machine(host_isa(), 1))
    monkeypatch.setitem(EMITTERS.table, ContractionSpec, hasty)
    (kernel,) = tune.kernels(network(64), 1)
    trial = tune.Trial(tune.Buffers(kernel, 0, tune.rates()), [MODELS, Choice((("hasty", 1),)), TILE], target(1), cache)
    assert not trial.right(1)
    assert trial.right(0) and trial.right(2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(96, 200), nn.Linear(200, 64)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


def test_a_model_is_tuned_and_says_so(cache, monkeypatch):
    """The whole way, measured for real, except that one choice is made to win."""
    monkeypatch.setattr(tune, "share_of_others", lambda threads, work: work() or 0.0)
    final = tune._TuneSearch._final

    def won(self, finalists):
        found = final(self, finalists)
        best = next(iter(self.gains))
        return replace(found, choice=best, models=2 * found.seconds)

    monkeypatch.setattr(tune._TuneSearch, "_final", won)
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(50, 96)
    with torch.no_grad():
        want = net(x)
        plain = dcir.optimize(net, threads=1)
        got = plain(x)
        assert "measured choice" not in str(plain.dcir.explain())
        fast = dcir.optimize(net, threads=1, tune="60s")
        torch.testing.assert_close(fast(x), want)
        report = fast.dcir.explain()
        assert "2 kernels run a measured choice" in str(report)
        assert len(report.to_json()["graphs"][0]["tuned"]) == 2
        assert "2 kernels were measured in several ways (ms, -> runs):" in str(report) and "the model's " in str(report)
        monkeypatch.setattr(tune, "Trial", None)  # nothing is measured any more
        later = dcir.optimize(net, threads=1)
        torch.testing.assert_close(later(x), got)
        assert "2 kernels run a measured choice" in str(later.dcir.explain())
        assert len(cache.ls(KIND)) == 2


@pytest.mark.parametrize(
    ("value", "seconds"), [(True, 60.0), ("5m", 300.0), ("1.5", 1.5), (2, 2.0), (False, None), (None, None)]
)
def test_the_option(value, seconds):
    assert Options.make(tune=value).tune == seconds


@pytest.mark.parametrize("value", ["soon", "-1s", 0, "0s", float("nan"), "1e9999"])
def test_other_budgets_are_refused(value):
    with pytest.raises(OptionError):
        Options.make(tune=value)


def test_kernels_of_dace_have_no_alternatives():
    with pytest.raises(OptionError, match="tune"):
        Options.make(tune=True, target="dace")


MAKE = "import torch\ndef make():\n    return torch.nn.Linear(96, 64).eval(), (torch.randn(32, 96),)\n"


def test_the_verb(cache, tmp_path, monkeypatch):
    file = tmp_path / "nets.py"
    file.write_text(MAKE)
    arguments = ["tune", f"{file}:make", "--threads", "1", "--json"]
    done = CliRunner().invoke(main, [*arguments, "--budget", "5s", "--force"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.output)
    assert data["threads"] == 1 and len(data["kernels"]) + data["left"] == 1
    assert data["kernels"][0]["what"].startswith("product m32 n64 k96")
    monkeypatch.setattr(tune, "share_of_others", lambda threads, work: 0.9)
    assert CliRunner().invoke(main, [*arguments, "--remeasure"]).exit_code == 3
    assert CliRunner().invoke(main, [*arguments, "--budget", "soon"]).exit_code == 2


def test_training_is_tuned_in_training_mode(cache, tmp_path, monkeypatch):
    file = tmp_path / "nets.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).eval(), (torch.randn(4, 8),)\n"
    )
    seen = []

    def compiled(module, session):
        seen.append(module.training)
        return compiled_with(module, session)

    monkeypatch.setattr(optimize, "compiled_with", compiled)
    for train in (False, True):
        tune_file(f"{file}:make", budget=0.1, threads=1, train=train, force=True)
    assert seen == [False, True]
