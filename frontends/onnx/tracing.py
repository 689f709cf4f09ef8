"""Functions that no tracer enters: with all that they call, or alone."""

from __future__ import annotations

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
