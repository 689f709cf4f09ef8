"""Logarithmic axes of a roofline's picture, the roofs on them, and text that is safe inside of SVG."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# What XML 1.0 does not allow in any form; names come from model files.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_ROUND = (1, 2, 5)
_AIR = 1.25
_FINE = 500.0  # an axis that goes no further has room for more numbers


def escaped(text: str) -> str:
    """A text as character data or the value of an attribute."""
    return html.escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text), quote=True)


def figure(value: float) -> str:
    """A number with three digits that count, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 1e-4 else f"{value:.6f}"


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis: the values at its ends, and where these are in the picture."""

    least: float
    most: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Iterable[float], start: float, end: float) -> Axis:
        """The axis that holds all values, which must be positive, with some air; it ends at one, two or five of a power of ten."""
        known = [v for v in values if v > 0 and math.isfinite(v)] or [1.0]
        low, high = min(known) / _AIR, max(known) * _AIR
        steps = [
            (m, n) for n in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2) for m in _ROUND
        ]
        rounded = [m * 10.0**n for m, n in steps]
        return cls(max(v for v in rounded if v <= low), min(v for v in rounded if v >= high), start, end)

    def at(self, value: float) -> float:
        """Where a value is in the picture; at the start, if it is below all that the axis has."""
        value = max(value, self.least)
        return self.start + math.log(value / self.least) / math.log(self.most / self.least) * (self.end - self.start)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Place and text of every power of ten, of a short axis also of twice and five times these."""
        fine = self.most / self.least < _FINE
        for power in range(math.floor(math.log10(self.least)), math.ceil(math.log10(self.most)) + 1):
            for m in _ROUND if fine else (1,):
                value = m * 10.0**power
                if self.least * 0.999 <= value <= self.most * 1.001:
                    yield self.at(value), f"{value:g}"


@dataclass(frozen=True)
class Line:
    """A roof's line in the picture."""

    x1: float
    y1: float
    x2: float
    y2: float

    @property
    def degrees(self) -> float:
        """How much it is turned, as SVG counts."""
        return math.degrees(math.atan2(self.y2 - self.y1, self.x2 - self.x1))

    def along(self, pixels: float) -> tuple[float, float]:
        """The point so far from its start, at most at its end."""
        length = math.hypot(self.x2 - self.x1, self.y2 - self.y1) or 1.0
        part = min(1.0, pixels / length)
        return self.x1 + part * (self.x2 - self.x1), self.y1 + part * (self.y2 - self.y1)


def slope(x: Axis, y: Axis, gbytes: float, top: float) -> Line | None:
    """The roof of a memory of so many 10^9 bytes per second, up to a peak of 10^9 operations; None where it is out of the picture."""
    low = max(x.least, y.least / gbytes)
    high = min(x.most, top / gbytes)
    if low >= high:
        return None
    return Line(x.at(low), y.at(low * gbytes), x.at(high), y.at(high * gbytes))


def level(x: Axis, y: Axis, gflops: float, fastest: float) -> Line | None:
    """The roof of arithmetic, from where the fastest memory meets it."""
    low = max(x.least, gflops / fastest)
    if low >= x.most or not y.least <= gflops <= y.most:
        return None
    return Line(x.at(low), y.at(gflops), x.at(x.most), y.at(gflops))
