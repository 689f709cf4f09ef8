"""Pieces of advice: a way to call a model, what changing to it is predicted to bring and why, and what it did bring."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

HERE, MODELLED, BOTH = "measured here", "modelled", "measured here, and modelled"
"""What a prediction rests on: figures of this run, a model, or figures of this run that a model goes on from."""

LEAST_GAIN = 1.03
"""Less than this is no advice: calls differ by as much from one minute to the next."""

TOLERANCE = 0.30
"""A prediction holds if what was measured is between 1 - this and 1 + this of it."""


@dataclass(frozen=True)
class Call:
    """How a model is called.

    Attributes:
        threads: of a call's team, or of each stream's.
        batch: items of a call (None: as the model has it).
        level: of dcir's optimisation; None is eager PyTorch.
        streams: calls at a time.
        turned: whether images lie the other way around: channels-last where they came in rows, and the reverse.
        half: whether weights and inputs are bfloat16.
        whole_step: whether ``dcir.train_step`` runs a training step.
        fused: whether torch's fused form updates the parameters of a training step, where they are updated otherwise now.
        memory_limit: of what a training step keeps and of its scratch memory, in bytes.
    """

    threads: int
    batch: int | None = None
    level: int | None = 4
    streams: int = 1
    turned: bool = False
    half: bool = False
    whole_step: bool = False
    fused: bool = False
    memory_limit: int | None = None

    def __str__(self) -> str:
        words = ["eager PyTorch" if self.level is None else f"-O{self.level}"]
        words += [] if self.batch is None else [f"batch {self.batch}"]
        team = f"{self.threads} thread{'s' * (self.threads != 1)}"
        words.append(team if self.streams == 1 else f"{self.streams} streams of {team}")
        named = {
            "images the other way around": self.turned, "bfloat16": self.half, "train_step": self.whole_step,
            "fused update": self.fused, f"memory_limit={self.memory_limit}": self.memory_limit is not None,
        }  # fmt: skip
        return ", ".join([*words, *(name for name, on in named.items() if on)])


@dataclass(frozen=True)
class Measured:
    """What one way to call a model did, among others that took turns with it.

    Attributes:
        call: the way.
        items_per_second: of the best of several bursts of calls.
        ms: the time of a call; of several at a time, from one that ends to the next.
        gain: items a second over those of the model as it is called now.
        spread: how far below the best burst's the median burst's items a second are, as a part of them.
        bursts: how many there were.
    """

    call: Call
    items_per_second: float
    ms: float
    gain: float
    spread: float
    bursts: int


@dataclass(frozen=True)
class Piece:
    """One piece of advice.

    Attributes:
        rule: which gave it: memory, batch, streams, threads, level, layout, precision, step, update, fallback, breaks; or "together".
        what: what to change.
        gain: predicted items a second over those of now.
        slower: predicted time of one call over that of now; of a batch it is above 1 although the gain is, too.
        basis: ``HERE``, ``MODELLED`` or ``BOTH``.
        evidence: the figures that the prediction rests on.
        python: the line that does it.
        command: one of the command line that does it, where there is one.
        call: the model called so; None of what a person has to write.
        exact: whether numbers stay as they are but for rounding of the same type.
        measured: what it brought, once it was applied.
        saves: bytes that a call takes less, of a piece that is given for them and may cost time.
        needed: whether the call of now takes more memory than there is to be, so that nothing else is advised in its place.
    """

    rule: str
    what: str
    gain: float
    slower: float
    basis: str
    evidence: str
    python: str
    command: str = ""
    call: Call | None = None
    exact: bool = True
    measured: Measured | None = None
    saves: int = 0
    needed: bool = False

    @property
    def ratio(self) -> float | None:
        """The measured gain over the predicted one."""
        return None if self.measured is None else self.measured.gain / self.gain

    @property
    def holds(self) -> bool | None:
        """Whether what was measured is what was predicted, within ``TOLERANCE``; None before it is measured."""
        return None if self.ratio is None else abs(self.ratio - 1) <= TOLERANCE

    @property
    def title(self) -> str:
        """What to change, and whether it changes numbers or saves memory."""
        saved = f"  (saves {self.saves / 1e6:.4g} MB)" if self.saves else ""
        return self.what + ("" if self.exact else "  (changes numbers)") + saved

    def applied(self, measured: Measured) -> Piece:
        """The piece with what was measured."""
        return replace(self, measured=measured)

    def to_json(self) -> dict[str, Any]:
        """The piece as plain data."""
        return {**asdict(self), "ratio": self.ratio, "holds": self.holds}


def worth_giving(pieces: list[Piece]) -> list[Piece]:
    """Those that promise more than nothing: what saves memory first, then the largest gain."""
    return sorted((p for p in pieces if p.saves or p.gain >= LEAST_GAIN), key=lambda p: (not p.saves, -p.gain))
