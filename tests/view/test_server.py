"""The server answers who has its token, on this machine and from its own page, and nobody else; no request opens a file."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the packages of the extra view are not installed")
pytest.importorskip("uvicorn", reason="the packages of the extra view are not installed")

from dcir.errors import InvalidInput, Unsupported
from dcir.view.security import POLICY
from dcir.view.server import Server, serving

EVIL = "<img src=x onerror=alert(1)>"
SESSION: dict[str, Any] = {
    "format": "dcir-session/1",
    "model": {"name": EVIL},
    "graphs": [
        {
            "id": 0,
            "kernels": {"k1": {"text": "abc"}, "k2": {"text": None}},
            "driver": "def",
            "snapshots": [{"order": ["0"], "lanes": [0]}],
        }
    ],
    "variants": [],
    "texts": {"abc": "int main;", "def": "driver"},
}


class Bench:
    """A workshop that says what it was asked."""

    def __init__(self) -> None:
        self.predicts = self.measures = True
        self.variants: list[dict[str, Any]] = [{"id": 0}]

    def predict(self, parent: Any, delta: Any) -> dict[str, Any]:
        if parent != 0:
            raise InvalidInput("there is no such variant", where="here", hint="another")
        self.variants.append({"id": len(self.variants), "delta": delta})
        return self.variants[-1]

    def variant(self, number: Any) -> dict[str, Any]:
        if not 0 <= number < len(self.variants):
            raise InvalidInput("there is no such variant")
        return self.variants[number]

    def measure(self, number: int, progress: Any = None) -> dict[str, Any]:
        progress("kernels", 1, 2)
        if number:
            raise InvalidInput("it cannot be measured", hint="another")
        return self.variants[number]

    def export(self, form: str) -> bytes | None:
        return b"{}" if form == "sdfg" else None


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving([SESSION], Bench()) as found:
        yield found


def ask(
    server: Server, path: str, method: str = "GET", body: bytes | None = None, **headers: str | None
) -> tuple[int, dict[str, str], bytes]:
    """A request as the page sends it, but for what ``headers`` say; None leaves one out."""
    host = f"127.0.0.1:{server.port}"
    sent: dict[str, str | None] = {"Host": host, "X-Dcir-Token": server.token}
    if method == "POST":
        sent |= {"Origin": f"http://{host}", "Content-Type": "application/json"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


# ---------------------------------------------------------------------- who may ask
def test_it_listens_on_this_machine_alone(server: Server) -> None:
    assert server._socket.getsockname()[0] == "127.0.0.1" and server.port > 1023
    with socket.socket() as other, pytest.raises(OSError):
        other.settimeout(2)
        other.connect(("127.0.0.2", server.port))


def test_the_token_is_behind_the_hash_and_never_the_same(server: Server) -> None:
    before, _, after = server.address.partition("#")
    assert server.token not in before and after == f"token={server.token}" and len(server.token) >= 43
    with serving([SESSION]) as other:
        assert other.token != server.token


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1.evil.example:{port}", "", "[::1]:{port}", None]
)
@pytest.mark.parametrize("origin", [None, "http://evil.example", "http://127.0.0.1:{port}"])
@pytest.mark.parametrize("path", ["/", "/api/session", "/app.js"])
def test_another_host_is_refused_with_an_origin_and_without(
    server: Server, host: str | None, origin: str | None, path: str
) -> None:
    host, origin = (None if x is None else x.format(port=server.port) for x in (host, origin))
    assert ask(server, path, Host=host, Origin=origin)[0] == 400


def test_localhost_is_this_machine(server: Server) -> None:
    assert ask(server, "/api/session", Host=f"localhost:{server.port}")[0] == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1", "http://localhost:{port}"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_origin_is_refused(server: Server, origin: str, method: str) -> None:
    body = b'{"parent":0,"delta":{}}' if method == "POST" else None
    assert ask(server, "/api/variants", method, body, Origin=origin.format(port=server.port))[0] == 403


def test_a_change_without_an_origin_is_refused(server: Server) -> None:
    assert ask(server, "/api/variants", "POST", b'{"parent":0,"delta":{}}', Origin=None)[0] == 403


@pytest.mark.parametrize("token", [None, "", "x", "é"])
@pytest.mark.parametrize(
    "path",
    ["/api/session", "/api/events", "/api/export/json", "/api/variants", "/api/kernels/k1", "/api", "/api/nothing"],
)
def test_without_the_token_nothing_is_told(server: Server, token: str | None, path: str) -> None:
    status, _, body = ask(server, path, X_Dcir_Token=token)
    assert status == 403 and b"dcir-session" not in body


def test_a_token_in_the_address_does_not_count(server: Server) -> None:
    assert ask(server, f"/api/session?token={server.token}", X_Dcir_Token=None)[0] == 403


def test_a_preflight_of_another_page_is_answered_with_no_permission(server: Server) -> None:
    status, headers, _ = ask(
        server, "/api/variants", "OPTIONS", Origin="http://evil.example", Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="x-dcir-token",
    )  # fmt: skip
    assert status == 403 and not any(name.startswith("access-control") for name in headers)


# ---------------------------------------------------------------------- what answers say
@pytest.mark.parametrize("path", ["/", "/api/session", "/nothing", "/api/nothing", "/app.js"])
def test_every_answer_has_a_policy_and_is_of_the_type_that_it_says(server: Server, path: str) -> None:
    for found in (ask(server, path), ask(server, path, Host="evil.example"), ask(server, path, X_Dcir_Token=None)):
        headers = found[1]
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers and not any(name.startswith("access-control") for name in headers)


def test_the_policy_lets_nothing_in_from_outside() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in POLICY.split(";"))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert "unsafe" not in POLICY


def test_names_stay_data(server: Server) -> None:
    status, headers, body = ask(server, "/api/session")
    assert status == 200 and headers["content-type"].startswith("application/json")
    assert json.loads(body)["model"]["name"] == EVIL


# ---------------------------------------------------------------------- no request is a path
@pytest.mark.parametrize(
    "path",
    [
        "/../setup.cfg", "/..%2f..%2fsetup.cfg", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/etc/passwd", "/static/../server.py",
        "/server.py", "/__init__.py", "/vendor", "/vendor/", "/app.js/", "/app.js%00", "/./app.js", "/api/export/..%2f..%2fetc%2fpasswd",
        "/api/kernels/..%2f..%2fsetup.cfg", "/api/kernels/%2e%2e", "/api/graphs/0/snapshots/..%2f1", "/api/graphs/-1/snapshots/0",
        "/api/graphs/0/snapshots/99", "/api/graphs/99999999999999999999/snapshots/0",
    ],
)  # fmt: skip
def test_what_is_not_there_is_not_found(server: Server, path: str) -> None:
    status, _, body = ask(server, path)
    assert status in (400, 404) and b"[metadata]" not in body and b"root:" not in body


# ---------------------------------------------------------------------- what it answers
def test_the_page_and_its_files_are_there(server: Server) -> None:
    status, headers, body = ask(server, "/", X_Dcir_Token=None)
    assert status == 200 and headers["content-type"].startswith("text/html") and b"<script" in body
    status, headers, _ = ask(server, "/app.js", X_Dcir_Token=None)
    assert status == 200 and headers["content-type"].startswith("text/javascript")


def test_a_session_comes_without_code_and_code_by_its_name(server: Server) -> None:
    data = json.loads(ask(server, "/api/session")[2])
    assert data["texts"] == {} and data["live"] == {"predict": True, "measure": True}
    assert json.loads(ask(server, "/api/kernels/k1")[2]) == {"text": "int main;"}
    assert json.loads(ask(server, "/api/kernels/driver-0")[2]) == {"text": "driver"}
    assert ask(server, "/api/kernels/k2")[0] == ask(server, "/api/kernels/abc")[0] == 404
    assert json.loads(ask(server, "/api/graphs/0/snapshots/0")[2]) == {"order": ["0"], "lanes": [0]}


def test_two_sessions_are_a_list_and_a_file_is_only_looked_at() -> None:
    with serving([SESSION, SESSION]) as other:
        both = json.loads(ask(other, "/api/session")[2])
        assert len(both) == 2 and "live" not in both[0]
        assert ask(other, "/api/variants", "POST", b'{"parent":0,"delta":{}}')[0] == 400
        assert ask(other, "/api/export/sdfg")[0] == 400
        assert json.loads(ask(other, "/api/export/json")[2])["format"] == "dcir-session/1"


def test_a_variant_is_made_and_refused_with_words(server: Server) -> None:
    status, _, body = ask(server, "/api/variants", "POST", b'{"parent":0,"delta":{"level":1}}')
    assert status == 200 and json.loads(body)["delta"] == {"level": 1}
    assert {"id": 0} in json.loads(ask(server, "/api/variants")[2])["variants"]
    status, _, body = ask(server, "/api/variants", "POST", b'{"parent":7}')
    assert status == 400
    assert json.loads(body) == {
        "error": "there is no such variant",
        "details": {"kind": "InvalidInput", "message": "there is no such variant", "where": "here", "try": "another"},
    }


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"a":"' + b"x" * (1 << 20) + b'"}'], ids=range(6)
)
def test_a_body_that_is_no_object_or_too_long_is_refused(server: Server, body: bytes) -> None:
    assert ask(server, "/api/variants", "POST", body)[0] == 400


def test_a_form_of_another_page_is_no_request(server: Server) -> None:
    assert ask(server, "/api/variants", "POST", b'{"parent":0,"delta":{}}', Content_Type="text/plain")[0] == 400


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST"])
def test_there_are_no_other_ways(server: Server, method: str) -> None:
    assert ask(server, "/api/session", method, b"{}", Origin=f"http://127.0.0.1:{server.port}")[0] in (404, 405)


def test_exports_are_files(server: Server) -> None:
    status, headers, body = ask(server, "/api/export/sdfg")
    assert (status, body) == (200, b"{}") and headers["content-disposition"] == 'attachment; filename="network.sdfg"'
    assert ask(server, "/api/export/chrome-trace")[0] == 404


def test_events_tell_of_progress_and_of_the_end(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/api/events", headers={"X-Dcir-Token": server.token})
    stream = connection.getresponse()
    assert stream.status == 200 and stream.getheader("content-type", "").startswith("text/event-stream")
    assert stream.readline() == b": here\n"
    status, _, body = ask(server, "/api/variants/0/measure", "POST", b"{}")
    job = json.loads(body)["job"]
    assert status == 202
    events = [_event(stream), _event(stream)]
    assert events == [
        {"kind": "progress", "job": job, "variant": 0, "step": "kernels", "done": 1, "total": 2},
        {"kind": "done", "job": job, "variant": 0},
    ]
    ask(server, "/api/variants", "POST", b'{"parent":0,"delta":{}}')
    assert ask(server, "/api/variants/1/measure", "POST", b"{}")[0] == 202
    assert _event(stream)["kind"] == "progress"
    failed = _event(stream)
    assert (
        failed["kind"] == "failed"
        and failed["error"] == "it cannot be measured"
        and failed["details"]["try"] == "another"
    )
    connection.close()
    assert ask(server, "/api/variants/99/measure", "POST", b"{}")[0] == 400


def _event(stream: http.client.HTTPResponse) -> dict[str, Any]:
    while not (line := stream.readline()).startswith(b"data:"):
        assert line, "the stream has ended"
    found: dict[str, Any] = json.loads(line[5:])
    return found


def test_it_ends_while_somebody_listens() -> None:
    with serving([SESSION]) as other:
        connection = http.client.HTTPConnection("127.0.0.1", other.port, timeout=20)
        connection.request("GET", "/api/events", headers={"X-Dcir-Token": other.token})
        assert connection.getresponse().status == 200
    with pytest.raises(OSError):
        ask(other, "/")


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unsupported) as caught:
        Server([SESSION])
    assert caught.value.hint is not None and "dcir[view]" in caught.value.hint and "-o report.html" in caught.value.hint
