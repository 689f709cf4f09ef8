"""`dcir view` writes pages, sessions and files of other viewers, serves, and refuses what it cannot."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dcir.cli.main import main

ROOT = Path(__file__).parents[2]
SOURCE = f"{ROOT}/tests/view/models.py:mlp"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["view", *arguments])


def test_a_page_is_written(tmp_path: Path) -> None:
    done = run(SOURCE, "--seconds", "0", "-o", str(tmp_path / "r.html"), "--plain")
    assert done.exit_code == 0, done.output
    assert "wrote" in done.output and 'id="session"' in (tmp_path / "r.html").read_text()


def test_a_session_is_written_and_compared(tmp_path: Path) -> None:
    session = str(tmp_path / "a.dcirsession")
    assert run(SOURCE, "--seconds", "0", "-O", "1", "-o", session).exit_code == 0
    done = run(SOURCE, session, "--seconds", "0", "-o", str(tmp_path / "r.html"), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"output": str(tmp_path / "r.html")}


@pytest.mark.parametrize(
    "words",
    [["--batch", "4"], ["-O1"], ["--threads", "1"], ["--mode", "infer"], ["--advise"], ["--skip", "a@b"]],
    ids=lambda words: words[0],
)
def test_options_of_compilation_are_not_for_sessions(words: list[str], tmp_path: Path) -> None:
    session = tmp_path / "a.dcirsession"
    session.write_text('{"format":"dcir-session/1"}')
    done = run(str(session), *words, "-o", str(tmp_path / "r.html"))
    assert done.exit_code == 2 and f"without {words[0][:2] if words[0][1] != '-' else words[0]}," in done.output


def test_a_trace_of_a_measured_model_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    done = run(SOURCE, "--seconds", "0.05", "-o", str(path), "--format", "chrome-trace")
    assert done.exit_code == 0, done.output
    assert json.loads(path.read_text())["traceEvents"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [SOURCE, "-o", "r.pdf"],
        [SOURCE, "--format", "sdfg"],
        [SOURCE, SOURCE, "--format", "sdfg", "-o", "x"],
        [SOURCE, SOURCE, SOURCE, "--seconds", "0", "-o", "x.html"],
        [SOURCE, "--mode", "dream"],
        ["nothing.onnx", "-o", "x.html"],
        [SOURCE, "--skip", "fuse-everything@a", "-o", "x.html"],
    ],
    ids=str,
)
def test_what_cannot_be_is_a_usage_error(arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments).exit_code == 2
    assert not list(tmp_path.iterdir())


def test_a_broken_session_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "a.dcirsession"
    path.write_text('{"format":"dcir-session/1","made":')
    done = run(str(path), "-o", str(tmp_path / "r.html"))
    assert done.exit_code == 2 and "no session of dcir view" in done.output


def test_it_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the packages of the extra view are not installed")
    session = str(tmp_path / "a.dcirsession")
    assert run(SOURCE, "--seconds", "0", "-o", session).exit_code == 0
    program = "from dcir.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "view", session],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as served:
        try:
            assert served.stdout is not None
            found = re.match(r"open (http://127\.0\.0\.1:\d+/)#token=(\S+)", served.stdout.readline())
            assert found is not None
            request = urllib.request.Request(f"{found[1]}api/session", headers={"X-Dcir-Token": found[2]})
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert json.load(answer)["format"] == "dcir-session/1"
        finally:
            served.send_signal(signal.SIGINT)
        _, error = served.communicate(timeout=30)
    assert "Traceback" not in error
