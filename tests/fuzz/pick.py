"""What the random steps draw from: the values made so far, with their shapes, and a list of random numbers.

The numbers are kept, so that a case is the list it was made from: to shrink a case is to shorten the list and to lower its
numbers. (Hypothesis does the same, but a third of what it draws here has one step, and a third is drawn twice.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.case import NAMES

LARGEST = 3000
SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 17, 33)


class Value:
    """A named value; its meta tensor knows the shape."""

    def __init__(self, name: str, meta: Tensor) -> None:
        self.name, self.meta = name, meta
        self.shape: tuple[int, ...] = tuple(meta.shape)
        self.rank = len(self.shape)

    def __str__(self) -> str:
        return self.name


class Nothing(Exception):
    """No value fits; the step is left out."""


class Pick:
    """Choices for one case: those given, then (with ``rng``) random ones or (without) the simplest."""

    def __init__(self, given: Sequence[int] = (), rng: random.Random | None = None) -> None:
        self._given, self._rng = given, rng
        self.chosen: list[int] = []
        self.values: list[Value] = []
        self.layers: list[str] = []
        self._metas: list[Any] = []
        self.lines: list[str] = []
        self.writable: set[str] = set()
        self._made = 0

    def of(self, choices: Sequence[Any]) -> Any:
        """One of the choices; the first is the simplest."""
        if not choices:
            raise Nothing
        return choices[self.int(0, len(choices) - 1)]

    def int(self, low: int, high: int) -> int:
        """A number from low to high, both included."""
        if high < low:
            raise Nothing
        at = len(self.chosen)
        if at < len(self._given):
            number = min(self._given[at], high - low)
        else:
            number = self._rng.randint(0, high - low) if self._rng is not None else 0
        self.chosen.append(number)
        return low + number

    def flag(self, share: float = 0.5) -> bool:
        """True in about this share of the cases."""
        return bool(self.int(0, 99) >= 100 - int(share * 100))

    def size(self, high: int = 33) -> int:
        """An extent, often odd."""
        value: int = self.of([s for s in (3, *SIZES) if s <= high])
        return value

    def value(self, fits: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value that fits, the latest most often."""
        found = [v for v in reversed(self.values) if fits(v)]
        if len(found) > 3 and not self.flag(0.3):
            found = found[:3]
        value: Value = self.of(found)
        return value

    def axis(self, v: Value, least: int = 1) -> int:
        """A dimension with at least so many elements."""
        value: int = self.of([i for i, d in enumerate(v.shape) if d >= least])
        return value

    def layer(self, text: str) -> str:
        """A submodule; now and then one that is there already, so that parameters are shared."""
        same = [i for i, known in enumerate(self.layers) if known == text]
        if same and self.flag(0.6):
            return f"self.l{self.of(same)}"
        with torch.device("meta"):
            self._metas.append(eval(text, dict(NAMES)))
        self.layers.append(text)
        return f"self.l{len(self.layers) - 1}"

    def add(self, text: str) -> Value:
        """A value from an expression."""
        name = f"v{self._made}"
        meta = self._run(text)
        if not isinstance(meta, Tensor) or meta.numel() > LARGEST or not meta.is_floating_point():
            raise Nothing
        self.lines.append(f"{name} = {text}")
        self._made += 1
        self.values.append(Value(name, meta))
        return self.values[-1]

    def statement(self, text: str) -> None:
        """A statement that writes to a value in place."""
        self._run(text)
        self.lines.append(text)

    def _run(self, text: str) -> Any:
        me = type("Me", (), {f"l{i}": m for i, m in enumerate(self._metas)})
        space = dict(NAMES) | {"self": me} | {v.name: v.meta for v in self.values}
        with torch.no_grad(), torch.device("meta"):
            return eval(text, space)
