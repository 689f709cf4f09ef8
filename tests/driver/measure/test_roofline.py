"""Points lie at their analytic intensity, bytes that are predicted are those that are counted, and every setting is measured."""

import dataclasses
import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dcir.driver.measure import api
from dcir.driver.measure import profile as profiling
from dcir.driver.measure import roofline as measuring
from dcir.driver.measure.roofline import roofline
from dcir.errors import InvalidInput, OptionError
from tests.cost.test_machine import MODEL


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    torch.manual_seed(0)
    torch._dynamo.reset()
    monkeypatch.setattr(measuring, "rates", lambda: MODEL)


def measured(make, **settings):
    return roofline(make, **{"threads": [1], "seconds": 0.01, **settings})


class Net(nn.Module):
    """A small CNN."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.conv3 = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 32, 1, stride=2)
        self.head = nn.Linear(32, 7)

    def forward(self, x):
        y = F.relu(self.norm(self.conv1(x)))
        y = F.relu(self.conv3(y + self.conv2(y)))
        return self.head(F.max_pool2d(y, 2).mean((2, 3))).log_softmax(-1)


class Encoder(nn.Module):
    """A small transformer: an embedding, attention and a feed-forward network, each with residual and norm."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(23, 32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, tokens):
        x = self.table(tokens)
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        x = self.norm1(x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


MODELS = {
    "cnn": lambda batch=None: (Net().eval(), (torch.randn(batch or 2, 3, 16, 16),)),
    "transformer": lambda batch=None: (Encoder().eval(), (torch.randint(0, 23, (batch or 2, 12)),)),
}


@pytest.mark.parametrize(
    ("function", "sizes", "flops", "moved"),
    [
        (lambda a: a.t().contiguous(), [(96, 160)], 0, 2 * 4 * 96 * 160),
        (lambda a, b: a + 3.0 * b, [(4096,), (4096,)], 2 * 4096, 3 * 4 * 4096),
        (lambda a, b: a @ b, [(64, 48), (48, 80)], 2 * 64 * 48 * 80, 4 * (64 * 48 + 48 * 80 + 64 * 80)),
    ],
    ids=["copy", "triad", "product"],
)
def test_points_lie_at_their_analytic_intensity(function, sizes, flops, moved):
    found = measured(lambda batch: (function, [torch.randn(s) for s in sizes]))
    (point,) = found.reference.kernels
    assert (point.flops, point.bytes, point.counted) == (flops, moved, moved)
    assert point.intensity == (pytest.approx(flops / moved) if flops else None)
    assert point.gbytes * point.ms == pytest.approx(moved * 1e-6)
    assert found.reference.without_work == ([point] if not flops else [])


def test_float64_is_held_against_its_own_peak():
    def make(batch):
        return (lambda a, b: a @ b), [torch.randn(96, 96, dtype=torch.float64) for _ in range(2)]

    (point,) = measured(make).reference.kernels
    assert point.bound.name == "FLOP" and point.bytes == 3 * 8 * 96 * 96
    assert point.bound.share == pytest.approx(point.flops / 50e9 / (point.ms * 1e-3))


# Where edges say more than is counted, and why.
APART = {
    "transformer": ("loops 2x12x32: copy", "the embedding: edges have all of the table, data ask for a few rows"),
}


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_bytes_are_those_that_are_counted(name, mode):
    found = measured(MODELS[name], mode=mode)
    kernels = found.reference.kernels
    counted = [p for p in kernels if p.counted is not None]
    # What torch runs, and what has no loop nests, cannot be counted.
    uncounted = {p.family for p in kernels if p.counted is None}
    assert uncounted <= {"torch", "scatter"}, uncounted
    apart = [(p.what, p.bytes, p.counted) for p in counted if abs(p.bytes - p.counted) > 0.05 * p.counted]
    expected = [(True, True)] if name in APART else []
    found_apart = [(what.startswith(APART.get(name, ("?",))[0]), b > n) for what, b, n in apart]
    assert len(counted) >= 6 and found_apart == expected, apart


def test_every_setting_is_measured_once():
    made, told = [], []

    def make(batch):
        made.append(batch)
        return MODELS["cnn"](batch)

    found = measured(
        make, threads=[1, 2], batches=[1, 4], levels=[0, 4], seconds=0.001, progress=lambda *row: told.append(row)
    )
    assert made == [1, 4] and len(found.runs) == 8 == len({r.setting for r in found.runs})
    assert told == [("settings", n, 8) for n in range(9)]
    one = {(r.setting.level, r.setting.batch): r for r in found.runs if r.setting.threads == 1}
    images = [next(p for p in one[0, n].kernels if p.family == "convolution").flops for n in (1, 4)]
    assert images[1] == 4 * images[0]
    assert one[0, 4].whole.bytes > one[4, 4].whole.bytes
    assert {p.parameter for p in found.paths} == {"threads", "batch", "level"}
    assert all(len(p.places) == 2 for p in found.paths)
    assert torch.get_num_threads() >= 1


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_the_call_is_kernels_teams_and_what_is_around(mode, monkeypatch):
    """To the nanosecond, whatever the machine does meanwhile: no graph is lost, and nothing counts twice."""
    kept = []

    def summary(recorder, walls, around, threads, **settings):
        kept.append((recorder, walls, around))
        return original(recorder, walls, around, threads, **settings)

    original = profiling.summary
    monkeypatch.setattr(profiling, "summary", summary)
    run = measured(MODELS["cnn"], mode=mode).reference
    ((recorder, walls, around),) = kept
    assert len(recorder.graphs) == len(run.graphs) == 1 + (mode == "train")
    for i, wall in enumerate(walls):
        kernels_and_teams = sum(sum(graph.samples[i]) for graph in recorder.graphs) * 1e-6
        assert wall == pytest.approx(kernels_and_teams + around[i], rel=1e-9) and kernels_and_teams > 0
    assert run.kernel_ms + run.team_ms + run.around_ms == pytest.approx(run.whole.ms, rel=1e-9)
    assert min(walls) <= run.whole.ms <= max(walls) and sum(run.parts.values()) == pytest.approx(run.whole.ms)
    assert sum(p.calls for p in run.kernels) == sum(len(graph.steps) for graph in recorder.graphs)


def test_threads_of_torch_are_put_back():
    before = torch.get_num_threads()
    with pytest.raises(InvalidInput, match="nothing was compiled"):
        measured(lambda batch: ((lambda x: None), [torch.ones(2)]), threads=[before + 1])
    assert torch.get_num_threads() == before


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(OptionError, match="infer, train"):
        measured(MODELS["cnn"], mode="serve")
    with pytest.raises(OptionError, match="threads"):
        measured(MODELS["cnn"], threads=[0])
    with pytest.raises(InvalidInput, match="gradient"):
        measured(lambda batch: ((lambda x: x.argmax() + 1), [torch.ones(3)]), mode="train")


PYTHON = """
import torch
def make(batch=2):
    return torch.nn.Linear(8, 4).eval(), (torch.ones(batch, 8),)
"""


def test_a_file_is_measured_and_drawn(tmp_path):
    (tmp_path / "net.py").write_text(PYTHON)
    found = api.roofline_file(f"{tmp_path}/net.py:make", threads=[1], batches=[1, 8], seconds=0.01)
    assert found.model == "net.py:make" and [r.setting.batch for r in found.runs] == [1, 8]
    runs = json.loads(json.dumps(found.to_json()))["runs"]
    assert runs[1]["whole"]["flops"] == 8 * runs[0]["whole"]["flops"]
    found.save(tmp_path / "r.svg")
    assert "net.py:make" in (tmp_path / "r.svg").read_text()


def exported(path, *, dynamic):
    batch = {0: torch.export.Dim("n", min=1, max=64)} if dynamic else None
    program = torch.onnx.export(
        nn.Linear(8, 4).eval(),
        (torch.ones(2, 8),),
        dynamo=True,
        verbose=False,
        dynamic_shapes=(batch,) if dynamic else None,
    )
    program.save(str(path))
    return path


def test_the_batch_of_an_onnx_file_is_what_it_leaves_open(tmp_path):
    path = exported(tmp_path / "m.onnx", dynamic=True)
    found = api.roofline_file(path, threads=[1], batches=[1, 8], seconds=0.01)
    assert [r.whole.flops for r in found.runs][1] == 8 * found.runs[0].whole.flops
    fixed = exported(tmp_path / "f.onnx", dynamic=False)
    with pytest.raises(OptionError, match="no batch to choose"):
        api.roofline_file(fixed, threads=[1], batches=[1, 8], seconds=0.01)
    assert len(api.roofline_file(fixed, threads=[1], seconds=0.01).runs) == 1


def test_a_precision_is_the_models_and_its_inputs(tmp_path):
    (tmp_path / "net.py").write_text(PYTHON)
    whole, half = (
        api.roofline_file(f"{tmp_path}/net.py:make", threads=[1], precision=precision, seconds=0.01)
        for precision in ("fp32", "bf16")
    )
    assert half.model == "net.py:make in bf16"
    (x,) = [p for p in half.runs[0].kernels if p.family == "product"]
    y = whole.runs[0].kernels[0]
    weights = (
        4 * 8 if "packed" in x.what else 0
    )  # as they are, or widened before: some instruction sets' kernels want them in panels
    assert (x.flops, x.bytes) == (y.flops, y.bytes - 2 * (4 + 2 * 4) - 2 * weights)
    with pytest.raises(OptionError, match="only a module can be cast"):
        api.roofline_file(exported(tmp_path / "f.onnx", dynamic=False), threads=[1], precision="bf16", seconds=0.01)
    with pytest.raises(OptionError, match="fp32, bf16, fp16"):
        api.roofline_file(f"{tmp_path}/net.py:make", precision="int8", seconds=0.01)


def test_work_of_others_is_noticed(monkeypatch):
    monkeypatch.setattr(measuring, "share_of_others", lambda threads, work: work() or 0.25)
    assert measured(MODELS["cnn"]).others == 0.25


def test_a_machine_that_was_not_measured_says_so(monkeypatch):
    monkeypatch.setattr(measuring, "rates", lambda: dataclasses.replace(MODEL, measured=False))
    found = measured(MODELS["cnn"])
    assert "assumed" in found.to_text() and found.to_json()["measured"] is False
    assert all(p.bound.name for p in found.reference.kernels)
