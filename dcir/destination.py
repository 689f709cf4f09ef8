"""Where a file is to be written is looked at before anything is computed for it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from dcir.errors import InvalidInput


def check_destination(path: str | os.PathLike[str], *read: str | os.PathLike[str]) -> None:
    """Refuse a path that no file can be written to, before anything is compiled for it.

    Args:
        path: where a file is to be written.
        read: files that are read for it.

    Raises:
        InvalidInput: it is a folder, lies in none, or is one of those that are read.
    """
    target = Path(path)
    if target.is_dir():
        raise InvalidInput("the file to write is a folder", where=str(target), hint=str(target / "model.dcir"))
    if not target.parent.is_dir():
        raise InvalidInput(
            "there is no folder to write the file to",
            where=str(target),
            hint=f"mkdir -p {shlex.quote(str(target.parent))}",
        )
    if target.exists() and any(os.path.exists(file) and os.path.samefile(target, file) for file in read):
        raise InvalidInput("the file to write is the one that is read", where=str(target), hint="another path")


def check_replaced(path: str | os.PathLike[str]) -> Path:
    """What another file may be put in the place of: the file that a path leads to, so that links go on leading to it.

    Raises:
        InvalidInput: something other than a file is there, a device say, which would be gone for the whole machine.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise InvalidInput(
            "what is there is no file, so none can be put in its place", where=os.fspath(path), hint="another path"
        )
    return target
