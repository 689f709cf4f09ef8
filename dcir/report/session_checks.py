"""Checks of data from a file: small functions that say what a value must be, joined to those of lists and records.

record({"name": text, "shape": listed(count)})({"name": "x", "shape": [1, "2"]}, "x")   -->   Wrong: x.shape[1] is no number
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], None]
"""Called with a value and where it stands; raises ``Wrong``."""


class Wrong(ValueError):
    """A value is not what it must be; the text says where, and what it is not."""


def text(value: Any, at: str) -> None:
    """A text."""
    if not isinstance(value, str):
        raise Wrong(f"{at} is no text")


def flag(value: Any, at: str) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise Wrong(f"{at} is neither true nor false")


def number(value: Any, at: str) -> None:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Wrong(f"{at} is no number")


def integer(value: Any, at: str) -> None:
    """An integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Wrong(f"{at} is no integer")


def count(value: Any, at: str) -> None:
    """An integer from 0 up."""
    integer(value, at)
    if value < 0:
        raise Wrong(f"{at} is below 0")


def anything(value: Any, at: str) -> None:
    """Whatever JSON can say."""


def one_of(*values: str) -> Check:
    """One of some texts."""

    def check(value: Any, at: str) -> None:
        if value not in values:
            raise Wrong(f"{at} is none of {', '.join(values)}")

    return check


def optional(inner: Check) -> Check:
    """Null, or what ``inner`` wants."""

    def check(value: Any, at: str) -> None:
        if value is not None:
            inner(value, at)

    return check


def either(*inner: Check) -> Check:
    """What one of several wants."""

    def check(value: Any, at: str) -> None:
        for each in inner:
            try:
                each(value, at)
            except Wrong as error:
                last = error
            else:
                return
        raise last

    return check


def listed(inner: Check) -> Check:
    """A list of such."""

    def check(value: Any, at: str) -> None:
        if not isinstance(value, list):
            raise Wrong(f"{at} is no list")
        for n, item in enumerate(value):
            inner(item, f"{at}[{n}]")

    return check


def row(*inner: Check) -> Check:
    """A list of so many."""

    def check(value: Any, at: str) -> None:
        if not isinstance(value, list) or len(value) != len(inner):
            raise Wrong(f"{at} is no list of {len(inner)}")
        for n, (each, item) in enumerate(zip(inner, value, strict=True)):
            each(item, f"{at}[{n}]")

    return check


def mapped(inner: Check) -> Check:
    """An object with such values under any names."""

    def check(value: Any, at: str) -> None:
        if not isinstance(value, dict):
            raise Wrong(f"{at} is no object")
        for name, item in value.items():
            inner(item, f"{at}.{name}")

    return check


def record(fields: Mapping[str, Check]) -> Check:
    """An object with these fields; others are let through."""

    def check(value: Any, at: str) -> None:
        if not isinstance(value, dict):
            raise Wrong(f"{at} is no object")
        for name, inner in fields.items():
            if name not in value:
                raise Wrong(f"{at}.{name} is missing")
            inner(value[name], f"{at}.{name}")

    return check
