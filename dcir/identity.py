"""What decides the code that dcir generates, as a digest: every file of the package, and the libraries that have a part in it."""

from __future__ import annotations

import functools
import importlib.metadata
import marshal
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType
from typing import Any

from dcir.cache import key_of
from dcir.user_code import PACKAGE, STAGES

# DaCe prints the frames of kernels, torch takes graphs apart, the others compute numbers that stand in the text.
LIBRARIES = ("dace", "torch", "numpy", "sympy")
_BYTECODE = "__pycache__"


@functools.cache
def source_identity() -> str:
    """The digest of this installation. Texts and libraries made by another one are not looked for under it."""
    return digest_of(PACKAGE, {name: importlib.metadata.version(name) for name in LIBRARIES})


def digest_of(package: Path, versions: dict[str, str]) -> str:
    """The digest of a package folder and of versions of libraries.

    All files count, not those alone that print text: which operators a page makes, what a pass fuses and how a method is
    chosen decide what is generated as much, and a list of what matters would be wrong one day.
    """
    parts: list[str | bytes] = [f"{name}={version}" for name, version in sorted(versions.items())]
    for name, path in sorted(package_files(package).items()):
        parts += [name, path.read_bytes()]
    return key_of(*parts)


def package_files(package: Path = PACKAGE) -> dict[str, Path]:
    """The files of a package folder by their names inside it, bytecode left out."""
    found = {}
    for inside in (".", *STAGES):
        folder = package / inside
        # rglob goes into no links.
        for path in folder.resolve().rglob("*") if folder.is_dir() else ():
            if path.is_file() and _BYTECODE not in path.parts:
                found[str(Path(inside) / path.relative_to(folder.resolve()))] = path
    return found


def foreign_identity(makers: Iterable[Any]) -> str:
    """A digest of the code of classes and functions from outside the package; empty if there are none.

    A user's emitter decides what is generated as well: what it made before an edit must not be found after it.
    """
    parts = [_code_of(maker) for maker in makers if not _is_ours(maker)]
    return key_of(*parts) if parts else ""


def _is_ours(maker: Any) -> bool:
    return str(maker.__module__).partition(".")[0] == __name__.partition(".")[0]


def _code_of(maker: Any) -> bytes:
    """The file a class or function was read from; of one that was typed in, its bytecode."""
    file = getattr(sys.modules.get(maker.__module__), "__file__", None)
    if file is not None and Path(file).is_file():
        return Path(file).read_bytes()
    parts = [maker, *vars(maker).values()] if isinstance(maker, type) else [maker]
    codes = [getattr(_function(part), "__code__", None) for part in parts]
    known = [marshal.dumps(code) for code in codes if isinstance(code, CodeType)]
    # What has no code that can be read is taken for new each time.
    return b"".join(known) if known else secrets.token_bytes(16)


def _function(value: Any) -> Any:
    """What a property, a class method or a wrapper runs."""
    return getattr(value, "fget", None) or getattr(value, "__func__", None) or getattr(value, "__wrapped__", value)
