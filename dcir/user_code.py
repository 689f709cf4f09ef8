"""Which code is the user's, and warnings that point at it: not at dcir, torch, or what Python calls in between."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
STAGES = ("frontends", "transforms", "codegen")
"""Folders of their own in a checkout, linked into the package, and inside it once installed."""


@functools.cache
def _folders() -> tuple[str, ...]:
    """Folders of code that is not the user's, by where it was loaded from: a user's folder may be named torch or dcir, too."""
    found = [PACKAGE, *((PACKAGE / stage).resolve() for stage in STAGES)]
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__:
        found.append(Path(torch.__file__).resolve().parent)
    return tuple(f"{folder}{os.sep}" for folder in found)


@functools.lru_cache(maxsize=1024)
def is_users(filename: str) -> bool:
    """Whether a frame's file is the user's."""
    if filename in (contextlib.__file__, functools.__file__) or filename.startswith("<frozen "):
        return False
    # The stages are reached through links in a checkout.
    return not filename.startswith(_folders()) and not os.path.realpath(filename).startswith(_folders())


def warn_user(text: str, category: type[Warning]) -> None:
    """``warnings.warn`` at the line of the user's that led here; at the outermost one where none is the user's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
