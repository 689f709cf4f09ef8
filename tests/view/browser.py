"""Drives the page of `dcir view` in Debian's Chromium: as one file, or as its server hands it out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser() -> Iterator[Any]:
    """A browser for many pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        started = p.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()


@dataclass
class Seen:
    """What a page did that it should not."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def opened(
    started: Any, address: str, *, width: int = 1280, height: int = 850, scheme: str = "light"
) -> Iterator[tuple[Any, Seen]]:
    """A page at an address, and what went wrong on it."""
    seen = Seen()
    own = address.partition("#")[0]
    context = started.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(60_000)  # milliseconds, on a machine with all its cores in use
    page.on("pageerror", lambda e: seen.errors.append(str(e)))
    page.on("console", lambda m: seen.errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("request", lambda r: None if r.url.startswith((own, "data:")) else seen.requests.append(r.url))
    page.goto(address)
    page.wait_for_selector("main")
    yield page, seen
    context.close()


def go(page: Any, address: str) -> None:
    """To another view of the page."""
    page.evaluate("address => { location.hash = address }", address)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
