"""A model on the roofline of a machine: ceilings, points, and trajectories over threads, batch and level, as text and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as File
from typing import Any

from dcir.cost.machine import MachineRates
from dcir.errors import OptionError
from dcir.report.roofline_paths import Path, paths_of
from dcir.report.roofline_points import Point, Run

PICTURES = (".svg", ".html")
_OVER = 1.05  # no clock and no ceiling is more exact
_CLOSE = 0.05
_OTHERS = 0.10


@dataclass(frozen=True)
class Ceiling:
    """One roof: what of (a memory, or the type of the arithmetic), 10^9 bytes or operations per second of one thread and of all."""

    name: str
    unit: str
    one: float
    all: float


@dataclass(frozen=True)
class Roofline:
    """What ``roofline`` returns.

    Attributes:
        model: its name.
        mode: "infer" or "train".
        rates: the machine; whether its ceilings were measured or are assumed.
        runs: what was measured, a run for every setting.
        others: part of the processors' time that other processes took meanwhile.
    """

    model: str
    mode: str
    rates: MachineRates
    runs: tuple[Run, ...]
    others: float = 0.0

    @cached_property
    def reference(self) -> Run:
        """The setting whose kernels are shown: the highest level, then most threads, then the largest batch."""
        return max(self.runs, key=lambda r: (r.setting.level, r.setting.threads, r.setting.batch or 0))

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Trajectories, as far as there is more than one value of a parameter."""
        return tuple(paths_of(self.runs, self.reference.setting))

    @property
    def ceilings(self) -> list[Ceiling]:
        """Those of memories, the nearest first, and of arithmetic."""
        r = self.rates
        rows = [
            Ceiling(name, "GB/s", rate.one * 1e-9, rate.all * 1e-9)
            for name, rate in zip(r.memory_names(), r.reads, strict=True)
        ]
        return rows + [
            Ceiling(name, "GFLOP/s", r.flops(1, name) * 1e-9, r.flops(r.threads, name) * 1e-9) for name in r.arithmetic
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "model": self.model,
            "mode": self.mode,
            "measured": self.rates.measured,
            "machine": self.rates.to_json(),
            "ceilings": [vars(c) for c in self.ceilings],
            "reference": vars(self.reference.setting),
            "others": self.others,
            "notes": self.notes,
            "runs": [run.to_json() for run in self.runs],
            "paths": [path.to_json() for path in self.paths],
        }

    def to_text(self, limit: int | None = 30) -> str:
        """For people: ceilings, whole calls, the kernels of the reference (at most ``limit`` of either kind), and paths."""
        parts = [self._ceilings_text(), self._wholes_text(), *self._kernels_text(limit)]
        at = self.reference.setting
        through, others = [p for p in self.paths if p.at == at], [p for p in self.paths if p.at != at]
        if through:
            parts.append("\n".join([f"paths through {at}", *map(_path_text, through)]))
        if others:
            rows = [f"over {p.parameter:<7} {p.title}: {p.shows}" for p in others]
            parts.append("\n".join(["other paths of the whole call", *rows]))
        if self.notes:
            parts.append("\n".join(self.notes))
        return "\n\n".join(parts)

    @property
    def notes(self) -> list[str]:
        """What to know before believing the figures."""
        found = []
        if any(run.setting.threads > self.rates.threads for run in self.runs):
            found.append(
                f"more threads than the {self.rates.threads} that this process may use: they take turns, and a kernel's time is that "
                "of the first"
            )
        if self.others > _OTHERS:
            found.append(f"{self.others:.0%} of the processors' time went to others meanwhile: wait until it is quiet")
        if any(p.bound.share > _OVER for run in self.runs for p in run.kernels):
            why = (
                "`dcir machine --remeasure` measures them again" if self.rates.measured else "they are assumed, and low"
            )
            found.append(f"some kernels lie above the ceilings: part of their bytes is in a nearer cache, or {why}")
        if any(_counts_less(p) for run in self.runs for p in run.kernels):
            found.append("fewer bytes are counted where operands share a container, or where data choose the elements")
        return found

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        from dcir.report.notebook import roofline_html

        return roofline_html(self)

    def to_svg(self) -> str:
        """A picture that needs nothing but itself."""
        from dcir.report.roofline_svg import svg

        return svg(self)

    def save(self, path: str | File) -> None:
        """Write a picture (.svg), or a page with the picture and the text (.html).

        Raises:
            OptionError: another kind of file.
        """
        from dcir.report.roofline_page import page

        check_picture(path)
        text = self.to_svg() if File(path).suffix.lower() == ".svg" else page(self)
        File(path).write_text(text, encoding="utf-8")

    def _ceilings_text(self) -> str:
        r = self.rates
        kind = f"measured, spread {r.spread:.0%}" if r.measured else "assumed: `dcir machine` measures them"
        rows = [
            f"{self.model}, {self.mode}; {r.processor}, {r.isa}",
            f"{f'ceilings ({kind})':<52} {'one thread':>12} {f'all {r.threads}':>12}",
        ]
        return "\n".join([*rows, *(f"{f'{c.name} {c.unit}':<52} {c.one:>12.1f} {c.all:>12.1f}" for c in self.ceilings)])

    def _wholes_text(self) -> str:
        lines = [
            f"{'level':>5} {'threads':>7} {'batch':>5} {'ms':>9} {'GFLOP':>8} {'MB':>8} {'FLOP/B':>7} {'GFLOP/s':>8} {'GB/s':>7}"
            "  time by what bounds it"
        ]
        for run in self.runs:
            s, w = run.setting, run.whole
            lines.append(
                f"{f'-O{s.level}':>5} {s.threads:>7} {'-' if s.batch is None else s.batch:>5} {w.ms:>9.3f} {w.flops * 1e-9:>8.4f} "
                f"{w.bytes * 1e-6:>8.3f} {_number(w.intensity):>7} {w.gflops:>8.1f} {w.gbytes:>7.1f}  {_parts_text(run)}"
            )
        return "\n".join(lines)

    def _kernels_text(self, limit: int | None) -> list[str]:
        run = self.reference
        head = (
            f"{'share':>6} {'calls':>5} {'ms':>9} {'FLOP/B':>7} {'GFLOP/s':>8} {'GB/s':>7} {'MB':>9} {'counted':>9}  "
            f"{'bound by':<14} kernel  (place in the model)"
        )
        tables = []
        for name, points in (("kernels", run.with_work), ("kernels without operations", run.without_work)):
            if points:
                lines = [f"{name} at {run.setting}", head, *(_point_text(p) for p in points[:limit])]
                if limit is not None and points[limit:]:
                    rest = points[limit:]
                    lines.append(
                        f"{sum(p.share for p in rest):>6.1%} {'':>5} {sum(p.ms for p in rest):>9.4f}  {len(rest)} more"
                    )
                tables.append("\n".join(lines))
        return tables


