"""The interface of `dcir view` over HTTP: the page's files, sessions, code, variants, events, exports. No parameter is a path."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dcir.errors import DcirError, InvalidInput
from dcir.view.jobs import Jobs, Progress
from dcir.view.one_file import static
from dcir.view.security import MOST_BODY

_TYPES = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".json": "application/json",
}


class Workshop(Protocol):
    """What makes variants of a session (``driver.view.workshop.Workshop``)."""

    predicts: bool
    measures: bool
    variants: list[dict[str, Any]]

    def predict(self, parent: Any, delta: Any) -> dict[str, Any]:
        """A new variant."""

    def measure(self, number: int, progress: Progress | None = None) -> dict[str, Any]:
        """A variant, measured."""

    def variant(self, number: Any) -> dict[str, Any]:
        """A variant by its number; raises ``InvalidInput``."""

    def export(self, form: str) -> bytes | None:
        """The session in another format."""


class Interface:
    """Answers requests.

    Args:
        sessions: one record, or two to be compared.
        workshop: makes variants of the first; None where sessions are only looked at.
    """

    def __init__(self, sessions: Sequence[Mapping[str, Any]], workshop: Workshop | None = None) -> None:
        self.sessions, self.workshop, self.jobs = sessions, workshop, Jobs()
        self._files = _files(static())
        self._code = _code(sessions)

    def application(self) -> Starlette:
        """The routes."""
        routes = [
            Route("/api/session", self._session),
            Route("/api/graphs/{graph:int}/snapshots/{number:int}", self._snapshot),
            Route("/api/kernels/{name}", self._kernel),
            Route("/api/variants", self._variants, methods=["GET"]),
            Route("/api/variants", self._predict, methods=["POST"]),
            Route("/api/variants/{number:int}/measure", self._measure, methods=["POST"]),
            Route("/api/events", self._events),
            Route("/api/export/{form}", self._export),
            Route("/{name:path}", self._file),
        ]
        return Starlette(routes=routes, exception_handlers={DcirError: _refused, 404: _missing, 405: _missing})

    # ------------------------------------------------------------------ to look at
    async def _file(self, request: Request) -> Response:
        """A file of the page: names are looked up among those that there are, and open nothing."""
        found = self._files.get(request.path_params["name"] or "index.html")
        if found is None:
            return _error(404, "there is no such page")
        return Response(found[0], media_type=found[1])

    async def _session(self, request: Request) -> Response:
        first, *others = ({**s, "texts": {}} for s in self.sessions)
        if self.workshop is not None:
            first["live"] = {"predict": self.workshop.predicts, "measure": self.workshop.measures}
            first["variants"] = self.workshop.variants
        return JSONResponse([first, *others] if others else first)

    async def _snapshot(self, request: Request) -> Response:
        graphs, (graph, number) = self.sessions[0]["graphs"], (request.path_params[n] for n in ("graph", "number"))
        if graph >= len(graphs) or number >= len(graphs[graph]["snapshots"]):
            return _error(404, "there is no such snapshot")
        found = graphs[graph]["snapshots"][number]
        return JSONResponse({"order": found["order"], "lanes": found["lanes"]})

    async def _kernel(self, request: Request) -> Response:
        code = self._code.get(request.path_params["name"])
        return _error(404, "there is no such kernel") if code is None else JSONResponse({"text": code})

    async def _export(self, request: Request) -> Response:
        form = request.path_params["form"]
        if form == "json":
            own = {} if self.workshop is None else {"variants": self.workshop.variants}
            return JSONResponse({**self.sessions[0], **own})
        workshop = self._workshop()
        data = await self.jobs.run(lambda: workshop.export(form))
        if data is None:
            return _error(404, f"this session has nothing for {form}")
        name = "network.sdfg" if form == "sdfg" else f"{form}.json"
        return Response(
            data, media_type="application/json", headers={"content-disposition": f'attachment; filename="{name}"'}
        )

    # ------------------------------------------------------------------ to change
    async def _variants(self, request: Request) -> Response:
        return JSONResponse({"variants": [] if self.workshop is None else self.workshop.variants})

    async def _predict(self, request: Request) -> Response:
        workshop, asked = self._workshop(), await _body(request)
        return JSONResponse(await self.jobs.run(lambda: workshop.predict(asked.get("parent"), asked.get("delta"))))

    async def _measure(self, request: Request) -> Response:
        workshop, number = self._workshop(), request.path_params["number"]
        workshop.variant(number)
        if not workshop.measures:
            return _error(403, "nothing is compiled for this session")
        job = self.jobs.start(number, lambda progress: workshop.measure(number, progress))
        return JSONResponse({"job": job}, status_code=202)

    async def _events(self, request: Request) -> Response:
        return StreamingResponse(self.jobs.events(), media_type="text/event-stream")

    def _workshop(self) -> Workshop:
        if self.workshop is None:
            raise InvalidInput("this session is only looked at", hint="dcir view MODEL")
        return self.workshop


async def _body(request: Request) -> dict[str, Any]:
    """What a request says as JSON.

    Raises:
        InvalidInput: something else, or too much.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise InvalidInput("a request says JSON")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BODY:
            raise InvalidInput(f"a request has at most {MOST_BODY} bytes")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("a request says JSON") from error
    if not isinstance(data, dict):
        raise InvalidInput("a request says an object")
    return data


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, DcirError)
    details = {"kind": type(error).__name__, "message": error.message, "where": error.where, "try": error.hint}
    return JSONResponse({"error": error.message, "details": details}, status_code=400)


def _missing(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return _error(status, "there is no such page" if status == 404 else "not in this way")


def _error(status: int, words: str) -> Response:
    return JSONResponse({"error": words}, status_code=status)


def _files(folder: Traversable, before: str = "") -> dict[str, tuple[bytes, str]]:
    """Contents and types of all files under a folder, by their names from there."""
    found: dict[str, tuple[bytes, str]] = {}
    for entry in folder.iterdir():
        name = f"{before}{entry.name}"
        if entry.is_dir():
            found |= _files(entry, f"{name}/")
        else:
            suffix = f".{name.rpartition('.')[2]}"
            found[name] = entry.read_bytes(), _TYPES.get(suffix) or mimetypes.types_map.get(suffix, "text/plain")
    return found


def _code(sessions: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The code of all kernels by name, and of the drivers of the first session by their graphs."""
    found: dict[str, str] = {}
    for session in reversed(sessions):
        for graph in session["graphs"]:
            rows = [(name, kernel["text"]) for name, kernel in graph["kernels"].items()]
            rows.append((f"driver-{graph['id']}", graph["driver"]))
            found |= {name: session["texts"][digest] for name, digest in rows if digest is not None}
    return found
