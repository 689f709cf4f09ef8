"""What tuning found: per kernel what was measured and what won, as text and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class TuningRow:
    """One kernel.

    Attributes:
        what: the operator with its sizes.
        calls: runs in a call of the network.
        models, seconds: time of one run as the cost model has it, and as it is kept.
        spread: by how much measurements of equal code differed, as a part of their time.
        tried: how many choices were measured; 0: the verdict was in the database.
        choice: what is kept.
        note: why nothing is kept, or "".
    """

    what: str
    calls: int
    models: float
    seconds: float
    spread: float
    tried: int
    choice: str
    note: str = ""

    @property
    def saved(self) -> float:
        """Seconds that the kept choice saves in a call of the network."""
        return (self.models - self.seconds) * self.calls


@dataclass
class Tuning:
    """The kernels of one or more graphs.

    Attributes:
        rows: of every kernel that was looked at.
        left: kernels for which there was no time.
        took: seconds spent.
        threads: size of the team.
    """

    rows: list[TuningRow] = field(default_factory=list)
    left: int = 0
    took: float = 0.0
    threads: int = 1

    @property
    def saved(self) -> float:
        """Predicted seconds saved in a call of all graphs."""
        return sum(row.saved for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        rows = [asdict(row) | {"saved": row.saved} for row in self.rows]
        return {
            "kernels": rows, "left": self.left, "took": self.took, "threads": self.threads, "saved": self.saved,
            "models": sum(r.models * r.calls for r in self.rows),
        }  # fmt: skip

    def to_text(self) -> str:
        """For people: the kernels that take the most time first."""
        if not self.rows:
            return "nothing to tune: no kernel has alternatives" if not self.left else "no time to measure anything"
        rows = sorted(self.rows, key=lambda r: -r.models * r.calls)
        lines = [f"{'ms a call':>9}  {'gain':>6}  {'spread':>6}  {'tried':>5}  kernel"]
        for r in rows:
            gain = f"{r.models / r.seconds - 1:+.1%}" if r.saved > 0 else "-"
            lines.append(
                f"{r.models * r.calls * 1e3:>9.3f}  {gain:>6}  {r.spread:>6.1%}  {r.tried or 'known':>5}  {r.calls} x {r.what}"
            )
            if r.saved > 0 or r.note:
                lines.append(f"{'':>34}{r.note or r.choice}")
        total = sum(r.models * r.calls for r in rows)
        changed = sum(r.saved > 0 for r in rows)
        lines.append(
            f"{changed} of {len(rows)} kernels changed, predicted {total * 1e3:.3f} -> {(total - self.saved) * 1e3:.3f} ms a call "
            f"with {self.threads} threads; {self.took:.1f} s"
        )
        if self.left:
            lines.append(f"{self.left} kernels are left; run again, or give a larger budget")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from dcir.report.notebook import tuning_html

        return tuning_html(self)
