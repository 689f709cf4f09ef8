"""Functions that no tracer enters, with all that they call or alone; and what tracers say of calls that fail."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

_REASON = "the size of a result, or what to do next, is in the data"
_Function = TypeVar("_Function", bound=Callable[..., Any])


def untraced(function: _Function) -> _Function:
    """`function` runs in eager mode, and so does what it calls."""
    return cast(_Function, torch.compiler.disable(function, reason=_REASON))


def not_entered(function: _Function) -> _Function:
    """`function` runs in eager mode; each function that it calls is looked at for itself."""
    return cast(_Function, torch.compiler.disable(function, recursive=False, reason=_REASON))


class _Calls(threading.local):
    open: int = 0


class Unlogged:
    """While a call is open: what tracers log of operators that fail is left out. The error says it, and where in the file."""

    def __enter__(self) -> None:
        _CALLS.open += 1

    def __exit__(self, *_: object) -> None:
        _CALLS.open -= 1


_CALLS = _Calls()


def _heard(record: logging.LogRecord) -> bool:
    return _CALLS.open == 0 or record.levelno < logging.ERROR


for _name in ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes"):
    logging.getLogger(_name).addFilter(_heard)
