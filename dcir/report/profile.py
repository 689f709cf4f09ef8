"""Where the time of a call goes: per kernel its calls, time, rates and place in the user's model, as text and JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dcir.errors import OptionError
from dcir.ir.origins import SourceLine


@dataclass(frozen=True)
class ProfileStep:
    """One step of the driver.

    Attributes:
        graph: number of its graph.
        kernel: name of the kernel, or of the torch operator.
        what: the operator with its sizes.
        origin: place in the user's model.
        flops, bytes: exact work and distinct bytes touched.
        ms, least_ms: median and minimum over the measured calls; for a roofline, the mean over the faster half of them.
        floor_ms: a time that no kernel for this work goes below; None on a machine that was not measured.
        dtype: of the arithmetic, as peaks know it: "f64" where an operand is a float64, that of a library's product of half types, else
            "f32".
        counted: distinct bytes that were counted as the reference ran, where that was asked for and takes no long time.
        places: every line of the model whose work it does.
        torch: whether it is a call into torch.
    """

    graph: int
    kernel: str
    what: str
    origin: str
    flops: int
    bytes: int
    ms: float = 0.0
    least_ms: float = 0.0
    floor_ms: float | None = None
    dtype: str = "f32"
    counted: int | None = None
    places: tuple[SourceLine, ...] = ()
    torch: bool = False


@dataclass(frozen=True)
class ProfileRow:
    """Steps that run the same kernel.

    Attributes:
        calls, ms, least_ms: sums over its calls.
        share: of the time of all kernels.
        gflops, gbytes: rates at the median.
        floor_ratio: the floor over the least time: 1 is as fast as the machine can. None if it was not measured.
        origins: places in the model, each once.
        places: every line of the model whose work it does, each once.
    """

    kernel: str
    what: str
    calls: int
    ms: float
    least_ms: float
    share: float
    gflops: float
    gbytes: float
    floor_ratio: float | None
    origins: tuple[str, ...]
    places: tuple[SourceLine, ...] = ()


@dataclass
class Profile:
    """What ``profile`` returns.

    Attributes:
        threads: size of the team.
        calls: how many calls were measured.
        wall_ms, least_wall_ms: median and minimum of a whole call, with Python and PyTorch around it.
        around_ms: what of a whole call lies outside the compiled code, median.
        team_ms: opening and closing teams of threads, median per call.
        graphs: kinds of the graphs that ran.
        steps: all steps in order.
        device: that the times of the steps are of, by its own clock; "" where they are of the threads.
    """

    threads: int
    calls: int
    wall_ms: float
    least_wall_ms: float
    around_ms: float
    team_ms: float
    graphs: list[str] = field(default_factory=list)
    steps: list[ProfileStep] = field(default_factory=list)
    device: str = ""

    @property
    def kernel_ms(self) -> float:
        """All steps together."""
        return sum(s.ms for s in self.steps)

    @property
    def floor_ms(self) -> float | None:
        """The floors of all steps together; None on a machine that was not measured."""
        floors = [s.floor_ms for s in self.steps if s.floor_ms is not None]
        return sum(floors) if len(floors) == len(self.steps) else None

    def rows(self) -> list[ProfileRow]:
        """Steps gathered by kernel, the longest first."""
        groups: dict[tuple[str, str], list[ProfileStep]] = {}
        for step in self.steps:
            groups.setdefault((step.kernel, step.what), []).append(step)
        total = self.kernel_ms or 1.0
        rows = []
        for (kernel, what), steps in groups.items():
            ms, least = sum(s.ms for s in steps), sum(s.least_ms for s in steps)
            rate = 1e-6 / ms if ms else 0.0
            flops, moved = sum(s.flops for s in steps), sum(s.bytes for s in steps)
            origins = tuple(dict.fromkeys(s.origin for s in steps if s.origin))
            places = tuple(dict.fromkeys(line for s in steps for line in s.places))
            floors = [s.floor_ms for s in steps if s.floor_ms is not None]
            ratio = sum(floors) / least if len(floors) == len(steps) and least else None
            rows.append(
                ProfileRow(
                    kernel, what, len(steps), ms, least, ms / total, flops * rate, moved * rate, ratio, origins, places
                )
            )
        return sorted(rows, key=lambda r: -r.ms)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data: the totals, the rows, and the steps in order."""
        return {
            **asdict(self),
            "kernel_ms": self.kernel_ms,
            "floor_ms": self.floor_ms,
            "rows": [asdict(r) for r in self.rows()],
        }

    def to_chrome_trace(self) -> dict[str, Any]:
        """A trace for Perfetto and chrome://tracing; see ``chrome_trace.py`` for what its times are."""
        from dcir.report.chrome_trace import chrome_trace

        return chrome_trace(self)

    def save(self, path: str | Path) -> None:
        """Write ``to_chrome_trace()`` as a .json file.

        Raises:
            OptionError: another kind of file.
        """
        check_trace(path)
        Path(path).write_text(json.dumps(self.to_chrome_trace()) + "\n", encoding="utf-8")

    def to_text(self, limit: int | None = 30) -> str:
        """The rows for people, at most ``limit`` of them."""
        rows = self.rows()
        lines = [
            f"{', '.join(self.graphs)}; {self.device or f'{self.threads} threads'}, {self.calls} calls measured",
            f"call {self.wall_ms:.3f} ms (least {self.least_wall_ms:.3f}): medians of kernels {self.kernel_ms:.3f}, "
            f"{f'teams {self.team_ms:.3f}, ' * (not self.device)}Python and PyTorch around them {self.around_ms:.3f}",
            f"{'calls':>5} {'ms':>9} {'least':>9} {'share':>6} {'GFLOP/s':>8} {'GB/s':>7} {'floor':>6}  kernel  (place in the model)",
        ]
        for r in rows[:limit]:
            place = r.origins[0] if r.origins else "-"
            more = f" and {len(r.origins) - 1} more" if len(r.origins) > 1 else ""
            floor = "-" if r.floor_ratio is None else f"{r.floor_ratio:.0%}"
            lines.append(
                f"{r.calls:>5} {r.ms:>9.4f} {r.least_ms:>9.4f} {r.share:>6.1%} {r.gflops:>8.1f} {r.gbytes:>7.1f} {floor:>6}  "
                f"{r.what}  ({place}{more})"
            )
        if limit is not None and rows[limit:]:
            rest = rows[limit:]
            lines.append(
                f"{sum(r.calls for r in rest):>5} {sum(r.ms for r in rest):>9.4f} {sum(r.least_ms for r in rest):>9.4f} "
                f"{sum(r.share for r in rest):>6.1%} {'':>8} {'':>7} {'':>6}  {len(rest)} more kernels"
            )
        if self.floor_ms is None:
            verb = "dcir machine --target cuda" if self.device else "dcir machine"
            lines.append(f"floor: unknown before `{verb}` has measured this machine")
        else:
            lines.append(f"floor of all kernels {self.floor_ms:.3f} ms; a row's floor is over its least time")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        from dcir.report.notebook import profile_html

        return profile_html(self)


def check_trace(path: str | Path) -> None:
    """Refuse a name that says no trace.

    Raises:
        OptionError: it does not end in .json.
    """
    if Path(path).suffix.lower() != ".json":
        raise OptionError(
            "a profile is written as a trace in .json",
            where=str(path),
            hint=f"-o {Path(path).with_suffix('.json').name}",
        )


def middle(values: Sequence[float]) -> float:
    """The median; 0 of nothing."""
    return statistics.median(values) if values else 0.0
