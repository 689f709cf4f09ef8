"""`dcir cache`: what compiled code is kept where, and how to be rid of it."""

from __future__ import annotations

import re
import time
from typing import Any

import click

from dcir.cache import Cache, CacheEntry
from dcir.cli import common
from dcir.options import parse_size

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@click.group("cache")
def command() -> None:
    """Look after the cache of compiled code."""


@command.command("ls", cls=common.Verb)
def list_files() -> None:
    """List the files, the least recently used first."""
    entries = Cache.default().ls()
    now = time.time()
    rows = [("kind", "size", "unused for", "key")]
    rows += [(entry.kind, _size(entry.size), _age(now - entry.used), entry.key + entry.suffix) for entry in entries]
    common.emit(common.table(rows), {"files": [_as_data(entry) for entry in entries]})


@command.command("info", cls=common.Verb)
def info() -> None:
    """Say where the cache is and how much it holds."""
    state = Cache.default().info()
    rows = [("folder", str(state.folder)), ("files", f"{state.files}, {_size(state.size)}")]
    rows += [(f"  {kind}", f"{files}, {_size(size)}") for kind, (files, size) in sorted(state.by_kind.items())]
    if state.temporary:
        rows.append(("note", "temporary: the usual folder cannot be used; see dcir doctor"))
    data = {
        "folder": str(state.folder),
        "files": state.files,
        "bytes": state.size,
        "temporary": state.temporary,
        "kinds": {kind: {"files": files, "bytes": size} for kind, (files, size) in state.by_kind.items()},
    }
    common.emit(common.table(rows), data)


@command.command("prune", cls=common.Verb)
@click.option("--max-size", metavar="SIZE", help="Keep at most this much, such as 2GB.")
@click.option("--older-than", metavar="AGE", help="Remove what was not used for this long, such as 12h or 30d.")
def prune(max_size: str | None, older_than: str | None) -> None:
    """Remove the least recently used files, and what killed processes left."""
    if max_size is None and older_than is None:
        raise click.UsageError("Give --max-size, --older-than, or both.")
    _removed(Cache.default().prune(max_bytes=_bytes(max_size), older_than=_duration(older_than)))


@command.command("clear", cls=common.Verb)
def clear() -> None:
    """Remove every file."""
    _removed(Cache.default().clear())


def _removed(entries: list[CacheEntry]) -> None:
    size = sum(entry.size for entry in entries)
    text = f"removed {len(entries)} files, {_size(size)}"
    common.emit(text, {"removed": len(entries), "bytes": size})


def _as_data(entry: CacheEntry) -> dict[str, Any]:
    return {"kind": entry.kind, "key": entry.key, "suffix": entry.suffix, "bytes": entry.size, "used": entry.used}


def _bytes(text: str | None) -> int | None:
    return 0 if text == "0" else parse_size(text)


def _duration(text: str | None) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is no duration such as 12h or 30d.", param_hint="--older-than")
    return float(match[1]) * _SECONDS[match[2]]


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _age(seconds: float) -> str:
    for unit in ("w", "d", "h", "m"):
        if seconds >= _SECONDS[unit]:
            return f"{seconds / _SECONDS[unit]:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
