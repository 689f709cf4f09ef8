"""What `dcir view` writes of real networks, forward and backward, in a browser: its size, every view, lines, reasons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

pytest.importorskip("playwright.sync_api", reason="playwright, which drives a browser, is not installed")

from dcir.driver.view.files import view_files
from dcir.driver.view.view import View
from tests.driver.test_onnx_origins import HOSTILE, residual
from tests.view import browser as driver

pytestmark = [
    pytest.mark.skipif(driver.BROWSER is None, reason="no Chromium is installed (Debian: chromium-headless-shell)"),
    pytest.mark.in_turn(12),
]

ROOT = Path(__file__).parents[2]
SOURCES = (("mlp", "train"), ("resnet50", "infer"), ("resnet50", "train"), ("bert", "train"))
VIEWS = (
    "summary", "graph/{g}?op={op}", "graph/{g}?beside=1", "graph/{g}?view=modules", "passes/{g}?pass={done}", "kernel/{g}",
    "kernel/{g}/{kernel}", "roofline", "whatif", "memory/{g}",
)  # fmt: skip
MOST_BYTES, MOST_NODES, MOST_LAYOUT_MS = 1_500_000, 2000, 50.0


@dataclass
class Page:
    """A page in one file, and its session."""

    file: Path
    record: dict[str, Any]

    def views(self) -> Iterator[str]:
        """Addresses of all views, of every graph."""
        for number, g in enumerate(self.record["graphs"]):
            done = next(p["name"] for p in g["passes"] if p["changed"])
            known = {
                "g": number,
                "op": g["execution"][len(g["execution"]) // 2],
                "done": done,
                "kernel": next(iter(g["kernels"])),
            }
            yield from (f"#/{view.format(**known)}" for view in VIEWS)


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with driver.browser() as found:
        yield found


@pytest.fixture(scope="module", params=SOURCES, ids=" ".join)
def page_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """As `dcir view networks.py:name --mode train --seconds 0 -o name.html` writes it, or with `--mode infer`."""
    torch._dynamo.reset()
    name, mode = request.param
    view = view_files([f"{ROOT}/tests/view/networks.py:{name}"], mode=mode)
    file = tmp_path_factory.mktemp("real") / f"{name}.html"
    view.save(file)
    return Page(file, view.sessions[0])


def test_every_view_is_drawn_without_an_error_a_request_or_too_many_nodes(started: Any, page_of: Page) -> None:
    assert page_of.file.stat().st_size < MOST_BYTES
    with driver.opened(started, page_of.file.as_uri()) as (page, seen):
        page.context.set_offline(True)
        for address in page_of.views():
            driver.go(page, address)
            assert len(page.inner_text("main")) > 120, address
            assert page.evaluate("document.querySelectorAll('*').length") <= MOST_NODES, address
            assert "failed" not in page.inner_text("main").split("\n")[0], address
        assert seen.errors == [] and seen.requests == []


def test_a_view_takes_less_layout_than_a_frame_or_three(started: Any, page_of: Page) -> None:
    with driver.opened(started, page_of.file.as_uri()) as (page, _):
        client = page.context.new_cdp_session(page)
        client.send("Performance.enable")

        def layout() -> tuple[float, float]:
            found = {m["name"]: m["value"] for m in client.send("Performance.getMetrics")["metrics"]}
            return found["LayoutDuration"], found["LayoutCount"]

        took: dict[str, list[float]] = {}
        for _ in range(3):  # others may have the processor at the moment
            for address in page_of.views():
                before, count = layout()
                driver.go(page, address)
                after, done = layout()
                took.setdefault(address, []).append((after - before) / max(done - count, 1) * 1e3)
        assert max(map(min, took.values())) <= MOST_LAYOUT_MS


def test_a_line_of_the_model_is_found(started: Any, page_of: Page) -> None:
    graph = page_of.record["graphs"][0]
    used = {n for v in graph["execution"] for n in graph["ops"][v]["origins"]}
    line = next(
        graph["lines"][n]
        for n in sorted(used)
        if graph["lines"][n]["file"] == "models.py" or "mlp" in page_of.file.name
    )
    with driver.opened(started, page_of.file.as_uri()) as (page, _):
        driver.go(page, "#/graph/0")
        page.fill("#search", f"{line['file']}:{line['line']}")
        page.wait_for_function("/^[1-9]/.test(document.querySelector('.hits').textContent)")
        hits = int(re.match(r"\d+", page.inner_text(".hits"))[0])  # type: ignore[index]
        named = [v for v in graph["snapshots"][-1]["order"] if _names(graph, v, line)]
        assert hits >= len(named) > 0


def _names(graph: dict[str, Any], version: str, line: dict[str, Any]) -> bool:
    found = (graph["lines"][n] for n in graph["ops"][version]["origins"])
    return any((x["file"], x["line"]) == (line["file"], line["line"]) for x in found)


def test_nodes_of_a_file_are_found_by_their_names_which_are_text(started: Any, tmp_path: Path) -> None:
    onnx.save(residual(), str(tmp_path / "net.onnx"))
    torch._dynamo.reset()
    view = view_files([str(tmp_path / "net.onnx")])
    view.save(tmp_path / "r.html")
    graph = view.sessions[0]["graphs"][0]
    named = [n for n, line in enumerate(graph["lines"]) if HOSTILE in line["code"]]
    every = [graph["ops"][v] | {"id": v} for v in graph["execution"] if v not in graph["prepared"]]
    op = next(op for op in every if set(named) & set(op["origins"]))
    with driver.opened(started, (tmp_path / "r.html").as_uri()) as (page, seen):
        for address, where in (
            (f"#/kernel/0/{op['kernel']}", "[aria-labelledby=lines]"),
            (f"#/graph/0?op={op['id']}", ".side"),
        ):
            driver.go(page, address)
            text = page.inner_text(where)
            assert f"Add {HOSTILE}, ai.onnx opset 17" in text and "net.onnx:3" in text
            assert page.evaluate("document.querySelectorAll('img').length") == 0
        page.fill("#search", "/layer1/layer1.0/conv2/conv net.onnx:2")
        page.wait_for_function("/^[1-9]/.test(document.querySelector('.hits').textContent)")
        driver.go(page, "#/graph/0?view=modules")
        assert "layer1" in page.inner_text(".modules")
        assert seen.errors == []


class Shared(nn.Module):
    """What is added to a product is a result, too, so it cannot be computed inside of the product alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(32, 64)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shared = torch.tanh(y)
        return self.body(x) + shared, shared


def test_a_fusion_that_is_blocked_names_both_operators_and_the_reason(started: Any, tmp_path: Path) -> None:
    import dcir

    torch._dynamo.reset()
    with torch.no_grad():
        view = dcir.optimize(Shared().eval()).dcir.report(torch.randn(4, 32), torch.randn(4, 64))
    assert isinstance(view, View)
    view.save(tmp_path / "r.html")
    graph = view.sessions[0]["graphs"][0]
    missed = [r for r in graph["remarks"] if r["kind"] == "missed" and r["pass"] == "fuse-epilogues"]
    one, *_ = (r for r in missed if r["reason"] == "an operand has other readers")
    assert len(one["ops"]) == 2 and any("tanh" in o["what"] for o in one["ops"])
    with driver.opened(started, (tmp_path / "r.html").as_uri()) as (page, seen):
        driver.go(page, f"#/passes/0?pass={one['pass']}")
        text = page.inner_text("[aria-labelledby=remarks]")
        assert one["reason"] in text and all(o["label"] in text for o in one["ops"][:2])
        assert seen.errors == []
