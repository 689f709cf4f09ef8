"""Takes the pictures of docs/view, of a session of ResNet-50's training that is made for it: ``python -m tests.view.pictures [folder]``.

It compiles, measures and asks for advice, which takes some minutes; the pictures show what this machine did meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dcir.driver.view.files import view_files
from dcir.driver.view.view import View
from tests.view import browser as driver

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "view"
SOURCE = f"{ROOT}/tests/view/networks.py:resnet50"
SECONDS = 1.0
PAGES = ("summary", "advice", "graph", "modules", "passes", "kernel", "roofline", "whatif", "memory", "compare")
WIDTH, HEIGHT = 1180, 720


def sessions(source: str = SOURCE, seconds: float = SECONDS, *, advise: bool = True) -> View:
    """A session of forward and backward with advice, and one at a lower level beside it."""
    torch._dynamo.reset()
    lower = view_files([source], mode="train", seconds=seconds, level=1)
    torch._dynamo.reset()
    view = view_files([source], mode="train", seconds=seconds, advise=advise)
    return View(lower.sessions, view.captured, view.workshop)


def heaviest(graph: dict[str, Any], words: str = "") -> tuple[str, str]:
    """The operator that takes longest among those that have some words, and its kernel."""
    ops = [(v, graph["ops"][v]) for v in graph["execution"]]
    _, version, kernel = max((op["ms"] or 0, v, op["kernel"]) for v, op in ops if words in op["what"] and op["kernel"])
    return version, kernel


def addresses(record: dict[str, Any]) -> dict[str, str]:
    """What each picture is of."""
    forward = record["graphs"][0]
    version, kernel = heaviest(forward, "convolution")
    return {
        "summary": "summary", "advice": "summary", "graph": f"graph/0?op={version}", "modules": "graph/0?view=modules",
        "passes": "passes/0?pass=fuse-epilogues", "kernel": f"kernel/0/{kernel}", "roofline": f"roofline/0?kernel={kernel}",
        "whatif": "whatif?disable=fuse-epilogues", "memory": "memory/0", "compare": "compare",
    }  # fmt: skip


@contextmanager
def served(view: View) -> Iterator[str]:
    """The address at which a view is served."""
    server = view.serve()
    try:
        yield server.address
    finally:
        server.close()


def take(view: View, folder: Path) -> list[str]:
    """Take all pictures; what went wrong on the page meanwhile."""
    folder.mkdir(exist_ok=True)
    where = addresses(view.sessions[0])
    with (
        driver.browser() as started,
        served(view) as address,
        driver.opened(started, address, width=WIDTH, height=HEIGHT) as (page, seen),
    ):
        page.set_default_timeout(600_000)
        for name in PAGES:
            driver.go(page, f"#/{where[name]}")
            if name in BEFORE:
                BEFORE[name](page)
            page.wait_for_timeout(300)
            page.screenshot(path=str(folder / f"{name}.png"))
        return seen.errors + seen.requests


def _advice(page: Any) -> None:
    page.evaluate("document.getElementById('advice')?.scrollIntoView()")


def _modules(page: Any) -> None:
    page.click("[aria-label*=': open '] >> nth=0")


def _kernel(page: Any) -> None:
    page.wait_for_selector(".code")


def _whatif(page: Any) -> None:
    """One pass off, predicted and measured."""
    page.click("button:text-is('Predict')")
    page.wait_for_selector("button[aria-pressed=true]:has-text('without fuse-epilogues')")
    page.click("button:text-is('Measure')")
    page.wait_for_selector("tr.chosen:has-text('×')")


BEFORE = {"advice": _advice, "modules": _modules, "kernel": _kernel, "whatif": _whatif}


if __name__ == "__main__":
    wrong = take(sessions(), Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
    sys.exit("\n".join(wrong) or 0)
