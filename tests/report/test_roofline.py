"""A roofline adds up, says what its trajectories show, and draws names as text inside of its axes."""

import dataclasses
import json
import re
from xml.etree import ElementTree

import pytest

from dcir.cost.bounds import Bound
from dcir.errors import OptionError
from dcir.report.profile import Profile, ProfileStep
from dcir.report.roofline import Roofline
from dcir.report.roofline_axes import Axis, escaped, figure
from dcir.report.roofline_paths import Place, reading
from dcir.report.roofline_points import Setting, run_of, settings_of
from tests.cost.test_machine import MODEL

NASTY = "<img src=x onerror=alert(1)>&\"'\x1b[31m\x00\ud800]]>"


def profile(scale=1.0, threads=1, batch=1, origin="net.py:3"):
    """Three kernels, of which one runs twice, teams, and Python around them; milliseconds."""
    steps = [
        ProfileStep(0, "k0", f"product m{64 * batch} n64 k64", origin, 524288 * batch, 49152, 0.010 / scale, 0.009),
        ProfileStep(0, "k1", "loops 64x64: add", "net.py:4", 4096 * batch, 49152 * batch, 0.001 / scale, 0.001),
        ProfileStep(0, "k1", "loops 64x64: add", "net.py:5", 4096 * batch, 49152 * batch, 0.001 / scale, 0.001),
        ProfileStep(0, "k2", "loops 64x64: copy", "net.py:6", 0, 32768, 0.002, 0.002, None, "f32", 32768),
    ]
    wall = sum(s.ms for s in steps) + 0.001 * (threads > 1) + 0.003
    return Profile(threads, 100, wall, wall, 0.003, 0.001 * (threads > 1), ["inference"], steps)


def roofline(name="net.py:make", origin="net.py:3", **parts):
    runs = []
    for s in settings_of(parts.get("threads", [1]), parts.get("batches", [None]), parts.get("levels", [4])):
        scale = 0.5 * (1 + s.threads) * (0.25 + s.level)
        runs.append(run_of(profile(scale, s.threads, s.batch or 1, origin), s, MODEL))
    return Roofline(name, "infer", MODEL, tuple(runs))


FULL = {"threads": [1, 2, 4], "batches": [1, 4, 16], "levels": [0, 1, 2, 3, 4]}


@pytest.mark.parametrize("threads", [1, 4])
def test_the_parts_of_a_call_are_the_call(threads):
    run = run_of(profile(1.0, threads), Setting(threads, None, 4), MODEL)
    assert run.kernel_ms + run.team_ms + run.around_ms == pytest.approx(run.whole.ms, rel=1e-9)
    assert sum(run.parts.values()) == pytest.approx(run.whole.ms, rel=1e-9)
    assert sum(p.share for p in run.kernels) == pytest.approx(run.kernel_ms / run.whole.ms)
    assert run.whole.flops == sum(p.flops for p in run.kernels) == 524288 + 2 * 4096
    assert run.whole.bytes == sum(p.bytes for p in run.kernels)
    assert run.whole.bound.name == next(iter(run.parts)) and 0 < run.whole.bound.share <= 1
    assert run.whole.counted is None, "two of its kernels were not counted"


def test_equal_kernels_are_one_point_and_bounds_are_of_one_call():
    run = run_of(profile(), Setting(1, None, 4), MODEL)
    product, add, copy = run.kernels
    assert (add.calls, add.origins, add.bytes) == (2, ("net.py:4", "net.py:5"), 2 * 49152)
    # One call reads 48 KB, which lie in the second cache; two of them together would not fit the first of any.
    assert add.bound == Bound("L2", pytest.approx(49152 / 200e9 / 1e-6))
    assert product.intensity == pytest.approx(524288 / 49152) and product.gflops == pytest.approx(52.4288)
    assert copy.intensity is None and copy.gbytes == pytest.approx(16.384) and run.without_work == [copy]
    assert copy.counted == 32768 and add.counted is None


@pytest.mark.parametrize("parts", [{}, {"threads": [1, 4]}, {"batches": [1, 4, 16]}, {"levels": [0, 2, 4]}, FULL])
def test_trajectories_have_a_point_for_each_value(parts):
    found = roofline(**parts)
    values = {"threads": parts.get("threads"), "batch": parts.get("batches"), "level": parts.get("levels")}
    for path in found.paths:
        assert [p.value for p in path.places] == values[path.parameter]
        assert path.shape and path.shows and path.title
    for parameter, wanted in values.items():
        paths = [p for p in found.paths if p.parameter == parameter]
        if wanted is None:
            assert not paths
            continue
        others = len(found.runs) // len(wanted)
        assert sum(p.what == "whole call" for p in paths) == others
        # Both kernels with work have a path through the reference; the copy has no place there.
        through = [p for p in paths if p.at == found.reference.setting]
        assert [p.what.partition(" ")[0] for p in through] == ["whole", "product", "loops"]


