"""What every request of the server of `dcir view` must show before anything of it is read, and what every answer says to the browser.

A page of another origin can send requests here, and by DNS rebinding under a host name of its own even read the answers. So the host must
be this one by number or as localhost, with or without an origin; an origin that is named must be this one; and what is asked of the
interface carries a token that is only in the address that the user opens, behind the #, where it reaches no server and no log.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

TOKEN_HEADER = "x-dcir-token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
MOST_BODY = 1 << 20

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(32)


class Guard:
    """Stands before an application.

    Args:
        inner: the application.
        port: of the server.
        token: what requests of the interface must carry.
    """

    def __init__(self, inner: Application, port: int, token: str) -> None:
        self._inner, self._token = inner, token.encode()
        self._hosts = {f"{host}:{port}".encode() for host in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or hand it on; its answer gets the headers of all answers."""
        if scope["type"] != "http":
            return  # there are no sockets, and nothing begins or ends
        refused = self.refusal(scope)
        if refused is not None:
            await _answer(send, *refused)
            return

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message.get("headers", ())}
                more = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in own]
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        await self._inner(scope, receive, headed)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason, if a request is not to be answered."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return 400, "this server is 127.0.0.1"
        if any(origin.lower() != b"http://" + hosts[0].lower() for origin in origins):
            return 403, "another origin asks"
        if scope["method"] not in ("GET", "HEAD") and not origins:
            return 403, "no origin asks"
        if scope["path"] == "/api" or scope["path"].startswith("/api/"):
            given = headers.get(TOKEN_HEADER.encode(), [])
            if len(given) != 1 or not secrets.compare_digest(given[0], self._token):
                return 403, "open the address that dcir view has printed, with its token"
        return None


async def _answer(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = {**HEADERS, "content-type": "application/json", "content-length": str(len(body))}
    rows = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": rows})
    await send({"type": "http.response.body", "body": body})