def check_picture(path: str | File) -> None:
    """Refuse a name that says no kind of picture.

    Raises:
        OptionError: it ends in neither .svg nor .html.
    """
    if File(path).suffix.lower() not in PICTURES:
        raise OptionError(
            "a roofline is written as .svg or .html", where=str(path), hint=f"-o {File(path).with_suffix('.svg').name}"
        )


def _parts_text(run: Run) -> str:
    shares = {name: ms / (run.whole.ms or 1.0) for name, ms in run.parts.items()}
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.01)


def _counts_less(p: Point) -> bool:
    return p.counted is not None and p.counted < (1 - _CLOSE) * p.bytes


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _point_text(p: Point) -> str:
    counted = "-" if p.counted is None else f"{p.counted * 1e-6:.4f}"
    return (
        f"{p.share:>6.1%} {p.calls:>5} {p.ms:>9.4f} {_number(p.intensity):>7} {p.gflops:>8.1f} {p.gbytes:>7.1f} "
        f"{p.bytes * 1e-6:>9.4f} {counted:>9}  {f'{p.bound.name} {p.bound.share:.0%}':<14} {p.what}  ({p.place})"
    )


def _path_text(path: Path) -> str:
    places = " -> ".join(f"{p.value}: {p.intensity:.3g} FLOP/B, {p.gflops:.1f} GFLOP/s" for p in path.places)
    return f"over {path.parameter:<7} {path.title}\n    {places}\n    {path.shows}"
