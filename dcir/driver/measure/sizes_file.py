"""Files that list the sizes of a stream of calls: a line each, as ``b=4 s=37``, or a JSON list of objects."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from dcir.errors import InvalidInput

_WORD = re.compile(r"([^\s=,]+)=([0-9]{1,12})")
_MOST_BYTES = 1 << 26


def read_sizes(path: str | os.PathLike[str]) -> list[dict[str, int]]:
    """Of every call the sizes by name, in order. Empty lines and what follows a ``#`` are left out.

    Raises:
        InvalidInput: it is no such file, holds no call, or calls that name other sizes than the first one.
    """
    source = Path(path)
    if not source.is_file() or source.stat().st_size > _MOST_BYTES:
        raise InvalidInput("there is no such file, or it is too large", where=str(path), hint=_HINT)
    try:
        text = source.read_text(encoding="utf-8")
    except ValueError as error:
        raise InvalidInput("the sizes are no text", where=str(path), hint=_HINT) from error
    calls = _from_json(text, str(path)) if text.lstrip().startswith("[") else _from_lines(text, str(path))
    if not calls:
        raise InvalidInput("the file lists no sizes", where=str(path), hint=_HINT)
    names = set(calls[0])
    for number, sizes in enumerate(calls, 1):
        if set(sizes) != names:
            shown = ", ".join(sorted(sizes)) or "none"
            raise InvalidInput(
                f"call {number} names {shown}, the first one {', '.join(sorted(names))}", where=str(path), hint=_HINT
            )
    return calls


_HINT = "a line for each call, as: b=4 s=37"


def _from_lines(text: str, where: str) -> list[dict[str, int]]:
    calls = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        found = [_WORD.fullmatch(word) for word in words]
        sizes = {m[1]: int(m[2]) for m in found if m is not None}
        if len(sizes) != len(words):
            raise InvalidInput(f"{line.strip()[:80]!r} is no list of sizes", where=f"{where}:{number}", hint=_HINT)
        if sizes:
            calls.append(sizes)
    return calls


def _from_json(text: str, where: str) -> list[dict[str, int]]:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("the sizes are no JSON", where=where, hint=_HINT) from error
    for number, sizes in enumerate(data, 1):
        if not isinstance(sizes, dict) or not sizes or not all(map(_is_size, sizes.values())):
            raise InvalidInput(
                f"call {number} is no object of names and sizes", where=where, hint='[{"b": 4, "s": 37}]'
            )
    return list(data)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 10**12
