"""Takes the pictures of docs/view, of sessions that are made for it: ``python -m tests.view.pictures [folder]``.

They are of the training of ResNet-50's first stages at small images, at levels 4 and 1; advice is of a small network's inference. All of it
is compiled and measured, which takes minutes, and the pictures show what the machine did meanwhile.
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
SOURCE, ADVISED = "tests/view/networks.py:first_stages", "tests/view/models.py:block"
SECONDS, THREADS = 2.0, 1
PAGES = ("summary", "advice", "graph", "modules", "passes", "kernel", "roofline", "whatif", "memory", "compare")
BLOCKS = "[aria-label*=': open blocks']"
WIDTH, HEIGHT = 1320, 760


def sessions(source: str = SOURCE, seconds: float = SECONDS) -> View:
    """A session of forward and backward, and one at a lower level beside it."""
    torch._dynamo.reset()
    lower = view_files([source], mode="train", seconds=seconds, level=1, threads=THREADS)
    torch._dynamo.reset()
    view = view_files([source], mode="train", seconds=seconds, threads=THREADS)
    return View(lower.sessions, view.captured, view.workshop)


def advised(seconds: float = SECONDS) -> View:
    """A session with advice."""
    torch._dynamo.reset()
    return view_files([ADVISED], seconds=seconds, advise=True, threads=THREADS)


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
        "summary": "summary", "graph": f"graph/0?op={version}", "modules": "graph/0?view=modules",
        "passes": "passes/0?pass=fuse-producers", "kernel": f"kernel/0/{kernel}", "roofline": f"roofline/0?kernel={kernel}",
        "whatif": "whatif?disable=fuse-producers", "memory": "memory/0", "compare": "compare",
    }  # fmt: skip


@contextmanager
def served(view: View) -> Iterator[str]:
    """The address at which a view is served."""
    server = view.serve()
    try:
        yield server.address
    finally:
        server.close()


def take(view: View, folder: Path, where: dict[str, str] | None = None) -> list[str]:
    """Take pictures of a view at some addresses, by name, all pages unless they are given; what went wrong meanwhile."""
    folder.mkdir(exist_ok=True)
    where = addresses(view.sessions[0]) if where is None else where
    with (
        driver.browser() as started,
        served(view) as address,
        driver.opened(started, address, width=WIDTH, height=HEIGHT) as (page, seen),
    ):
        page.set_default_timeout(600_000)
        for name, at in where.items():
            driver.go(page, f"#/{at}")
            if name in BEFORE:
                BEFORE[name](page)
            page.wait_for_timeout(300)
            page.screenshot(path=str(folder / f"{name}.png"))
        return seen.errors + seen.requests


def _advice(page: Any) -> None:
    page.evaluate("document.getElementById('advice')?.scrollIntoView()")


def _modules(page: Any) -> None:
    """The module that most of the time is in, opened."""
    page.click("[aria-label*=': open '] >> nth=-1" if page.query_selector(BLOCKS) is None else BLOCKS)


def _passes(page: Any) -> None:
    page.evaluate("[...document.querySelectorAll('h2')].find(h => /^Difference/.test(h.textContent)).scrollIntoView()")


def _kernel(page: Any) -> None:
    page.wait_for_selector(".code")


def _whatif(page: Any) -> None:
    """One pass off, predicted and measured."""
    page.click("button:text-is('Predict')")
    page.wait_for_selector("button[aria-pressed=true]:has-text('without fuse-producers')")
    page.click("button:text-is('Measure')")
    page.wait_for_selector("tr.chosen:has-text('×')")


BEFORE = {"advice": _advice, "modules": _modules, "passes": _passes, "kernel": _kernel, "whatif": _whatif}


if __name__ == "__main__":
    to = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    wrong = take(advised(), to, {"advice": "summary"}) + take(sessions(), to)
    sys.exit("\n".join(wrong) or 0)
