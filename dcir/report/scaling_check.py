"""Predicted steps of data-parallel training beside measured ones, on as many processes as one machine has cores for."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dcir.cost.links import Link
from dcir.report.scaling import CAP, TrainingStep, predict

WITHIN = 0.15
"""A prediction holds within this part of what was measured."""
_BUSY = 0.10


@dataclass(frozen=True)
class CheckedTurn:
    """One turn of all processes.

    Attributes:
        alone: what each process computes in a step without exchanges, all of them at once.
        measured_ms: median of the steps with exchanges, of each process.
    """

    alone: tuple[TrainingStep, ...]
    measured_ms: tuple[float, ...]


@dataclass(frozen=True)
class CheckedStep:
    """A step of several processes, predicted and measured.

    Attributes:
        name: "dcir" or "eager".
        nodes, threads: processes, and threads of each.
        alone_ms, predicted_ms, measured_ms: medians of the turns, of the slowest process.
        ratio: predicted over measured, the median of the turns.
        spread: the largest ratio minus the least.
        turns: how many there were.
    """

    name: str
    nodes: int
    threads: int
    alone_ms: float
    predicted_ms: float
    measured_ms: float
    ratio: float
    spread: float
    turns: int

    @property
    def holds(self) -> bool:
        """Whether the prediction is as near as it should be."""
        return abs(self.ratio - 1) <= WITHIN


@dataclass
class ScalingCheck:
    """What ``dcir scaling --check`` shows.

    Attributes:
        model: what the user wrote.
        link: between the processes, as measured.
        algorithm: of the predicted exchanges.
        cap: bytes of a bucket.
        rows: dcir's before eager's for each number of processes.
        others: part of the processors' time that other processes than those took.
        notes: how it was measured.
    """

    model: str
    link: Link
    algorithm: str = "ring"
    cap: int = CAP
    rows: list[CheckedStep] = field(default_factory=list)
    others: float = 0.0
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, nodes: int, threads: int, turns: Sequence[CheckedTurn]) -> None:
        """A row of what was measured.

        Args:
            name: of the row.
            nodes, threads: processes, and threads of each.
            turns: at least one.
        """
        predicted, measured, alone = [], [], []
        for turn in turns:
            # The exchange waits for whoever comes last.
            predicted.append(
                max(
                    predict(s, self.link, nodes, cap=self.cap, algorithm=self.algorithm, threads=threads).step_ms
                    for s in turn.alone
                )
            )
            measured.append(max(turn.measured_ms))
            alone.append(max(s.alone_ms for s in turn.alone))
        ratios = [p / m for p, m in zip(predicted, measured, strict=True)]
        middle = statistics.median
        self.rows.append(
            CheckedStep(
                name, nodes, threads, middle(alone), middle(predicted), middle(measured), middle(ratios),
                max(ratios) - min(ratios), len(turns),
            )
        )  # fmt: skip

    def all_notes(self) -> list[str]:
        """What to know before believing the figures."""
        busy = f"{self.others:.0%} of the processors' time went to others meanwhile"
        return [*([busy] if self.others > _BUSY else []), *self.notes]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        rows = [{**asdict(row), "holds": row.holds} for row in self.rows]
        return {**asdict(self), "link": self.link.to_json(), "rows": rows, "notes": self.all_notes()}

    def to_text(self) -> str:
        """A row for every number of processes, dcir and eager."""
        lines = [
            f"{self.model} under DistributedDataParallel on this machine; {self.link}, {self.algorithm}",
            f"{'nodes':>5} {'threads':>7} {'':<6} {'alone ms':>10} {'predicted ms':>12} {'measured ms':>12} {'ratio':>6} {'spread':>6}"
            f" {'turns':>5}",
        ]
        lines += [
            f"{r.nodes:>5} {r.threads:>7} {r.name:<6} {r.alone_ms:>10.3f} {r.predicted_ms:>12.3f} {r.measured_ms:>12.3f} {r.ratio:>6.2f} "
            f"{r.spread:>6.2f} {r.turns:>5}" + ("" if r.holds else f"  not within {WITHIN:.0%}")
            for r in self.rows
        ]
        for nodes in dict.fromkeys(r.nodes for r in self.rows):
            by_name = {r.name: r.measured_ms for r in self.rows if r.nodes == nodes}
            if len(by_name) == 2:
                lines.append(f"eager's step over dcir's on {nodes}: {by_name['eager'] / by_name['dcir']:.2f}")
        lines.append("alone: a step of each process at once, without exchanges; ratio: predicted over measured")
        return "\n".join([*lines, *(f"note: {note}" for note in self.all_notes())])

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        from dcir.report.notebook import scaling_check_html

        return scaling_check_html(self)
