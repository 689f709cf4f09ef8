"""The database of measured choices: one small JSON file a kernel in the user's cache, by spec, threads, machine and emitters."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcir.cache import Cache, key_of
from dcir.codegen.choices import MODELS, Choice
from dcir.codegen.registry import Emitters
from dcir.cost.machine import Machine

KIND = "tuned"
_FORMAT = "1"
MOST_TIMES = 24
"""Times of choices that a verdict keeps, the shortest ones."""

Times = tuple[tuple[Choice, float], ...]
"""Choices that were measured, each with the seconds of a call, the fastest first."""


@dataclass(frozen=True)
class Verdict:
    """What measuring a kernel came to.

    Attributes:
        choice: the decisions that won; none of its own where the cost model's could not be beaten.
        seconds, models: time of a call with it, and as the cost model has it.
        spread: by how much measurements of equal code differed, as a part of their time.
        tried: how many choices were measured.
        times: the fastest of them, next to the model's own.
    """

    choice: Choice
    seconds: float
    models: float
    spread: float
    tried: int
    times: Times = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "choice": self.choice.to_json(), "seconds": self.seconds, "models": self.models, "spread": self.spread,
            "tried": self.tried, "times": [[choice.to_json(), seconds] for choice, seconds in self.times],
        }  # fmt: skip

    @staticmethod
    def from_json(data: Any) -> Verdict:
        """The verdict that ``to_json`` wrote.

        Raises:
            KeyError, TypeError, ValueError: the data is something else.
        """
        numbers = [float(data[name]) for name in ("seconds", "models", "spread")]
        given = data.get("times", [])
        if not isinstance(given, list) or len(given) > MOST_TIMES:
            raise ValueError("not times")
        times = tuple((Choice.from_json(choice), float(taken)) for choice, taken in given)
        if not all(math.isfinite(n) and n >= 0 for n in (*numbers, *(taken for _, taken in times))):
            raise ValueError("not a time")
        seconds, models, spread = numbers
        return Verdict(Choice.from_json(data["choice"]), seconds, models, spread, int(data["tried"]), times)


@dataclass(frozen=True)
class Database:
    """The verdicts of one machine.

    Attributes:
        machine: what kernels are planned for.
        emitters: that plan them.
        code: a digest of the code that makes kernels; what was measured with other code does not count.
        cache: where it lies.
    """

    machine: Machine
    emitters: Emitters
    code: str
    cache: Cache

    def find(self, spec: Any, types: Any, team: int) -> Verdict | None:
        """The verdict on a kernel that a team of so many threads runs, or None if there is none that can be read."""
        if not (self.cache.folder / KIND).is_dir():
            return None
        path = self.cache.path_of(KIND, self._key(spec, types, team), ".json")
        if path is None:
            return None
        try:
            return Verdict.from_json(json.loads(path.read_text()))
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return None

    def choice(self, spec: Any, types: Any, team: int) -> Choice:
        """The decisions that won for a kernel, as far as its emitter offers them."""
        return self.chosen(spec, self.find(spec, types, team))

    def chosen(self, spec: Any, verdict: Verdict | None) -> Choice:
        """What of a verdict on a kernel its emitter offers."""
        if verdict is None or not verdict.choice:
            return MODELS
        return self.emitters.decisions(spec, self.machine, verdict.choice).effective()

    def keep(self, spec: Any, types: Any, team: int, verdict: Verdict) -> None:
        """Remember a verdict, in place of an older one."""
        key = self._key(spec, types, team)
        old = self.cache.path_of(KIND, key, ".json")
        if old is not None:
            # What has no file is built again.
            old.unlink(missing_ok=True)
        self.cache.get_or_build(KIND, key, ".json", lambda draft: _write(draft, verdict))

    def _key(self, spec: Any, types: Sequence[Any], team: int) -> str:
        return key_of(
            KIND,
            _FORMAT,
            self.emitters.target,
            self.code,
            self.machine.identity,
            self.machine.key,
            str(team),
            repr(types),
            repr(spec),
        )


def _write(draft: Path, verdict: Verdict) -> None:
    draft.write_text(json.dumps(verdict.to_json(), sort_keys=True) + "\n")
