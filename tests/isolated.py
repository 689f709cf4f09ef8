"""Items tried one after another in a child process; when it dies or is late, that is the item's outcome and another goes on."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

_MARK = "outcome "


def report(outcome: dict[str, Any]) -> None:
    """Say, in the child, what became of the next item."""
    print(f"\n{_MARK}{json.dumps(outcome)}", flush=True)


def outcomes(
    command: Sequence[str], names: Sequence[str], seconds: float, *, most: int = 0
) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Each name with what a child reported of it, or with how the child ended that was trying it.

    Args:
        command: starts a child; the names follow as its arguments, and it calls `report` once for each, in order.
        names: the items.
        seconds: for one item.
        most: items for one child, 0 for all: what a process gathers over hundreds of items slows the next ones down.
    """
    left = list(names)
    while left:
        batch = left[: most or len(left)]
        with tempfile.TemporaryFile() as said:
            ended = ""
            for told in _tried([*command, *batch], seconds, said):
                if isinstance(told, str):
                    ended = told
                else:
                    yield left.pop(0), told
                    batch = batch[1:]
            if batch:
                said.seek(0)
                last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
                yield left.pop(0), f"{ended} {last[:300]}".strip()


def _tried(command: Sequence[str], seconds: float, said: IO[bytes]) -> Iterator[dict[str, Any] | str]:
    """What one child finds out, and at last how it ended."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said)
    try:
        for line in _lines(child, seconds):
            yield json.loads(line)
        late = child.poll() is None
    finally:
        child.kill()
        code = child.wait()
        if child.stdout:
            child.stdout.close()
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    yield f"no answer in {seconds:g} s" if late else ended


def _lines(child: subprocess.Popen[bytes], seconds: float) -> Iterator[str]:
    """Lines of outcomes until the child ends, or says nothing for so long."""
    assert child.stdout is not None
    waiting, pending, end = selectors.DefaultSelector(), b"", time.monotonic() + seconds
    waiting.register(child.stdout, selectors.EVENT_READ)
    while waiting.select(max(0.0, end - time.monotonic())):
        read = os.read(child.stdout.fileno(), 1 << 16)
        if not read:
            child.wait()
            return
        *whole, pending = (pending + read).split(b"\n")
        for line in whole:
            if line.startswith(_MARK.encode()):
                end = time.monotonic() + seconds
                yield line.decode().removeprefix(_MARK)
