"""torch.profiler sees calls of compiled code, and on request its kernels, at their own times; who does not look pays nothing."""

import itertools
import json
import sys

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import dcir
from dcir.errors import OptionError
from dcir.frontends.torch import ahead_of_time
from dcir.frontends.torch.gates import Gates
from dcir.ir.places import titled
from dcir.runtime import watch
from dcir.runtime.recorder import functions

pytestmark = pytest.mark.usefixtures("fresh")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(24, 48), nn.Linear(48, 5)

    def forward(self, x):
        return self.down(torch.softmax(self.up(x), -1))


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def seen(call, times=1):
    """The events of some calls, without those of the profiler itself, and the profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        for _ in range(times):
            call()
    return [e for e in prof.events() if e.name.startswith("dcir")], prof


def inside(event, outer):
    return outer.time_range.start <= event.time_range.start and event.time_range.end <= outer.time_range.end


@torch.no_grad()
def test_every_call_is_an_event_without_being_asked_for():
    model, x = Net().eval(), torch.randn(3, 24)
    fast = dcir.optimize(model)
    for _ in range(8):
        fast(x)
    events, prof = seen(lambda: fast(x), 5)
    assert [e.name for e in events] == ["dcir: Net inference"] * 5
    (row,) = [r for r in prof.key_averages() if r.key.startswith("dcir")]
    assert row.count == 5 and row.cpu_time_total > 0


@pytest.mark.parametrize("threads", [1, 2])
@torch.no_grad()
def test_kernels_are_events_inside_of_their_call(threads, tmp_path):
    model, x = Net().eval(), torch.randn(3, 24)
    fast = dcir.optimize(model, record_function=True, threads=threads)
    plain = dcir.optimize(model, threads=threads)
    assert torch.equal(fast(x), plain(x))
    events, prof = seen(lambda: torch.testing.assert_close(fast(x), plain(x), rtol=0, atol=0), 3)
    (graph,) = fast.dcir.explain().graphs
    calls = [e for e in events if e.name == "dcir: Net inference"]
    kernels = [e for e in events if e.name not in {c.name for c in calls}]
    assert len(calls) == 6 and len(kernels) == 3 * graph.calls
    steps = [titled(f"dcir: {s.what}", (s.origin,)) for s in fast.dcir.profile(x, seconds=0.01).steps]
    assert [k.name for k in kernels] == steps * 3
    assert any("model.up (test_profiler_events.py:" in name for name in steps)
    for n, call in enumerate(calls[::2]):  # every other call is the plain twin's
        mine = kernels[n * graph.calls : (n + 1) * graph.calls]
        assert all(inside(k, call) and k.cpu_parent is call for k in mine)
        assert all(a.time_range.end <= b.time_range.start for a, b in itertools.pairwise(mine))
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    written = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e.get("ph") == "X"]
    assert sum(e["name"] == steps[0] for e in written) == 3 * steps.count(steps[0])


def test_forward_and_backward_are_told_apart():
    fast = dcir.optimize(Net(), record_function=True)
    x = torch.randn(3, 24)

    def step():
        fast(x).sum().backward()

    step()
    events, _ = seen(step)
    forward, backward = ([e for e in events if e.name == f"dcir: Net {kind}"] for kind in ("forward", "backward"))
    graphs = {g.kind: g.calls for g in fast.dcir.explain().graphs}
    for (call,), kind in ((forward, "forward"), (backward, "backward")):
        assert sum(e.cpu_parent is call for e in events) == graphs[kind]


def test_a_backward_that_runs_in_parts_has_an_event_for_each(monkeypatch):
    monkeypatch.setattr(ahead_of_time, "gates_of_call", Gates)  # as in a DistributedDataParallel
    fast = dcir.optimize(nn.Sequential(*(nn.Linear(160, 160) for _ in range(6))), record_function=True)
    x = torch.randn(8, 160)

    def step():
        fast(x).sum().backward()

    step()
    events, _ = seen(step)
    (graph,) = [g for g in fast.dcir.explain().graphs if g.kind == "backward"]
    parts = [e for e in events if e.name.startswith("dcir: Sequential backward, part ")]
    assert [e.name.rpartition(", ")[2] for e in parts] == [f"part {n + 1} of {graph.parts}" for n in range(graph.parts)]
    assert graph.parts > 1 and sum(e.cpu_parent in parts for e in events) == graph.calls


@torch.no_grad()
def test_what_a_call_into_torch_does_lies_inside_its_step():
    def inverse(x):
        return torch.linalg.inv(x) + 1

    fast = dcir.optimize(inverse, record_function=True)
    x = torch.eye(6) * 3
    fast(x)
    events, prof = seen(lambda: fast(x))
    (step,) = [e for e in events if e.name.startswith("dcir: torch aten.linalg_inv_ex")]
    (own,) = [e for e in prof.events() if e.name == "aten::linalg_inv_ex"]
    assert own.cpu_parent is step and inside(own, step) and step.cpu_parent.name == "dcir: inverse inference"


@torch.no_grad()
def test_a_failing_step_ends_its_event():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(4, 8)

        def forward(self, rows):
            return self.table(rows).sum(-1)

    fast = dcir.optimize(Rows(), record_function=True)
    good, bad = torch.tensor([1, 2]), torch.tensor([1, 9])
    fast(good)

    def both():
        with pytest.raises(dcir.errors.IndexOutOfRange):
            fast(bad)
        fast(good)

    events, _ = seen(both)
    first, second = (e for e in events if e.name == "dcir: Rows inference")
    assert first.time_range.end <= second.time_range.start
    steps = [e for e in events if e.name.startswith("dcir: ") and e not in (first, second)]
    assert {id(e.cpu_parent) for e in steps} == {id(first), id(second)}


@torch.no_grad()
def test_images_that_stream_are_told_of_by_the_first_thread():
    net = nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))).eval()
    x = torch.randn(8, 16, 56, 56)
    fast = dcir.optimize(net, record_function=True, threads=2)
    fast(x)
    torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
    events, _ = seen(lambda: fast(x))
    (call,) = [e for e in events if e.name == "dcir: Sequential inference"]
    kernels = [e for e in events if e is not call]
    assert kernels and all(e.cpu_parent is call for e in kernels)


@torch.no_grad()
def test_sizes_that_move_have_one_name_for_all():
    def mixed(x):
        return torch.softmax(x - x.mean(0), 0)

    fast = dcir.optimize(mixed, record_function=True, dynamic=True)
    fast(torch.randn(5, 24))
    assert fast.dcir.explain().graphs[-1].bounds
    names = [{e.name for e in seen(lambda n=n: fast(torch.randn(n, 24)))[0]} for n in (9, 11)]
    assert names[0] == names[1] and len(names[0]) > 1


def counted(call):
    """Calls of Python and C functions that one call takes."""
    found = []
    sys.setprofile(lambda frame, event, what: found.append(event) if event in ("call", "c_call") else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(found)


@torch.no_grad()
def test_a_call_that_nobody_profiles_is_as_short_as_without_the_option():
    x = torch.randn(3, 24)
    counts = []
    for wish in (False, True):
        torch._dynamo.reset()
        fast = dcir.optimize(Net().eval(), record_function=wish)
        for _ in range(12):
            fast(x)
        counts.append(counted(lambda fast=fast: fast(x)))
    assert counts[0] == counts[1]


@pytest.mark.skipif(not watch.available(), reason="dictionaries without versions")
@torch.no_grad()
def test_the_short_way_is_left_while_the_profiler_is_on_and_found_again():
    fast, x = dcir.optimize(Net().eval(), record_function=True), torch.randn(3, 24)
    for _ in range(12):
        fast(x)
    before = counted(lambda: fast(x))
    events, _ = seen(lambda: fast(x), 12)
    assert sum(e.name == "dcir: Net inference" for e in events) == 12
    for _ in range(40):
        fast(x)
    assert counted(lambda: fast(x)) == before


def test_what_cannot_tell_of_kernels_refuses(tmp_path):
    with pytest.raises(OptionError, match="record_function=True"):
        dcir.optimize(Net(), record_function=True, target="dace")
    with pytest.raises(OptionError, match="option record_function cannot be"):
        dcir.optimize(Net(), record_function="yes")
    from dcir.driver import api

    with pytest.raises(OptionError, match="calls alone"):
        api.save(Net().eval(), [torch.zeros(1, 24)], tmp_path / "net.dcir", record_function=True)


def test_a_torch_without_the_functions_is_told_so(monkeypatch):
    functions.cache_clear()
    monkeypatch.setattr("dcir.runtime.recorder._FUNCTIONS", ("aoti_record_no_such_function",))
    with pytest.raises(OptionError, match="no functions to record kernels with"):
        functions()
    functions.cache_clear()


@torch.no_grad()
def test_a_loaded_file_is_an_event(tmp_path):
    from dcir.driver import api

    x = torch.randn(1, 24)
    api.save(Net().eval(), [x], tmp_path / "net.dcir")
    fast = dcir.load(tmp_path / "net.dcir")
    fast(x)
    events, _ = seen(lambda: fast(x))
    assert [e.name for e in events] == ["dcir: a compiled file, inference"]
