"""A session file is read as data: what is cut, hostile or of another kind ends in one error that says where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dcir
from dcir.errors import SessionInvalid
from dcir.report.session_file import MOST_BYTES, is_session, read_session, write_session
from tests.view.models import mlp


@pytest.fixture(scope="module")
def session() -> dict[str, Any]:
    torch._dynamo.reset()
    model, inputs = mlp()
    found = dcir.optimize(model).dcir.report(*inputs).to_json()
    assert isinstance(found, dict)
    return found


def test_what_is_written_is_read(session: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.dcirsession"
    write_session(session, path)
    assert is_session(path)
    assert read_session(path) == json.loads(json.dumps(session))


def test_a_file_that_is_cut_is_refused_wherever_it_is_cut(session: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.dcirsession"
    write_session(session, path)
    whole = path.read_bytes()
    for end in [0, 1, 30, *range(64, len(whole) - 2, len(whole) // 40)]:
        path.write_bytes(whole[:end])
        with pytest.raises(SessionInvalid) as caught:
            read_session(path)
        assert caught.value.where == str(path) and caught.value.hint


def _set(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        at: Any = data
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value

    return change


HOSTILE: dict[str, Callable[[dict[str, Any]], None]] = {
    "another format": _set("format", value="dcir-session/2"),
    "graphs are a text": _set("graphs", value="<script>"),
    "no operators": _set("graphs", 0, "ops", value={}),
    "an operator too many in the order": _set("graphs", 0, "execution", value=["99999"]),
    "a lane too few": _set("graphs", 0, "snapshots", 0, "lanes", value=[]),
    "a negative shape": _set("graphs", 0, "layouts", 0, "shape", value=[-1]),
    "a pass that shows a snapshot that is not there": _set("graphs", 0, "passes", 0, "snapshot", value=10**6),
    "code that is not there": _set("texts", value={}),
    "places that are not there": _set("graphs", 0, "places", value=[]),
    "a value that is not there": _set("graphs", 0, "inputs", value=["nothing"]),
    "a kernel that calls itself a number": _set("graphs", 0, "kernels", value={"k": 1}),
    "a number that is none": _set("made", "threads", value="2"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_is_refused(name: str, session: dict[str, Any], tmp_path: Path) -> None:
    data = json.loads(json.dumps(session))
    HOSTILE[name](data)
    path = tmp_path / "a.dcirsession"
    path.write_text(json.dumps(data))
    with pytest.raises(SessionInvalid):
        read_session(path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"format":"dcir-session/1","n":' + b"9" * 10_000 + b"}",
        b'{"format":"dcir-session/1","n":NaN}',
        b'{"format":"dcir-session/1","n":1e999}',
        b'{"format":"dcir-session/1"}' + b"\0" * 10,
    ],
    ids=range(9),
)
def test_what_is_no_session_is_refused(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.dcirsession"
    path.write_bytes(text)
    with pytest.raises(SessionInvalid):
        read_session(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.dcirsession"
    with path.open("wb") as f:
        f.truncate(MOST_BYTES + 1)
    with pytest.raises(SessionInvalid, match="more than"):
        read_session(path)


def test_infinite_numbers_are_refused(session: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.dcirsession"
    path.write_text(json.dumps(session).replace('"flops": ', '"flops": 1e999, "was": ', 1))
    with pytest.raises(SessionInvalid):
        read_session(path)
