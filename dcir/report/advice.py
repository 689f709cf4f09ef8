"""Advice with figures, as text and JSON: what to change of a model's call, what each change is predicted to bring, and what it brought."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dcir.report.advice_pieces import TOLERANCE, Call, Measured, Piece
from dcir.report.roofline import Roofline

_BUSY = 0.10


@dataclass(frozen=True)
class Speed:
    """Items a second of one way to call a model, and the milliseconds of a call."""

    call: Call
    items_per_second: float
    ms: float


@dataclass(frozen=True)
class Led:
    """What advice leads to: a call, its items a second, and whether they were measured."""

    call: Call
    items_per_second: float
    measured: bool


@dataclass(frozen=True)
class Advice:
    """What ``advise`` returns.

    Attributes:
        roofline: what was measured of the model's kernels.
        now: the model as it is called, compiled.
        eager: it in PyTorch as it is by default: one item at a time (a training step: as many as now), all threads.
        pieces: the largest predicted gain first.
        together: all that keeps numbers as they are and goes together, predicted and, with the pieces, measured; None where there is
            nothing to change.
        applied: whether pieces were measured.
        others: part of the processors' time that other processes took while they were.
    """

    roofline: Roofline
    now: Speed
    eager: Speed
    pieces: tuple[Piece, ...]
    together: Piece | None
    applied: bool = False
    others: float = 0.0

    @property
    def led_to(self) -> Led:
        """The call that the advice leads to: all that goes together as predicted; of what was tried, the fastest that keeps numbers.

        Where the call of now takes more memory than there is to be, it is one that does not.
        """
        needed = [p for p in self.pieces if p.needed and p.call is not None]
        if not self.applied:
            items = self.now.items_per_second
            if needed and needed[0].call is not None:
                return Led(needed[0].call, items * needed[0].gain, measured=False)
            if self.together is None or self.together.call is None:
                return Led(self.now.call, items, measured=True)
            return Led(self.together.call, items * self.together.gain, measured=False)
        tried = [
            p.measured
            for p in (needed or (*self.pieces, self.together))
            if p is not None and p.exact and p.measured is not None
        ]
        best = max((Speed(m.call, m.items_per_second, m.ms) for m in tried), key=_rate, default=self.now)
        best = best if needed else max(self.now, best, key=_rate)
        return Led(best.call, best.items_per_second, measured=True)

    @property
    def headline(self) -> float:
        """Items a second of the model as advised over those of eager PyTorch by default."""
        return self.led_to.items_per_second / self.eager.items_per_second

    @property
    def notes(self) -> list[str]:
        """What to know before believing the figures."""
        found = []
        if self.others > _BUSY:
            found.append(f"{self.others:.0%} of the processors' time went to others while pieces were measured")
        if self.applied:
            known = [p for p in self.pieces if p.holds is not None]
            held = sum(bool(p.holds) for p in known)
            found.append(f"{held} of {len(known)} measured gains are within {TOLERANCE:.0%} of the predicted")
        return found

    def save(self, path: str | Path) -> None:
        """Draw the roofline; see ``Roofline.save``."""
        self.roofline.save(path)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data: the roofline's, and ``advice``."""
        return {
            **self.roofline.to_json(),
            "advice": {
                "now": asdict(self.now),
                "eager": asdict(self.eager),
                "pieces": [p.to_json() for p in self.pieces],
                "together": None if self.together is None else self.together.to_json(),
                "advised": {**asdict(self.led_to), "gain_over_eager": self.headline},
                "applied": self.applied,
                "others": self.others,
                "notes": self.notes,
            },
        }

    def to_text(self, limit: int | None = 30) -> str:
        """The roofline for people, and below it the advice."""
        return f"{self.roofline.to_text(limit).rstrip()}\n\n{self.advice_text()}"

    def __str__(self) -> str:
        return self.advice_text()

    def _repr_html_(self) -> str:
        from dcir.report.notebook import advice_html

        return advice_html(self)

    def advice_text(self) -> str:
        """The advice alone."""
        now = self.now
        head = f"advice for {self.roofline.model}, {self.roofline.mode}; now {now.call}: {_speed(now)}"
        lines = [head]
        if not self.pieces:
            lines.append("nothing to change: no rule predicts 3 % more items a second")
        else:
            lines.append(f"{'':>3} {'predicted':>9} {'measured':>9} {'spread':>6} {'a call takes':>12}  what")
        for number, piece in enumerate(self.pieces, 1):
            lines += _piece_text(f"{number}", piece)
        if self.together is not None and self.together.call not in [p.call for p in self.pieces]:
            lines += _piece_text("all", self.together)
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, self._headline_text()])

    def _headline_text(self) -> str:
        led = self.led_to
        kind = "" if led.measured else " (predicted)"
        return (
            f"{self.eager.call} {_items(self.eager.items_per_second)} -> dcir as called {_items(self.now.items_per_second)} -> "
            f"as advised ({led.call}) {_items(led.items_per_second)}{kind}: {self.headline:.2f} x"
        )


def _piece_text(number: str, p: Piece) -> list[str]:
    m: Measured | None = p.measured
    measured, spread = ("-", "-") if m is None else (f"{m.gain:.2f} x", f"{m.spread:.0%}")
    lines = [f"{number:>3} {f'{p.gain:.2f} x':>9} {measured:>9} {spread:>6} {f'{p.slower:.2f} x':>12}  {p.title}"]
    told = {p.basis: p.evidence, "python": p.python, "command": p.command}
    return lines + [f"      {name}: {text}" for name, text in told.items() if text]


def _speed(s: Speed) -> str:
    return f"{_items(s.items_per_second)}, {s.ms:.4g} ms a call"


def _rate(speed: Speed) -> float:
    return speed.items_per_second


def _items(items: float) -> str:
    return f"{items:.4g} items/s"
