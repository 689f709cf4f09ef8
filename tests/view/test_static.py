"""Functions of the page's modules: lanes, boxes, differences, search, variants, figures as text; run in a browser."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright, which drives a browser, is not installed")
pytest.importorskip("starlette", reason="the packages of the extra view are not installed")
pytest.importorskip("uvicorn", reason="the packages of the extra view are not installed")

from dcir.report.session_lanes import FAR
from dcir.view.server import serving
from tests.view import browser as driver
from tests.view import synthetic

pytestmark = pytest.mark.skipif(
    driver.BROWSER is None, reason="no Chromium is installed (Debian: chromium-headless-shell)"
)

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def call() -> Iterator[Call]:
    """Runs JavaScript with modules of the page: ``call("lanes", "m => m.NEAR")``, with data as `given`."""
    record = {"format": "dcir-session/1", "graphs": []}
    with (
        serving([record]) as server,
        driver.browser() as started,
        driver.opened(started, server.address) as (page, _),
    ):

        def run(module: str, code: str, given: Any = None) -> Any:
            return page.evaluate(
                f"async given => {{ const m = await import('/{module}.js'); return ({code})(m, given) }}", given
            )

        yield run


def network(seed: int, size: int) -> list[dict[str, list[str]]]:
    """Rows that read earlier ones, mostly near."""
    draw = random.Random(seed)
    rows = []
    for n in range(size):
        reads = {n - 1 - min(n - 1, int(draw.expovariate(0.4))) for _ in range(draw.randint(0, 3))} if n else set()
        rows.append({"reads": [f"y{m}" for m in reads], "writes": [f"y{n}"]})
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_every_read_joins_two_near_rows_or_is_a_stub(call: Call, seed: int) -> None:
    rows = network(seed, 400)
    rows[399]["reads"].append("y3")
    lanes = call("lanes", "(m, rows) => m.lanesOf(rows)", rows)
    for n, row in enumerate(rows):
        read = {int(name[1:]) for name in row["reads"]}
        assert set(lanes["ins"][n]) == {m for m in read if n - m <= FAR}
        assert set(lanes["far"][n]) == {m for m in read if n - m > FAR}
    assert lanes["out"][3] == [399]


def test_near_is_what_columns_are_made_for(call: Call) -> None:
    assert call("lanes", "m => m.NEAR") == FAR


def test_lines_that_only_pass_are_drawn_too(call: Call) -> None:
    rows = [{"reads": ["y0"] if n == 30 else [], "writes": [f"y{n}"]} for n in range(60)]
    code = "(m, rows) => m.linesOf(m.lanesOf(rows, rows.map(() => 2)), 10, 20, c => 10 * c, r => 5 * r)"
    assert call("lanes", code, rows) == "M20 0V150"


def test_lanes_of_three_thousand_operators_take_no_time(call: Call) -> None:
    once = "() => { const t = performance.now(); m.lanesOf(rows); return performance.now() - t }"
    took = call("lanes", f"(m, rows) => Math.min(...[1, 2, 3].map({once}))", network(0, 3000))
    assert took < 50  # milliseconds


def test_equal_blocks_are_one_box_until_they_are_unfolded(call: Call) -> None:
    code = """async (m, raw) => {
        const { sessionOf } = await import('/session.js');
        const graph = sessionOf(raw).graphs[0];
        const root = m.treeOf(graph);
        const shown = opened => {
            const names = [];
            const walk = node => node.children.forEach(c => { names.push(c.box.key); walk(c) });
            walk(m.visible(graph, root, new Set(opened)));
            return names;
        };
        const first = [...m.openAtFirst(root)];
        const run = [...first, 'run:encoder.layers.0'];
        const deep = [...run, 'encoder.layers.200', 'encoder.layers.200.mlp'];
        return [first, shown(first), shown(run), shown(deep), m.pathTo(root, graph.rows[2405])];
    }"""
    first, folded, unfolded, deep, path = call("module_tree", code, synthetic.large())
    assert first == ["encoder", "encoder.layers"]
    assert folded == ["encoder", "encoder.layers", "run:encoder.layers.0"]
    assert unfolded[-1] == "rest:encoder.layers" and len(unfolded) == 151
    assert len(deep) <= 153 and "encoder.layers.200.mlp" in deep and "op:2406" in deep
    assert path == [
        "encoder",
        "encoder.layers",
        "run:encoder.layers.0",
        "encoder.layers.200",
        "encoder.layers.200.attention",
    ]


def differed(call: Call, before: list[str], after: list[str], labels: dict[str, str]) -> Any:
    code = """(m, [before, after, labels]) => {
        const ops = new Map(Object.entries(labels).map(([id, label]) => [id, { id, label, before: [] }]));
        const { lines, counts, moved } = m.difference({ ops }, before, after);
        return [lines.map(l => l.sign + (l.op?.id ?? l.left)), counts, moved];
    }"""
    return call("difference", code, [before, after, labels])


def test_a_difference_tells_new_removed_changed_and_moved_apart(call: Call) -> None:
    labels = {str(n): f"op{n}" for n in range(20)} | {"20": "op5", "21": "fused"}
    before = [str(n) for n in range(20)]
    after = ["1", "0", "2", "3", "4", "20", *(str(n) for n in range(8, 20)), "21"]
    lines, counts, moved = differed(call, before, after, labels)
    assert counts == {"+": 1, "−": 2, "~": 1} and moved == 2
    assert [x for x in lines if x[0] in "+−~"] == ["−6", "−7", "~20", "+21"]
    assert "…3" in lines or "…8" in lines
    assert differed(call, before, before, labels) == [[], {"+": 0, "−": 0, "~": 0}, 0]


def test_what_a_new_operator_was_made_of_stands_above_it(call: Call) -> None:
    code = """m => {
        const made = (id, before) => [id, { id, label: `op${id}`, before }];
        const ops = new Map([...'abcdefgh'].map(id => made(id, [])).concat([made('x', ['b', 'g']), made('y', ['x', 'c'])]));
        return m.difference({ ops }, [...'abcdefgh'], [...'adefhy']).lines.map(l => l.sign + (l.op?.id ?? l.left));
    }"""
    assert call("difference", code) == ["…3", " f", " h", "−b", "−g", "−c", "+y"]


def test_search_wants_all_words(call: Call) -> None:
    texts = ["gemm layers.0 models.py:12", "relu layers.0", "gemm layers.1"]
    for query, rows in (("gemm", [0, 2]), ("layers.0 GEMM", [0]), ("models.py:12", [0]), ("nothing", []), ("  ", [])):
        assert call("search", f"(m, texts) => m.found(texts, {query!r})", texts) == rows


def test_variants_are_a_tree_whatever_their_parents_say(call: Call) -> None:
    variants = [
        {"id": 0, "parent": None},
        {"id": 1, "parent": 0},
        {"id": 2, "parent": 0},
        {"id": 3, "parent": 1},
        {"id": 8, "parent": 9},
        {"id": 9, "parent": 8},
    ]
    rows = call("whatif_tree", "(m, v) => m.inTree(v).map(r => [r.id, r.depth])", variants)
    assert rows == [[0, 0], [1, 1], [3, 2], [2, 1], [8, 0], [9, 0]]


def test_deltas_are_equal_in_any_order(call: Call) -> None:
    one = {"disable": ["a", "b"], "fields": {"p": {"x": 1, "y": 2}, "q": {}}}
    two = {
        "disable": ["b", "a"],
        "fields": {"p": {"y": 2, "x": 1}},
        "skip": [],
        "level": None,
        "threads": None,
        "batch": None,
    }
    assert call("whatif_tree", "(m, [a, b]) => m.equal(a, b)", [one, two]) is True
    assert call("whatif_tree", "(m, [a, b]) => m.equal(a, b)", [one, two | {"level": 3}]) is False
    assert call("whatif_tree", "(m, d) => m.deltaText(d)", one) == "without a, without b, p.x = 1, p.y = 2"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("m.ms(0.0123)", "12.3 µs"), ("m.ms(1.5)", "1.50 ms"), ("m.ms(2500)", "2.50 s"), ("m.ms(null)", "–"), ("m.bytes(1536)", "1.50 KiB"),
        ("m.bytes(0)", "0 B"), ("m.flops(2e9)", "2 GFLOP"), ("m.signed(-2048, m.bytes)", "−2 KiB"), ("m.signed(0, m.bytes)", "±0"),
        ("m.percent(0.031)", "3.1 %"), ("m.percent(0.5)", "50 %"), ("m.ratio(1.834)", "1.8×"), ("m.ratio(null)", "–"),
        ("m.shortened('abcdefgh', 5)", "ab…gh"),
        ("m.plural(1, 'kernel')", "1 kernel"), ("m.plural(3000, 'kernel')", "3,000 kernels"),
    ],
)  # fmt: skip
def test_figures_are_text_with_their_units(call: Call, code: str, text: str) -> None:
    assert call("format", f"m => {code}") == text


def test_a_roof_is_the_lower_of_two(call: Call) -> None:
    code = "m => [0.5, 2, 50].map(i => m.roofAt(i, { value: 20 }, { value: 180 }))"
    assert call("roofline_scale", code) == [10, 40, 180]


def test_code_keeps_every_letter(call: Call) -> None:
    text = synthetic.KERNEL.format(name="k") + "#include <x>\n/* <b>two\nlines</b> */\n"
    lines = call("code", "(m, text) => m.linesOfCode(text)", text)
    assert "\n".join("".join(piece for piece, _ in line) for line in lines) == text
    assert {kind for line in lines for _, kind in line} >= {"", "comment", "keyword", "number", "function"}
    assert [kind for line in lines for piece, kind in line if "lines</b>" in piece] == ["comment"]
