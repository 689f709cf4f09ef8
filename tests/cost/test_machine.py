"""The machine's constants: read from the system, assumed, measured, remembered, and refused when others are working."""

import dataclasses
import json

import pytest
from click.testing import CliRunner

from dcir.cache import Cache
from dcir.cli.main import main
from dcir.codegen.cpp.toolchain import cpu_identity
from dcir.cost.machine import CacheLevel, Machine, MachineRates, Rate, assumed, data_caches, remember, remembered
from dcir.driver.measure import machine as measuring
from dcir.errors import MachineBusy
from dcir.isa import ISAS

MODEL = MachineRates(
    "a processor", "avx2", 4,
    (CacheLevel(1, 32 << 10, 8, 64, 1), CacheLevel(2, 1 << 20, 16, 64, 2), CacheLevel(3, 8 << 20, 16, 64, 4)),
    Rate(100e9, 380e9), Rate(50e9, 190e9),
    (Rate(400e9, 1600e9), Rate(200e9, 800e9), Rate(100e9, 250e9), Rate(20e9, 40e9)), 2e-6, 5e-7, True, 0.02, 0.01,
)  # fmt: skip


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def quiet(monkeypatch):
    """A machine on which nobody else works, measured in no time."""
    runs = []

    def share(threads, work):
        work()
        return quiet.others

    quiet = type("Quiet", (), {"others": 0.0, "runs": runs, "spread": 0.01})
    monkeypatch.setattr(measuring, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(measuring, "share_of_others", share)
    monkeypatch.setattr(
        measuring._Bench, "run", lambda self: runs.append(1) or dataclasses.replace(MODEL, spread=quiet.spread)
    )
    return quiet


def test_the_floor_is_the_higher_of_two_roofs():
    assert MODEL.floor_seconds(380_000_000_000, 4) == 1.0
    assert MODEL.floor_seconds(100_000_000_000, 4, threads=1) == 1.0
    assert MODEL.floor_seconds(50_000_000_000, 4, threads=1, dtype="f64") == 1.0
    far = 1 << 30
    assert MODEL.floor_seconds(1, far) == far / 40e9
    assert MODEL.floor_seconds(0, 0) == 0


def test_data_is_read_from_the_nearest_memory_that_holds_it():
    sizes = [32 << 10, (32 << 10) + 1, 1 << 20, (1 << 20) + 1, 8 << 20, (8 << 20) + 1]
    assert [MODEL.read_rate(n, 1) * 1e-9 for n in sizes] == [400, 200, 200, 100, 100, 20]
    # Two threads share a second-level cache, four threads have four first-level caches and two second-level ones.
    assert MODEL.read_rate(1 << 20, 2) == MODEL.reads[1].of(2, 4)
    assert MODEL.read_rate(4 * (32 << 10), 4) == 1600e9
    assert MODEL.read_rate(2 << 20, 4) == 800e9
    assert Rate(20.0, 50.0).of(2, 4) == 40.0 and Rate(20.0, 50.0).of(3, 4) == 50.0


def test_caches_are_read_from_the_system(tmp_path):
    def index(number, **facts):
        folder = tmp_path / "cpu0" / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        for name, text in facts.items():
            (folder / name).write_text(text + "\n")

    index(
        0,
        level="1",
        type="Data",
        size="48K",
        ways_of_associativity="12",
        coherency_line_size="64",
        shared_cpu_list="0,8",
    )
    index(1, level="1", type="Instruction", size="32K", shared_cpu_list="0")
    index(2, level="2", type="Unified", size="2M", ways_of_associativity="16", shared_cpu_list="0-1,8-9")
    index(3, level="3", type="Unified", size="broken")
    assert data_caches(tmp_path) == (CacheLevel(1, 48 << 10, 12, 64, 2), CacheLevel(2, 2 << 20, 16, 64, 4))
    assert [c.level for c in data_caches(tmp_path / "nothing")] == [1, 2, 3]


def test_nothing_needs_a_measurement():
    model = assumed(ISAS["avx512"])
    assert not model.measured and model.threads >= 1 and len(model.reads) == len(model.caches) + 1
    assert model.flops_f32.one == 2 * model.flops_f64.one
    assert model.flops() >= model.flops(1) > 0 and model.floor_seconds(10**9, 10**9) > 0
    assert "assumed" in model.to_text()


@pytest.mark.parametrize(("isa", "half"), [("amx", 16), ("avx512bf16", 2), ("avx512", 1), ("avx2", 1)])
def test_peaks_of_bf16_where_a_processor_multiplies_it(isa, half):
    model = assumed(ISAS[isa])
    assert model.flops(1, "bf16") == half * model.flops_f32.one
    assert model.flops(1, "f64") == model.flops_f64.one
    assert model.arithmetic == (("f32", "f64", "bf16") if half > 1 else ("f32", "f64"))
    # Of float32 a matrix unit makes one product of six.
    assert model.flops(1) == pytest.approx(model.flops_f32.one * (16 / 6 if isa == "amx" else 1))


def test_a_model_is_remembered_and_replaced(cache):
    assert remembered("cpu", cache) is None
    remember(MODEL, "cpu", cache)
    assert remembered("cpu", cache) == MODEL and remembered("another", cache) is None
    other = dataclasses.replace(MODEL, spread=0.5)
    remember(other, "cpu", cache)
    assert remembered("cpu", cache) == other


@pytest.mark.parametrize("change", [{"reads": []}, {"flops_f32": {"one": 0, "all": 1}}, {"threads": 0}, {"extra": 1}])
def test_a_broken_record_is_not_believed(cache, change):
    with pytest.raises((KeyError, TypeError, ValueError)):
        MachineRates.from_json({**MODEL.to_json(), **change})
    assert MachineRates.from_json(json.loads(json.dumps(MODEL.to_json()))) == MODEL


def test_it_is_measured_once(cache, quiet):
    first = measuring.measure(cache=cache)
    assert first.measured and measuring.measure(cache=cache) == first and len(quiet.runs) == 1
    measuring.measure(again=True, cache=cache)
    assert len(quiet.runs) == 2
    assert remembered(cpu_identity(), cache) == first


@pytest.mark.parametrize("trouble", [{"others": 0.5}, {"spread": 0.5}])
def test_a_busy_machine_is_refused_unless_forced(cache, quiet, trouble):
    for name, value in trouble.items():
        setattr(quiet, name, value)
    with pytest.raises(MachineBusy, match="50%") as caught:
        measuring.measure(cache=cache)
    assert "--force" in str(caught.value) and remembered(cpu_identity(), cache) is None
    forced = measuring.measure(force=True, cache=cache)
    assert forced.others == quiet.others and remembered(cpu_identity(), cache) == forced


def test_work_of_other_processes_is_seen(monkeypatch):
    times = iter([100.0, 101.0])
    monkeypatch.setattr(measuring, "_busy_seconds", lambda: next(times))
    clock = iter([0.0, 1.0])
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: next(clock))
    own = iter([(0.0,) * 5, (0.0,) * 5, (0.4, 0.0, 0.0, 0.0, 0.0)])
    next(own)
    monkeypatch.setattr(measuring.os, "times", lambda: next(own))
    assert measuring.share_of_others(2, lambda: None) == pytest.approx((1.0 - 0.4 - 0.02) / 2)


