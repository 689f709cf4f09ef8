"""The page of `dcir view` in a browser: every view, on small and large sessions, as one file; skipped where there is no browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dcir.view.one_file import one_file
from tests.view import browser as driver
from tests.view import synthetic

pytest.importorskip("playwright.sync_api", reason="playwright, which drives a browser, is not installed")
pytestmark = pytest.mark.skipif(
    driver.BROWSER is None, reason="no Chromium is installed (Debian: chromium-headless-shell)"
)

ATTACK = "<img src=x onerror=window.attacked=1>"
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
VIEWS = {
    "summary": "#/summary",
    "graph": "#/graph/0?op={op}",
    "beside": "#/graph/0?beside=1",
    "modules": "#/graph/0?view=modules&by=distance",
    "passes": "#/passes/0?pass=fuse-epilogues",
    "kernels": "#/kernel/0",
    "kernel": "#/kernel/0/{kernel}",
    "roofline": "#/roofline",
    "whatif": "#/whatif",
    "memory": "#/memory/{last}",
    "compare": "#/compare",
}


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with driver.browser() as found:
        yield found


def slower(record: dict[str, Any]) -> dict[str, Any]:
    """The same session, with another time of every operator."""
    for graph in record["graphs"]:
        for op in graph["ops"].values():
            op["ms"] = op["ms"] and op["ms"] * 1.25
    return record


SESSIONS = {
    "mlp": lambda: [synthetic.mlp(), slower(synthetic.mlp())],
    "attack": lambda: synthetic.mlp(ATTACK),
    "large": synthetic.large,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of one file per session."""
    folder = tmp_path_factory.mktemp("page")
    for name, make in SESSIONS.items():
        (folder / f"{name}.html").write_text(one_file(json.dumps(make())), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in SESSIONS}


def views(name: str) -> dict[str, str]:
    """Addresses of all views of a session."""
    given = (
        {"op": "100", "kernel": "k_block", "last": "0"}
        if name == "large"
        else {"op": "9", "kernel": "k_gemm_relu", "last": "1"}
    )
    left = () if name == "mlp" else ("compare",)
    return {view: address.format(**given) for view, address in VIEWS.items() if view not in left}


@pytest.mark.parametrize("name", SESSIONS)
def test_every_view_is_drawn_without_an_error_a_request_or_too_many_nodes(
    started: Any, files: dict[str, str], name: str
) -> None:
    with driver.opened(started, files[name]) as (page, seen):
        for view, address in views(name).items():
            driver.go(page, address)
            text = page.inner_text("main")
            assert len(text) > 150, view
            assert page.evaluate("document.querySelectorAll('*').length") <= 2000, view
            assert seen.errors == [] and seen.requests == [], view


def test_what_a_model_names_is_text(started: Any, files: dict[str, str]) -> None:
    with driver.opened(started, files["attack"]) as (page, seen):
        said = 0
        for address in views("attack").values():
            driver.go(page, address)
            said += page.inner_text("body").count(ATTACK)
            assert page.evaluate("document.querySelectorAll('img').length") == 0
            assert page.evaluate("window.attacked") is None
        assert said > 10
        assert ATTACK in page.title()
        assert seen.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(started: Any, files: dict[str, str], view: str, scheme: str) -> None:
    with driver.opened(started, files["mlp"], scheme=scheme) as (page, _):
        driver.go(page, views("mlp")[view])
        page.evaluate(AXE)
        found = page.evaluate("axe.run(document).then(r => r.violations)")
        bad = [
            (v["id"], v["help"], [n["html"][:200] for n in v["nodes"][:3]])
            for v in found
            if v["impact"] in ("serious", "critical")
        ]
        assert bad == []


def test_light_and_dark_are_two(started: Any, files: dict[str, str]) -> None:
    backs = []
    for scheme in ("light", "dark"):
        with driver.opened(started, files["mlp"], scheme=scheme) as (page, _):
            backs.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert backs == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]


@pytest.mark.parametrize("name", ["mlp", "large"])
def test_a_phone_s_width_needs_no_sideways_scrolling_of_the_page(
    started: Any, files: dict[str, str], name: str
) -> None:
    with driver.opened(started, files[name], width=400, height=800) as (page, seen):
        for view, address in views(name).items():
            driver.go(page, address)
            assert page.evaluate("document.documentElement.scrollWidth") <= 400, view
        assert seen.errors == []


