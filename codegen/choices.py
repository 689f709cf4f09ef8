"""Choices of the emitters as data: the alternatives that a cost model ranks, and a set of them that was measured to be faster.

An emitter that can do something in several ways asks ``decide`` with all of them, its cost model's favourite first. It is told to take
the first, unless the kernel is planned with a ``Choice`` that names another. What a choice says only ever selects among what the
emitter offers, so a choice that is damaged, or was made for other code, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

Value = int | str | tuple[int, ...]
_V = TypeVar("_V", int, str, tuple[int, ...])


@dataclass(frozen=True)
class Choice:
    """Decisions that differ from the cost model's: (name of the decision, what to take)."""

    values: tuple[tuple[str, Value], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.values)

    def __str__(self) -> str:
        parts = (f"{n} {'x'.join(map(str, v)) if isinstance(v, tuple) else v}" for n, v in self.values)
        return ", ".join(parts) or "the model's"

    def having(self, name: str, value: Value) -> Choice:
        """This choice with one decision taken otherwise."""
        return Choice((*((n, v) for n, v in self.values if n != name), (name, value)))

    def to_json(self) -> list[list[Any]]:
        """Plain data."""
        return [[name, list(value) if isinstance(value, tuple) else value] for name, value in self.values]

    @staticmethod
    def from_json(data: Any) -> Choice:
        """The choice that ``to_json`` wrote.

        Raises:
            ValueError: the data is something else.
        """
        return Choice(tuple(_entry(item) for item in _list(data)))


MODELS = Choice()
"""All decisions as the cost models take them."""


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list) or len(data) > 64:
        raise ValueError("not a choice")
    return data


def _entry(item: Any) -> tuple[str, Value]:
    match item:
        case [str(name), str(value)]:
            return name, value
        case [str(name), list(numbers)] if all(type(n) is int for n in numbers):
            return name, tuple(numbers)
        case [str(name), value] if type(value) is int:
            return name, value
    raise ValueError("not a decision")


@dataclass
class Decisions:
    """What an emitter was asked to take, and what it asked.

    Attributes:
        choice: decisions that differ from the model's.
        offered: every decision's alternatives, by name, the model's own first.
        taken: what was taken, by name.
    """

    choice: Choice = Choice()
    offered: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    taken: dict[str, Value] = field(default_factory=dict)

    def effective(self) -> Choice:
        """The choice without what asks for the model's own, or for what was not offered."""
        kept = ((n, v) for n, v in self.choice.values if self.taken.get(n) == v and self.offered[n][0] != v)
        return Choice(tuple(sorted(kept, key=lambda entry: entry[0])))


_CURRENT: ContextVar[Decisions | None] = ContextVar("decisions", default=None)


@contextmanager
def deciding(choice: Choice) -> Iterator[Decisions]:
    """Emitters called inside decide by ``choice``."""
    decisions = Decisions(choice)
    token = _CURRENT.set(decisions)
    try:
        yield decisions
    finally:
        _CURRENT.reset(token)


def decide(name: str, options: Sequence[_V]) -> _V:
    """One of ``options``: the first, the cost model's, unless the kernel is planned with a choice of another.

    A kernel that asks the same question several times, for parts of it, asks the second time about "name.2".
    """
    decisions = _CURRENT.get()
    if decisions is None:
        return options[0]
    count = 1
    while (full := name if count == 1 else f"{name}.{count}") in decisions.offered:
        count += 1
    offered = tuple(dict.fromkeys(options))
    decisions.offered[full] = offered
    wanted = dict(decisions.choice.values).get(full)
    taken = next((o for o in offered if o == wanted and type(o) is type(wanted)), options[0])
    decisions.taken[full] = taken
    return taken