def test_every_kernel_measures(cache, monkeypatch):
    monkeypatch.setattr(measuring, "_REPEATS", 3)
    monkeypatch.setattr(measuring, "_SECONDS", 0.001)
    model = measuring.measure(force=True, cache=cache)
    assert model.measured and model.spread >= 0
    # Ten times below what any processor of these instruction sets does: other work may slow this down, not that much.
    assert model.flops_f32.one > 1e9 and model.flops_f64.one > 5e8
    assert all(r.one > 2e8 for r in model.reads) and model.region_seconds > 0 and model.barrier_seconds > 0
    assert model.caches == data_caches()


def test_measuring_kernels_do_the_work_that_is_counted():
    text = measuring.kernels_text(32, 12)
    assert text.count("* x + y;") == 2 * 12
    assert text.count("^= p[i + ") == 8 and "for (long i = 0; i < n; i += 8)" in text


def test_the_verb(tmp_path, monkeypatch, quiet):
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path / "home"))
    quiet.others = 0.9
    refused = CliRunner().invoke(main, ["machine"])
    assert refused.exit_code == 3 and "MachineBusy" in refused.output
    told = CliRunner().invoke(main, ["machine", "--force"])
    assert told.exit_code == 0 and "fp32 GFLOP/s" in told.output
    data = json.loads(CliRunner().invoke(main, ["machine", "--json"]).output)
    assert data["measured"] and data["flops_f32"] == {"one": 100e9, "all": 380e9}


def test_all_that_decides_code_is_in_the_key():
    """Two machines for which emitters may write other text name their kernels otherwise."""
    plain = Machine(ISAS["avx512"], 2)
    others = [
        dataclasses.replace(plain, threads=3),
        Machine(ISAS["avx2"], 2),
        Machine(dataclasses.replace(ISAS["avx512"], slow_fills=True), 2),
    ]
    assert len({m.key for m in (plain, *others)}) == 4
    assert dataclasses.replace(plain, identity="another").key == plain.key  # where it may run, not what it says
