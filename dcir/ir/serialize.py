"""Specs as JSON and back: frozen dataclasses of plain values, tagged by registered class name; nothing is evaluated.

A statement of a loop nest is an object of its kind and its fields, {"s": "load", "operand": 0, "strides": [8, 1], ...}.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from dcir.errors import InvalidGraph
from dcir.ir.loop_nest import LoopNest
from dcir.ir.operator import Operator, check_operator
from dcir.ir.scalars import TABLE
from dcir.ir.sizes import Polynomial, Quotient, from_json
from dcir.ir.statements import KINDS, REDUCTIONS, Statement

_CLASSES: dict[str, type] = {}


def register(cls: type) -> type:
    """Class decorator: a frozen dataclass that may appear in a saved graph.

    Raises:
        InvalidOperator: an operator that does not say all that an operator must.
    """
    if issubclass(cls, Operator):
        check_operator(cls)
    _CLASSES[cls.__name__] = cls
    return cls


register(LoopNest)
register(Quotient)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(v) is int for v in value)


def _are_extents(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(v) in (int, Polynomial) for v in value)


_MOVING = ("strides", "extents", "steps")
"""Fields of statements whose numbers may move."""
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": lambda v: type(v) is int,
    "str": lambda v: type(v) is str,
    "bool": lambda v: type(v) is bool,
    "bool | int | float": lambda v: type(v) in (bool, int, float, Polynomial, Quotient),
    "Values": _are_numbers,
    "Strides": _are_numbers,
}
"""What a field of a statement may hold, by its annotation."""
_WORDS: dict[tuple[str, str], Callable[[str], bool]] = {
    ("compute", "op"): TABLE.__contains__,
    ("reduce", "kind"): REDUCTIONS.__contains__,
    ("narrow", "storage"): ("bf16", "f16").__contains__,
}
"""Fields of statements that hold a word of a list."""
_KINDS: dict[str, tuple[type[Statement], dict[str, str]]] = {
    kind.__name__.lower(): (kind, {f.name: str(f.type) for f in dataclasses.fields(kind)})  # type: ignore[arg-type]
    for kind in KINDS
}
"""Every kind of statement by its name in files, with its fields and their annotations."""


def encode(value: Any) -> Any:
    """``value`` (None, bool, int, float, str, tuple, statement, polynomial, registered dataclass) as JSON-able data."""
    if isinstance(value, Statement):
        name = type(value).__name__.lower()
        return {"s": name, **{field: encode(getattr(value, field)) for field in _KINDS[name][1]}}
    if isinstance(value, tuple | list):
        return [encode(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else {"f": repr(value)}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Polynomial):
        return {"p": value.to_json()}
    name = type(value).__name__
    if name in _CLASSES:
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"c": name, "v": fields}
    raise TypeError(f"cannot encode {type(value)}")


def decode(data: Any, *, moving: bool = False) -> Any:
    """The inverse of ``encode``; lists become tuples.

    Args:
        data: what ``encode`` gave.
        moving: whether numbers may be polynomials of sizes.

    Raises:
        InvalidGraph: unknown class or malformed data.
    """
    if isinstance(data, list):
        return tuple(decode(d, moving=moving) for d in data)
    if isinstance(data, dict):
        if "s" in data:
            return _statement(data, moving)
        if "f" in data:
            return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[data["f"]]
        if "p" in data:
            if not moving:
                raise InvalidGraph("a number that moves with sizes in a saved graph of constant ones")
            return from_json(data["p"])
        cls = _CLASSES.get(data.get("c", ""))
        if cls is None:
            raise InvalidGraph(f"unknown node content {data.get('c')!r} in a saved graph")
        names = {f.name for f in dataclasses.fields(cls)}
        if set(data["v"]) - names:
            raise InvalidGraph(f"unknown fields {sorted(set(data['v']) - names)} of {data['c']} in a saved graph")
        return cls(**{k: decode(v, moving=moving) for k, v in data["v"].items()})
    return data


def _statement(data: dict[str, Any], moving: bool) -> Statement:
    """A statement of exactly its kind's fields.

    Raises:
        InvalidGraph: an unknown kind or operator, fields that are missing or unknown, or a value of another type.
    """
    name = data["s"]
    if isinstance(name, list):
        raise InvalidGraph(
            "a saved graph holds loop nests as an older dcir wrote them, statements without named fields",
            hint="save the graph again with this dcir",
        )
    if not isinstance(name, str) or name not in _KINDS:
        raise InvalidGraph(f"unknown statement {name!r} in a saved graph")
    kind, fields = _KINDS[name]
    values = {k: decode(v, moving=moving) for k, v in data.items() if k != "s"}
    if values.keys() != fields.keys():
        raise InvalidGraph(f"a saved {name} statement must have the fields {sorted(fields)}, not {sorted(values)}")
    for field, annotation in fields.items():
        word = _WORDS.get((name, field))
        check = _are_extents if field in _MOVING else _CHECKS[annotation]
        if not check(values[field]) or (word is not None and not word(values[field])):
            raise InvalidGraph(f"{field} of a saved {name} statement cannot be {values[field]!r}")
    return kind(**values)
