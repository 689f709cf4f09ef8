"""Levels of ``vmap`` or ``grad`` that a trace which ends with an error would leave behind, where the next one begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def levels_end_with_errors() -> Iterator[None]:
    """While it lasts an error leaves no levels of function transformations that were not there before."""
    levels: Any = torch._C._functorch
    before = levels.get_dynamic_layer_stack_depth()
    try:
        yield
    except BaseException:
        levels.pop_dynamic_layer_stack_and_undo_to_depth(before)
        raise