def test_levels_are_compared_at_the_work_of_the_lowest():
    low, high = profile(), profile(2.0)
    high.steps[0] = dataclasses.replace(high.steps[0], flops=200_000)  # a form with less arithmetic
    runs = [run_of(p, Setting(1, None, level), MODEL) for p, level in ((low, 0), (high, 4))]
    paths = Roofline("m", "infer", MODEL, tuple(runs)).paths
    for path in paths:
        first, last = path.places
        assert last.gflops / first.gflops == pytest.approx(first.ms / last.ms), "height is speed"
    assert runs[1].whole.flops < runs[0].whole.flops


def test_kernels_without_a_counterpart_have_no_path():
    one, other = profile(), profile(2.0, 4)
    other.steps[0] = dataclasses.replace(other.steps[0], origin="net.py:9")
    runs = tuple(run_of(p, Setting(t, None, 4), MODEL) for p, t in ((one, 1), (other, 4)))
    assert [p.what for p in Roofline("m", "infer", MODEL, runs).paths] == ["whole call", "loops 64x64: add"]


def test_kernels_of_one_place_are_told_apart_by_their_work():
    """As four products of one layer are; where one of them is gone, nobody knows which."""
    one, other = profile(), profile(2.0, 4)
    for p, first in ((one, 0), (other, 1)):
        small = dataclasses.replace(p.steps[0], kernel="k9", what="product m8 n8 k8", flops=1024)
        p.steps.insert(first, small)
    runs = tuple(run_of(p, Setting(t, None, 4), MODEL) for p, t in ((one, 1), (other, 4)))
    found = Roofline("m", "infer", MODEL, runs).paths
    assert [p.what for p in found][1:] == ["product m64 n64 k64", "product m8 n8 k8", "loops 64x64: add"]
    assert all(p.places[0].intensity == p.places[1].intensity for p in found)
    del other.steps[1]
    runs = (runs[0], run_of(other, Setting(4, None, 4), MODEL))
    assert [p.what for p in Roofline("m", "infer", MODEL, runs).paths][1:] == ["loops 64x64: add"]


@pytest.mark.parametrize(
    ("parameter", "first", "last", "bound", "shape", "words"),
    [
        ("threads", (1, 8.0, 50.0), (4, 8.0, 190.0), ("FLOP", 0.9), "up", "straight up: scales"),
        ("threads", (1, 8.0, 50.0), (4, 4.0, 60.0), ("L3", 0.9), "left", "bends left: more bytes"),
        ("threads", (1, 2.0, 20.0), (4, 4.0, 41.0), ("L3", 0.9), "diagonal", "along the diagonal: bandwidth-bound"),
        ("threads", (1, 8.0, 50.0), (4, 8.0, 80.0), ("FLOP", 0.9), "part", "rises less"),
        ("threads", (1, 0.2, 5.0), (4, 0.2, 5.2), ("memory", 0.9), "flat", "at the roof of memory: bandwidth-bound"),
        ("threads", (1, 0.2, 5.0), (4, 0.2, 5.2), ("team", 0.4), "flat", "overhead (team)"),
        ("threads", (1, 0.2, 5.0), (4, 0.2, 5.2), ("no roof", 0.01), "flat", "far below every roof"),
        ("batch", (1, 1.0, 5.0), (16, 10.0, 48.0), ("memory", 0.9), "diagonal", "weights are used again"),
        ("batch", (1, 1.0, 5.0), (16, 2.0, 48.0), ("FLOP", 0.9), "right-up", "right and up: weights are used again"),
        ("batch", (1, 1.0, 5.0), (16, 1.0, 48.0), ("FLOP", 0.9), "up", "fixed costs are shared"),
        ("batch", (1, 1.0, 5.0), (16, 1.0, 5.0), ("memory", 0.9), "flat", "nothing is used again"),
        ("batch", (1, 1.0, 5.0), (16, 1.0, 2.0), ("memory", 0.9), "down", "slower for each image"),
        ("level", (0, 1.0, 5.0), (4, 3.0, 5.0), ("FLOP", 0.2), "right", "fewer bytes, but no faster"),
        ("level", (0, 1.0, 5.0), (4, 1.0, 15.0), ("FLOP", 0.2), "up", "better code for the same bytes"),
        ("level", (0, 1.0, 5.0), (4, 3.0, 15.0), ("L3", 0.9), "diagonal", "as much faster as it moves fewer bytes"),
        ("level", (0, 1.0, 5.0), (4, 3.0, 60.0), ("L3", 0.9), "right-up", "fewer bytes, and other code"),
        ("level", (0, 1.0, 5.0), (4, 1.0, 2.0), ("L3", 0.9), "down", "slower"),
        ("level", (0, 1.0, 5.0), (4, 1.0, 5.1), ("L3", 0.9), "flat", "levels change nothing"),
    ],
)
def test_readings(parameter, first, last, bound, shape, words):
    places = [Place(v, x, y, 1.0, Bound(*bound)) for v, x, y in (first, last)]
    found = reading(parameter, places)
    assert found[0] == shape and words in found[1]


