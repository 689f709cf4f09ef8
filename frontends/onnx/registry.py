"""The one table of operators: (domain, name, first opset version) to a Python function over torch tensors.

A function takes the `Node` (its attributes, already completed with the schema's defaults) and the operands, and
returns one value or a tuple. Operands at the positions in `host` arrive as `Host` (or, if only known at run time,
as a tensor); with `scalars` a one-element host value may arrive at any position; everything else is a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dcir.errors import InvalidModel

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


@dataclass(frozen=True)
class Node:
    """What an operator function may know of its node."""

    op: str
    version: int
    attributes: dict[str, Any]
    outputs: int = 1
    used: int = 1
    """Results up to the last one that anything reads; the rest need not be computed."""
    label: str = ""
    note: str = ""
    """Its place in the file, for reports: what tracers are told (``node_origins.py``)."""
    narrow: dict[int, int] = field(default_factory=dict)
    """ONNX types of those operands that are held in a wider torch type (4- and 2-bit integers, 4-bit floats)."""

    def __getitem__(self, name: str) -> Any:
        try:
            return self.attributes[name]
        except KeyError:
            raise InvalidModel(f"attribute {name!r} is missing", where=self.label) from None

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)


@dataclass(frozen=True)
class OperatorRow:
    """One row of the table."""

    function: Function
    since: int
    host: tuple[int, ...] = ()
    scalars: bool = False
    state: tuple[int, ...] = ()
    """Positions that hold running statistics, never trained parameters."""
    random: bool = False
    raw: bool = False
    """Operands arrive as they are: host values, tensors or sequences."""
    numbers: tuple[str, ...] = ()
    """Tensor attributes that arrive as `Host`: what is read of them at load, no tracer sees being read."""
    reads: bool = False
    """The shape of the result is in the operands' data, so no tracer can follow."""
    kept: tuple[int, ...] = ()
    """Positions at which host values arrive as they are, where they are at hand."""


@dataclass
class _Table:
    rows: dict[tuple[str, str], list[OperatorRow]] = field(default_factory=dict)
    host: dict[str, Function] = field(default_factory=dict)


_TABLE = _Table()


def onnx_op(
    *names: str,
    since: int = 1,
    domain: str = "",
    host: tuple[int, ...] = (),
    scalars: bool = False,
    state: tuple[int, ...] = (),
    random: bool = False,
    raw: bool = False,
    numbers: tuple[str, ...] = (),
    reads: bool = False,
    kept: tuple[int, ...] = (),
) -> Callable[[F], F]:
    """Enter a function under one or more operator names, from opset version `since` on."""

    def enter(function: F) -> F:
        for name in names:
            rows = _TABLE.rows.setdefault((domain, name), [])
            rows.append(OperatorRow(function, since, host, scalars, state, random, raw, numbers, reads, kept))
            rows.sort(key=lambda row: -row.since)
        return function

    return enter


def host_op(*names: str) -> Callable[[F], F]:
    """Enter the host-value form of an operator; it may answer `NotImplemented` to fall back to tensors."""

    def enter(function: F) -> F:
        for name in names:
            _TABLE.host[name] = function
        return function

    return enter


def find(domain: str, name: str, version: int) -> OperatorRow | None:
    """The row that holds for operator `name` at opset `version`, or None."""
    for row in _TABLE.rows.get((domain, name), ()):
        if row.since <= version:
            return row
    return None


def find_host(domain: str, name: str) -> Function | None:
    return None if domain else _TABLE.host.get(name)


def operators() -> list[tuple[str, str, int]]:
    """All rows as (domain, name, since), sorted; for the coverage report."""
    return sorted((d, n, row.since) for (d, n), rows in _TABLE.rows.items() for row in rows)
