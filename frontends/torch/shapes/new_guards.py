"""Which guards a trace for all sizes may add to Dynamo's: that something is not equal to something, and no others.

Dynamo's trace holds for more than one size. What is asked of sizes when its graph is traced once more becomes a guard, too. That a
product of sizes is not 1 keeps few calls out; that one is less than another, or is equal to it, would have Dynamo compile the graph
again and again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import sympy
from torch.fx.experimental.symbolic_shapes import _ShapeEnvGuardError

_LOG = logging.getLogger("torch.fx.experimental.symbolic_shapes")


class GuardNeeded(Exception):
    """A trace asks for a guard that keeps many sizes out."""


@contextlib.contextmanager
def few_new_guards(environments: Iterable[Any]) -> Iterator[None]:
    """While a graph is traced whose sizes belong to some shape environments.

    Raises:
        GuardNeeded: a guard would keep many sizes out. It is not added.
    """
    patched = list(environments)
    for environment in patched:
        environment._check_frozen = _check
    _LOG.addFilter(_not_ours)
    try:
        yield
    except _ShapeEnvGuardError as e:
        raise GuardNeeded(str(e)) from e
    finally:
        _LOG.removeFilter(_not_ours)
        for environment in patched:
            del environment._check_frozen


def _check(condition: Any, value: Any) -> None:
    """In the place of the environment's own check, before it adds that a condition has a value."""
    unequal = isinstance(condition, sympy.Ne) if value else isinstance(condition, sympy.Eq)
    if not unequal:
        raise _ShapeEnvGuardError(f"{condition} is {bool(value)}")


def _not_ours(record: logging.LogRecord) -> bool:
    """Keep what is heard here out of the log: it is no failure."""
    return not record.msg.startswith("failed during evaluate_expr")