def test_text_and_json_say_the_same():
    found = roofline(**FULL)
    data = json.loads(json.dumps(found.to_json()))
    assert len(data["runs"]) == 45 and data["measured"] is True and len(data["paths"]) == len(found.paths)
    assert data["reference"] == {"threads": 4, "batch": 16, "level": 4}
    assert data["ceilings"][0] == {"name": "L1", "unit": "GB/s", "one": 400.0, "all": 1600.0}
    assert data["ceilings"][-1] == {"name": "f64", "unit": "GFLOP/s", "one": 50.0, "all": 190.0}
    kernel = data["runs"][0]["kernels"][0]
    assert kernel["intensity"] == pytest.approx(kernel["flops"] / kernel["bytes"])
    text = found.to_text()
    for word in (
        "ceilings (measured, spread 2%)",
        "kernels at -O4, 4 threads, batch 16",
        "loops 64x64: copy",
        "net.py:6",
    ):
        assert word in text
    assert "other paths of the whole call" in text and "paths through -O4, 4 threads, batch 16" in text
    assert text.count("over threads") == sum(p.parameter == "threads" for p in found.paths)
    assert "2 more" in roofline().to_text(1) or "1 more" in roofline().to_text(1)
    guessed = dataclasses.replace(found, rates=dataclasses.replace(MODEL, measured=False))
    assert "assumed: `dcir machine` measures them" in guessed.to_text() and "assumed" in guessed.to_svg()


def test_what_to_know_before_believing_the_figures():
    assert roofline(levels=[0]).notes == [] and roofline(levels=[0]).to_json()["notes"] == []
    many = roofline(threads=[1, 8], levels=[0])
    assert "more threads than the 4" in many.notes[0] and many.notes[0] in many.to_text()
    assert many.notes[0] in "".join(ElementTree.fromstring(many.to_svg()).itertext())
    busy = dataclasses.replace(roofline(levels=[0]), others=0.4)
    assert "40% of the processors' time" in busy.to_text() and busy.to_json()["others"] == 0.4
    slow = dataclasses.replace(MODEL, flops_f32=dataclasses.replace(MODEL.flops_f32, one=20e9))
    run = run_of(profile(), Setting(1, None, 4), slow)
    for measured, words in ((True, "measures them again"), (False, "they are assumed")):
        (note,) = Roofline("m", "infer", dataclasses.replace(slow, measured=measured), (run,)).notes
        assert "above the ceilings" in note and words in note
    few = profile()
    few.steps[0] = dataclasses.replace(few.steps[0], counted=40_000)
    (note,) = Roofline("m", "infer", MODEL, (run_of(few, Setting(1, None, 4), MODEL),)).notes
    assert "fewer bytes are counted" in note


def numbers(element, *names):
    return [float(element.get(name)) for name in names]


@pytest.mark.parametrize("parts", [{}, FULL], ids=["one", "full"])
def test_the_picture_holds_every_point(parts):
    found = roofline(**parts)
    root = ElementTree.fromstring(found.to_svg())
    svg = "{http://www.w3.org/2000/svg}"
    frames = [numbers(f, "x", "y", "width", "height") for f in root.iter(svg + "rect") if f.get("class") == "frame"]
    assert len(frames) == 2 + 3 * bool(parts), "the kernels, the strip beside them, and a panel a parameter"

    def inside(x, y):
        return any(a <= x <= a + w and b <= y <= b + h for a, b, w, h in frames)

    discs = [c for c in root.iter(svg + "circle") if c.get("class") == "kernel"]
    assert len(discs) == 3 and all(inside(*numbers(c, "cx", "cy")) for c in discs)
    (whole,) = [p for p in root.iter(svg + "polygon") if p.get("class") == "whole"]
    assert all(inside(*map(float, corner.split(","))) for corner in whole.get("points").split())
    places = [c for c in root.iter(svg + "circle") if c.get("class") == "place"]
    drawn = [p for p in found.paths if p.at == found.reference.setting]
    assert len(places) == sum(len(p.places) for p in drawn) and all(inside(*numbers(c, "cx", "cy")) for c in places)
    steps = [e for e in root.iter(svg + "line") if e.get("class") == "step"]
    assert len(steps) == sum(len(p.places) - 1 for p in drawn)
    roofs = [e for e in root.iter(svg + "line") if "roof" in e.get("class", "").split()]
    assert roofs and all(inside(*numbers(e, "x1", "y1")) and inside(*numbers(e, "x2", "y2")) for e in roofs)
    texts = "".join(root.itertext())
    for word in ("L1 1600 GB/s, 4 threads", "memory 20 GB/s, 1 thread", "f32 380 GFLOP/s, 4 threads", "no FLOP"):
        assert word in texts


