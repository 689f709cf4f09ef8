"""Specs as JSON and back: frozen dataclasses of plain values, tagged by registered class name; nothing is evaluated."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from dcir.errors import InvalidGraph
from dcir.ir.loop_nest import LoopNest, Stmt
from dcir.ir.operator import Operator, check_operator

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


def encode(value: Any) -> Any:
    """``value`` (None, bool, int, float, str, tuple, Stmt, registered dataclass) as JSON-able data."""
    if isinstance(value, Stmt):
        return {"s": [value.op, list(value.args), value.dtype, encode(value.attr)]}
    if isinstance(value, tuple | list):
        return [encode(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else {"f": repr(value)}
    if value is None or isinstance(value, bool | int | str):
        return value
    name = type(value).__name__
    if name in _CLASSES:
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"c": name, "v": fields}
    raise TypeError(f"cannot encode {type(value)}")


def decode(data: Any) -> Any:
    """The inverse of ``encode``; lists become tuples.

    Raises:
        InvalidGraph: unknown class or malformed data.
    """
    if isinstance(data, list):
        return tuple(decode(d) for d in data)
    if isinstance(data, dict):
        if "s" in data:
            op, args, dtype, attr = data["s"]
            return Stmt(str(op), tuple(int(a) for a in args), str(dtype), decode(attr))
        if "f" in data:
            return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[data["f"]]
        cls = _CLASSES.get(data.get("c", ""))
        if cls is None:
            raise InvalidGraph(f"unknown node content {data.get('c')!r} in a saved graph")
        names = {f.name for f in dataclasses.fields(cls)}
        if set(data["v"]) - names:
            raise InvalidGraph(f"unknown fields {sorted(set(data['v']) - names)} of {data['c']} in a saved graph")
        return cls(**{k: decode(v) for k, v in data["v"].items()})
    return data