CONTROLS = """
() => [...document.querySelectorAll('a[href], button:not(:disabled), input:not(:disabled), select:not(:disabled), summary, [tabindex="0"]')]
    .filter(e => e.tabIndex >= 0 && e.getClientRects().length && !e.closest('fieldset:disabled'))
"""


@pytest.mark.parametrize("view", ["summary", "graph", "modules", "passes", "kernel", "roofline", "whatif", "memory"])
def test_the_tab_key_reaches_every_control(started: Any, files: dict[str, str], view: str) -> None:
    with driver.opened(started, files["mlp"]) as (page, _):
        driver.go(page, views("mlp")[view])
        page.evaluate(
            f"() => {{ window.left = new Set(({CONTROLS})()); window.all = window.left.size; document.body.focus() }}"
        )
        steps = page.evaluate("window.all")
        assert steps > 8
        for _ in range(steps + 5):
            page.keyboard.press("Tab")
            page.evaluate("window.left.delete(document.activeElement)")
        assert page.evaluate("[...window.left].map(e => e.outerHTML.slice(0, 150))") == []


def test_focus_can_be_seen(started: Any, files: dict[str, str]) -> None:
    with driver.opened(started, files["mlp"]) as (page, _):
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.tagName") == "A"
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2


def test_slash_searches_a_line_and_goes_there(started: Any, files: dict[str, str]) -> None:
    with driver.opened(started, files["large"]) as (page, _):
        driver.go(page, "#/graph/0")
        page.keyboard.press("/")
        page.keyboard.type("models.py:149 layers.245.mlp")
        page.wait_for_function("document.querySelector('.hits').textContent !== ''")
        rows = [n for n in range(3000) if 100 + n % 50 == 149 and n // 12 == 245 and n // 6 % 2]
        assert page.inner_text(".hits") == f"{len(rows)} operator{'s' * (len(rows) != 1)}"
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#row-0-{rows[0]}.chosen")
        assert f"op{rows[0]}" == page.inner_text("#side-title")


@pytest.mark.parametrize(
    "query", ["gemm 64 x 128 x 128 number 2999", "layers.249.mlp", "f32[64, 128]", "k_block", "op17"]
)
def test_search_knows_operators_modules_shapes_and_kernels(started: Any, files: dict[str, str], query: str) -> None:
    with driver.opened(started, files["large"]) as (page, _):
        driver.go(page, "#/graph/0")
        page.fill("#search", query)
        page.wait_for_selector("#found li")
        page.fill("#search", query + " nowhere")
        page.wait_for_function("document.querySelector('.hits').textContent === '0 operators'")


def test_arrow_keys_walk_through_the_lanes(started: Any, files: dict[str, str]) -> None:
    with driver.opened(started, files["large"]) as (page, seen):
        driver.go(page, "#/graph/0")
        page.focus(".lanes")
        for key, row in (
            ("ArrowDown", 0),
            ("ArrowDown", 1),
            ("End", 2999),
            ("ArrowUp", 2998),
            ("Home", 0),
            ("PageDown", 20),
        ):
            page.keyboard.press(key)
            page.wait_for_selector(f"#row-0-{row}.chosen")
            assert page.get_attribute(".lanes", "aria-activedescendant") == f"row-0-{row}"
        assert seen.errors == []


def test_the_side_panel_leads_to_the_next_operator(started: Any, files: dict[str, str]) -> None:
    with driver.opened(started, files["mlp"]) as (page, _):
        driver.go(page, "#/graph/0?op=9")
        side = page.inner_text(".side")
        for part in (
            "gemm 64 x 128 x 128 + relu",
            "node0 (aten.mm), node1 (aten.mm)",
            "models.py:10",
            "fuse-epilogues",
            "kept for the backward",
            "✓ passed",
        ):
            assert part in side, part
        page.click("text=read by row 1")
        page.wait_for_selector("#row-0-1.chosen")
        page.click("text=written by row 0")
        page.wait_for_selector("#row-0-0.chosen")


def test_the_backward_leads_to_what_the_forward_kept(started: Any, files: dict[str, str]) -> None:
    with driver.opened(started, files["mlp"]) as (page, _):
        driver.go(page, "#/graph/0?beside=1")
        badges = page.evaluate("[...document.querySelectorAll('.stubs .badge')].map(e => e.textContent)")
        assert badges == ["⇢ 32 KiB"] * 4 + ["⇠ 32 KiB"] * 4
        driver.go(page, "#/graph/1?op=0")
        page.click("text=kept by the forward")
        page.wait_for_selector("#row-0-3.chosen")


def test_what_runs_once_is_no_part_of_a_call(started: Any, files: dict[str, str]) -> None:
    with driver.opened(started, files["mlp"]) as (page, _):
        driver.go(page, "#/kernel/1")
        assert "1 operator only for when parameters change left out" in page.inner_text("main")
        assert "pack f32" not in page.inner_text("main")
        driver.go(page, "#/graph/1?op=8")
        assert page.inner_text("#row-1-8 .what").startswith("once") and page.inner_text("#row-1-8 .number") == "–"


def test_modules_open_by_keyboard_and_equal_blocks_unfold(started: Any, files: dict[str, str]) -> None:
    with driver.opened(started, files["large"]) as (page, seen):
        driver.go(page, "#/graph/0?view=modules")
        page.focus("[aria-label*=': unfold encoder.layers.0']")
        assert "0 to 249: 250 × alike" in page.inner_text(".modules")
        page.keyboard.press("Enter")
        page.wait_for_selector("[aria-label*=': open encoder.layers.7 ']")
        assert 100 < page.evaluate("document.querySelectorAll('.box').length") <= 152
        page.focus("[aria-label*=': open encoder.layers.0 ']")
        page.keyboard.press("Enter")
        page.wait_for_selector("[aria-label*=': open encoder.layers.0.attention']")
        assert page.evaluate("document.querySelectorAll('*').length") <= 2000
        assert seen.errors == []


def test_a_pass_shows_its_difference_and_what_it_says(started: Any, files: dict[str, str]) -> None:
    with driver.opened(started, files["mlp"]) as (page, _):
        driver.go(page, "#/passes/0")
        table = page.inner_text("main table")
        assert "fuse-epilogues" in table and "fold-constants" not in table
        page.check("text=show 1 run that changed nothing")
        assert "fold-constants" in page.inner_text("main table")
        page.click("main table >> text=fuse-epilogues")
        page.wait_for_selector(".difference .added")
        signs = page.evaluate("[...document.querySelectorAll('.difference .row:not(.left) b')].map(e => e.textContent)")
        assert signs.count("+") == 4 and signs.count("−") == 8
        page.click("text=✗ missed (1)")
        assert "softmax runs in torch" in page.inner_text("[aria-labelledby=remarks] table")
        assert "passed" not in page.inner_text("[aria-labelledby=remarks] tbody")


def test_a_kernel_shows_lines_choice_and_text(started: Any, files: dict[str, str]) -> None:
    with driver.opened(started, files["mlp"]) as (page, _):
        driver.go(page, "#/kernel/0/k_gemm_relu")
        text = page.inner_text(".three")
        assert "models.py:10" in text and "→ packed 6 x 16" in text and "void k_gemm_relu" in text
        assert page.inner_text(".code .t-comment >> nth=0") == "// k_gemm_relu: models.py:12"


def test_advice_stands_with_its_gain_its_reason_and_its_line_of_python(started: Any, files: dict[str, str]) -> None:
    with driver.opened(started, files["mlp"]) as (page, _):
        text = page.inner_text("[aria-labelledby=advice]")
        for part in (
            "eager PyTorch 400 → as it is called now 900 → as advised 1,600 (predicted), 4.0× those of eager PyTorch",
            "Run 16 images at once", "1.8× predicted", "a call takes 8.9× as long", "41 % of the bytes of a call are weights. (modelled)",
            "fast(torch.stack(images))",
        ):  # fmt: skip
            assert part in " ".join(text.split()), part
        assert page.query_selector("[aria-labelledby=advice] button:text-is('copy')") is not None


def test_two_sessions_are_compared_kernel_by_kernel(started: Any, files: dict[str, str]) -> None:
    with driver.opened(started, files["mlp"]) as (page, _):
        driver.go(page, "#/compare")
        assert "0.80×" in page.inner_text("main")
        driver.go(page, "#/roofline")
        assert (
            page.evaluate("[...document.querySelectorAll('path.gain title')].map(e => e.textContent)") == ["+25 %"] * 4
        )


def test_a_trajectory_says_what_it_shows(started: Any, tmp_path: Path) -> None:
    record = synthetic.mlp()
    setting = {"threads": 2, "batch": 64, "level": 4}
    places = [
        {"value": n, "intensity": 3.0, "gflops": 20.0 * n, "ms": 1.0 / n, "bound": {"name": "FLOP", "share": 1}}
        for n in (1, 2)
    ]
    path = {
        "parameter": "threads",
        "what": "whole call",
        "origin": "",
        "at": setting,
        "places": places,
        "shape": "up",
        "shows": "it scales",
    }
    record["roofline"] = {"measured": True, "ceilings": [], "notes": [], "runs": [], "paths": [path]}
    (tmp_path / "r.html").write_text(one_file(json.dumps(record)), encoding="utf-8")
    with driver.opened(started, (tmp_path / "r.html").as_uri()) as (page, seen):
        driver.go(page, "#/roofline")
        page.select_option("label:has-text('trajectory') select", label="over threads: whole call, -O4, batch 64")
        assert "it scales" in page.inner_text("main")
        assert page.evaluate("document.querySelectorAll('.plot .stop').length") == 2
        assert seen.errors == []


def test_a_view_that_fails_leaves_the_others(started: Any, tmp_path: Path) -> None:
    record = synthetic.mlp()
    record["graphs"][1]["memory"]["rectangles"] = [None]
    (tmp_path / "r.html").write_text(one_file(json.dumps(record)), encoding="utf-8")
    with driver.opened(started, (tmp_path / "r.html").as_uri()) as (page, _):
        driver.go(page, "#/memory/1")
        page.wait_for_selector("text=This view failed")
        driver.go(page, "#/graph/1")
        page.wait_for_selector(".lanes")


def test_parts_that_do_not_add_up_and_guessed_roofs_are_told(started: Any, tmp_path: Path) -> None:
    record = synthetic.mlp()
    record["profile"]["wall_ms"] *= 2
    record["machine"]["measured"] = False
    (tmp_path / "r.html").write_text(one_file(json.dumps(record)), encoding="utf-8")
    with driver.opened(started, (tmp_path / "r.html").as_uri()) as (page, _):
        assert "in none of these (calls differ by as much) 281 µs (50 %)" in page.inner_text(".legend")
        driver.go(page, "#/roofline")
        assert "roofs are guesses" in page.inner_text("main")


def test_the_fullest_moment_names_who_is_there(started: Any, files: dict[str, str]) -> None:
    record = synthetic.mlp()
    with driver.opened(started, files["mlp"]) as (page, _):
        driver.go(page, "#/memory/1")
        peak = record["graphs"][1]["memory"]["peak"]
        rows = page.inner_text("main tbody >> nth=0")
        assert all(name in rows for name in peak["values"]) and len(peak["values"]) >= 2
        driver.go(page, "#/memory/0")
        assert "cheaper to keep than to compute again" in page.inner_text("main")


def test_the_first_view_of_a_large_session_is_there_within_a_second(started: Any, files: dict[str, str]) -> None:
    took = []
    for _ in range(3):
        with driver.opened(started, files["large"]) as (page, _):
            took.append(page.evaluate("performance.now()"))
    assert min(took) < 1000, took


@pytest.mark.parametrize("text", ["null", "[]", '{"format": "dcir-session/9"}', '{"format": "other"}'])
def test_what_is_no_session_is_refused_in_words(started: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "r.html").write_text(one_file(text), encoding="utf-8")
    with driver.opened(started, (tmp_path / "r.html").as_uri()) as (page, seen):
        assert "cannot be read" in page.inner_text("main")
        assert seen.errors == []


def test_a_session_with_nothing_in_it_is_shown(started: Any, tmp_path: Path) -> None:
    bare = {"format": "dcir-session/1", "model": {"name": "bare"}, "graphs": []}
    empty = bare | {"graphs": [{"id": 0, "kind": "inference", "ops": {}, "values": {}, "snapshots": []}]}
    for record in (bare, empty):
        (tmp_path / "r.html").write_text(one_file(json.dumps(record)), encoding="utf-8")
        with driver.opened(started, (tmp_path / "r.html").as_uri()) as (page, seen):
            for address in views("attack").values():
                driver.go(page, address)
                assert page.inner_text("main").strip()
            assert seen.errors == []