def test_what_takes_no_time_or_computes_nothing_is_drawn():
    """A clock may tick between two kernels; a model may be a copy."""
    quick, copy = profile(), profile()
    quick.steps[0] = dataclasses.replace(quick.steps[0], ms=0.0)
    quick.steps[3] = dataclasses.replace(quick.steps[3], ms=0.0)
    copy.steps = copy.steps[3:]
    for one in (quick, copy):
        runs = tuple(run_of(one, Setting(1, None, level), MODEL) for level in (0, 4))
        found = Roofline("m", "infer", MODEL, runs)
        ElementTree.fromstring(found.to_svg())
        assert found.to_text() and found.paths[0].shape == "flat"


def test_area_is_share_of_time():
    root = ElementTree.fromstring(roofline().to_svg())
    radii = {}
    for c in root.iter("{http://www.w3.org/2000/svg}circle"):
        radii[c[0].text.rpartition(": ")[0].partition(",")[0]] = float(c.get("r"))
    run = roofline().reference
    wanted = {f"{p.share:.1%}": p.share for p in run.kernels}
    ratios = [radii[name] ** 2 / share for name, share in wanted.items() if name in radii and radii[name] > 3]
    assert len(ratios) >= 2 and max(ratios) == pytest.approx(min(ratios), rel=0.05)


def test_names_from_models_are_text():
    found = roofline(name=NASTY, origin=NASTY, **FULL)
    picture = found.to_svg()
    root = ElementTree.fromstring(picture)
    allowed = {"svg", "title", "style", "rect", "line", "circle", "polygon", "text"}
    assert {e.tag.rpartition("}")[2] for e in root.iter()} == allowed
    assert not any(name.startswith("on") or "href" in name for e in root.iter() for name in e.attrib)
    assert "<img" not in picture and "&lt;img src=x onerror=alert(1)&gt;" in picture
    assert "\x1b" not in picture and "\x00" not in picture


def test_pictures_and_pages_ask_for_nothing_outside(tmp_path):
    found = roofline(name=NASTY, origin=NASTY, **FULL)
    for name in ("r.svg", "R.HTML"):
        found.save(tmp_path / name)
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert re.findall(r"\w+://[^\"' ]*", text) == ["http://www.w3.org/2000/svg"]
        assert "<script" not in text and "<img" not in text and "url(" not in text and "@import" not in text
        assert "prefers-color-scheme:dark" in text
    assert "<h2>Figures</h2>" in (tmp_path / "R.HTML").read_text(encoding="utf-8")
    with pytest.raises(OptionError, match=r"\.svg or \.html"):
        found.save(tmp_path / "r.png")


def test_axes_hold_their_values():
    axis = Axis.around([0.03, 700.0], 100.0, 500.0)
    assert (axis.least, axis.most) == (0.02, 1000.0) and axis.at(axis.least) == 100.0 and axis.at(axis.most) == 500.0
    assert [word for _, word in axis.ticks()] == ["0.1", "1", "10", "100", "1000"]
    short = Axis.around([3.0, 30.0], 100.0, 500.0)
    assert [word for _, word in short.ticks()] == ["2", "5", "10", "20", "50"]
    for values in ([], [1.0], [5.0], [1e-9, 1e12], [0.0, float("inf"), 7.0]):
        axis = Axis.around(values, 0.0, 1.0)
        assert 0 < axis.least < axis.most and all(0 <= axis.at(v) <= 1 for v in values if 0 < v < 1e99)
    assert [figure(v) for v in (1234.5, 99.94, 0.01234, 0.00001)] == ["1234", "99.9", "0.0123", "0.000010"]
    assert escaped("a\x0b<b>'\"&") == "a\N{REPLACEMENT CHARACTER}&lt;b&gt;&#x27;&quot;&amp;"
