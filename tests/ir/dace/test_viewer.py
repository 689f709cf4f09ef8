"""A saved graph opens in the viewer that DaCe brings, with its maps, memlets and loops; skipped where there is no browser."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dace
import pytest
import torch
from torch import nn

import dcir

playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives a browser, is not installed")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (Debian: chromium-headless-shell)")

VIEWER = Path(dace.__file__).parent / "viewer" / "webclient"
OPEN = "text => { WebSDFV.getInstance().setSDFG(checkCompatLoad(parse_sdfg(text)), null, false) }"
DRAWN = """
() => {
    const found = {};
    const count = graph => {
        if (!graph) return;
        for (const id of graph.nodes()) {
            const node = graph.node(id);
            const {node: leaf, block, state} = node.data ?? {};
            const kind = (leaf ?? block ?? state)?.type ?? node.constructor.name;
            found[kind] = (found[kind] ?? 0) + 1;
            count(node.data?.graph);
        }
        for (const id of graph.edges()) {
            const data = graph.edge(id)?.data?.attributes;
            if (data?.subset) found.memlets = (found.memlets ?? 0) + 1;
        }
    };
    count(WebSDFV.getInstance().renderer?.graph);
    return found;
}
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(VIEWER))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


def drawn(path: Path, address: str) -> dict[str, int]:
    """What the viewer made of a file: how many nodes of each kind it drew, and memlets."""
    errors: list[str] = []
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page()
        page.set_default_timeout(180_000)  # milliseconds, on a machine with all its cores in use
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else errors.append(r.url))
        page.goto(address + "index.html")
        page.wait_for_function("window.WebSDFV?.getInstance()._initialized")
        page.evaluate(OPEN, path.read_text())
        page.wait_for_function("WebSDFV.getInstance().renderer?.graph?.nodes().length > 0")
        found = page.evaluate(DRAWN)
        browser.close()
    assert not errors
    return dict(found)


class Stage(nn.Module):
    """How ResNet-50 begins: its stem and a block with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.block = nn.Sequential(
            nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 1)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        return (y + self.block(y)).relu()


def test_maps_and_memlets_are_drawn(tmp_path: Path, address: str) -> None:
    opened = dcir.open(Stage().eval(), [torch.randn(1, 3, 32, 32)])
    opened.save(tmp_path / "stage.sdfg")
    sdfg = dace.SDFG.from_file(str(tmp_path / "stage.sdfg"))
    maps = sum(isinstance(n, dace.nodes.MapEntry) for n, _ in sdfg.all_nodes_recursive())
    found = drawn(tmp_path / "stage.sdfg", address)
    assert found["MapEntry"] == found["MapExit"] == maps >= len(opened.network.ops())
    assert found["memlets"] > 20 and "LibraryNode" not in found


def test_loops_are_drawn(tmp_path: Path, address: str) -> None:
    opened = dcir.open(nn.LSTM(3, 4).eval(), [torch.randn(5, 2, 3)])
    opened.save(tmp_path / "lstm.sdfg")
    assert drawn(tmp_path / "lstm.sdfg", address)["LoopRegion"] >= 1
