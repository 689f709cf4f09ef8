"""A profile as a trace: every step in its track, nothing over another, and times that add up."""

import itertools
import json

import pytest

from dcir.errors import OptionError
from dcir.report.chrome_trace import AROUND, GRAPHS, KERNELS, TEAMS, TORCH, TRACKS
from dcir.report.profile import Profile, ProfileStep
from tests.report.test_roofline import NASTY, profile


def two_graphs():
    steps = [
        ProfileStep(2, "k0", "product m8 n8 k8", "model.up (net.py:3)", 1024, 768, 0.5, 0.4),
        ProfileStep(2, "aten.inv", "torch aten.inv", NASTY, 0, 0, 0.25, 0.2, torch=True),
        ProfileStep(5, "k1", "loops 8: add", "", 8, 96, 0.125, 0.1, 0.05),
    ]
    return Profile(2, 10, 1.5, 1.25, 0.5, 0.125, ["forward", "backward"], steps)


def complete(trace, track=None):
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and track in (None, e["tid"])]


def test_every_step_is_an_event_of_its_track():
    trace = two_graphs().to_chrome_trace()
    assert [e["name"] for e in complete(trace, KERNELS)] == ["product m8 n8 k8 [model.up (net.py:3)]", "loops 8: add"]
    assert [e["name"] for e in complete(trace, TORCH)] == [f"torch aten.inv [{NASTY}]"]
    assert [(e["name"], e["ts"], e["dur"]) for e in complete(trace, GRAPHS)] == [
        ("forward", 625.0, 750.0),
        ("backward", 1375.0, 125.0),
    ]
    assert [(e["ts"], e["dur"]) for e in complete(trace, AROUND) + complete(trace, TEAMS)] == [
        (0, 500.0),
        (500.0, 125.0),
    ]
    first = complete(trace, KERNELS)[0]["args"]
    assert first["kernel"] == "k0" and first["bytes"] == 768 and first["GFLOP/s"] == pytest.approx(1024 * 2e-6)


@pytest.mark.parametrize("found", [profile(), profile(threads=4), two_graphs()])
def test_nothing_lies_over_another_and_all_is_there(found):
    trace = found.to_chrome_trace()
    for track in TRACKS:
        spans = [(e["ts"], e["ts"] + e["dur"]) for e in complete(trace, track)]
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(spans))
    total = sum(e["dur"] for e in complete(trace) if e["tid"] != GRAPHS)
    assert total == pytest.approx((found.kernel_ms + found.team_ms + found.around_ms) * 1e3)
    named = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert named == TRACKS
    wanted = {"name", "ph", "pid", "tid", "args"}
    assert all(wanted <= e.keys() and (e["ph"] == "M" or e["dur"] >= 0) for e in trace["traceEvents"])


def test_it_is_written_as_json_and_as_nothing_else(tmp_path):
    found = two_graphs()
    found.save(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text()) == json.loads(json.dumps(found.to_chrome_trace()))
    with pytest.raises(OptionError, match=r"as a trace in \.json"):
        found.save(tmp_path / "t.html")
