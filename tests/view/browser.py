"""Drives the page in Debian's Chromium: as one file, or served with the policy and the interface of the real server."""

from __future__ import annotations

import http.server
import json
import mimetypes
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

STATIC = Path(__file__).parents[2] / "dcir" / "view" / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
TOKEN = "a-token-of-the-tests"
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


class Server:
    """The real server's interface, with answers of a test's own."""

    def __init__(self, record: Any, post: Callable[[str, Any], Any] = lambda path, body: None) -> None:
        self.record, self.post = record, post
        self.variants: list[dict[str, Any]] = list(record["variants"]) if isinstance(record, dict) else []
        self.events: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str]] = []
        self.more = threading.Condition()

    def tell(self, event: dict[str, Any]) -> None:
        """Send an event to whoever listens."""
        with self.more:
            self.events.append(event)
            self.more.notify_all()

    def newer(self, sent: int) -> list[dict[str, Any]]:
        """The events after those that were sent; waits for one."""
        with self.more:
            self.more.wait_for(lambda: len(self.events) > sent, timeout=30)
            return self.events[sent:]

    @contextmanager
    def running(self) -> Iterator[str]:
        """The address, with the token as a user gets it."""
        handler = type("Handler", (_Handler,), {"owner": self})
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_address[1]}/#token={TOKEN}"
            self.tell({"kind": "end"})
            server.shutdown()


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: Server

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if not path.startswith("/api/"):
            file = STATIC / (path.lstrip("/") or "index.html")
            return self.answer(200, file.read_bytes(), mimetypes.guess_type(file.name)[0] or "text/javascript")
        if not self.allowed(path):
            return None
        if path == "/api/session":
            return self.data(200, self.owner.record)
        if path == "/api/variants":
            return self.data(200, {"variants": self.owner.variants})
        if path == "/api/events":
            return self.stream()
        return self.data(404, {"error": "there is nothing here"})

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.allowed(path):
            status, answer = self.owner.post(path, body)
            self.data(status, answer)

    def allowed(self, path: str) -> bool:
        self.owner.asked.append((self.command, path))
        if self.headers.get("X-Dcir-Token") == TOKEN:
            return True
        self.data(403, {"error": "the token is missing"})
        return False

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        sent = 0
        while True:
            events = self.owner.newer(sent)
            for event in events:
                if event["kind"] == "end":
                    return
                self.wfile.write(f": still here\n\ndata: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
            sent += len(events)

    def data(self, status: int, answer: Any) -> None:
        self.answer(status, json.dumps(answer).encode(), "application/json")

    def answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)
