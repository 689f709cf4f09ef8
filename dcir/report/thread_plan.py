"""A plan of threads as text and JSON: widths of graphs, predictions and measurements of settings, kernels that stop scaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dcir.cost.machine import MachineRates
from dcir.cost.threads.planner import ALL, CHOSEN, Choice, Planner
from dcir.cost.threads.thread_plan import GraphPlan, ThreadPlan
from dcir.cost.threads.topology import Cores
from dcir.cost.threads.width import Width
from dcir.report.plan_sweep import PlanSweep

_TODAY = "dcir runs each kernel on all threads, one after the other: the row {!r}. What is planned is a prediction, and not carried out"
_GUESSES = "the machine's rates are guesses: `dcir machine` measures them"
_MODELLED = "kernels were measured with {} here; their times on more are modelled"


@dataclass(frozen=True)
class PlannedKernel:
    """A kernel of a planned graph.

    Attributes:
        name, place: what it is, and where in the model.
        one_ms: on one thread.
        threads, ms: of the plan.
        stops_at: threads of which twice as many gain less than a quarter; None where it scales up to all.
    """

    name: str
    place: str
    one_ms: float
    threads: int
    ms: float
    stops_at: int | None


@dataclass(frozen=True)
class PlannedGraph:
    """A graph of the call.

    Attributes:
        kind: "inference", "forward", "backward".
        width: of its kernels, by their time.
        reused: of its kernels, if values lie where they do today: a value waits for those who use its memory before.
        operators: of the heavy operators of its ATen graph, which the guideline goes by.
        choice: predictions.
        kernels: in their order.
        planner: predicts what other settings would take; it is not part of the data.
    """

    kind: str
    width: Width
    reused: Width
    operators: Width
    choice: Choice
    kernels: tuple[PlannedKernel, ...]
    planner: Planner | None = None


@dataclass(frozen=True)
class MeasuredSetting:
    """What calls with a setting took, in milliseconds.

    Attributes:
        setting: the predicted one that it is, or another name.
        kernels_ms: least in kernels, of code that was made for all threads; None where that was not measured.
        call_ms, least_ms: median and least of whole calls; of several at once, the time of all over their number.
    """

    setting: str
    kernels_ms: float | None = None
    call_ms: float | None = None
    least_ms: float | None = None


@dataclass
class ThreadPlanReport:
    """What ``dcir plan`` shows.

    Attributes:
        model, mode: what was planned.
        cores: for which.
        rates: of this machine.
        teams: sizes of the teams that were measured.
        graphs: of a call.
        measured: settings that this machine can run.
        notes: what to know besides.
        sweep: every way to share the cores between calls, where they were run.
    """

    model: str
    mode: str
    cores: Cores
    rates: MachineRates
    teams: tuple[int, ...]
    graphs: list[PlannedGraph] = field(default_factory=list)
    measured: list[MeasuredSetting] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sweep: PlanSweep | None = None

    @property
    def plan(self) -> ThreadPlan:
        """The plan as data."""
        return ThreadPlan(self.cores, tuple(graph.choice.plan for graph in self.graphs))

    def settings(self) -> dict[str, list[GraphPlan]]:
        """For each setting, the plan first, what is predicted of every graph."""
        found = {CHOSEN: [graph.choice.plan for graph in self.graphs]}
        for name in self.graphs[0].choice.settings if self.graphs else ():
            found[name] = [graph.choice.settings[name] for graph in self.graphs]
        return found

    def all_notes(self) -> list[str]:
        """What to know before believing the figures."""
        found = [_TODAY.format(ALL)]
        if self.cores.total > max(self.teams):
            teams = " and ".join(map(str, self.teams))
            found.append(_MODELLED.format(f"{teams} thread{'s' * (self.teams != (1,))}"))
        if not self.rates.measured:
            found.append(_GUESSES)
        return found + self.notes

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data; ``plan`` is what ``ThreadPlan.from_json`` reads."""
        return {
            "model": self.model,
            "mode": self.mode,
            "cores": self.cores.to_json(),
            "teams": list(self.teams),
            "machine": self.rates.to_json(),
            "plan": self.plan.to_json(),
            "predicted_ms": {name: sum(p.seconds for p in plans) * 1e3 for name, plans in self.settings().items()},
            "graphs": [
                {
                    "kind": graph.kind,
                    "width": graph.width.to_json(),
                    "reused": graph.reused.to_json(),
                    "operators": graph.operators.to_json(),
                    "made_of": graph.choice.made_of,
                    "predicted_ms": {n: s.seconds * 1e3 for n, s in graph.choice.settings.items()},
                    "kernels": [asdict(kernel) for kernel in graph.kernels],
                }
                for graph in self.graphs
            ],
            "measured": [asdict(row) for row in self.measured],
            "sweep": None if self.sweep is None else self.sweep.to_json(),
            "notes": self.all_notes(),
        }

    def to_text(self, limit: int | None = 30) -> str:
        """For people: widths, settings, and at most ``limit`` kernels that stop scaling."""
        kind = "measured" if self.rates.measured else "assumed"
        parts = [f"{self.model}, {self.mode}; planned for {self.cores}; {self.rates.processor}, rates {kind}"]
        parts += [_graph_text(graph) for graph in self.graphs]
        parts += [self._settings_text(), self._stopping_text(limit)]
        parts += [] if self.sweep is None else [self.sweep.to_text()]
        parts.append("\n".join(f"note: {note}" for note in self.all_notes()))
        return "\n\n".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        from dcir.report.notebook import thread_plan_html

        return thread_plan_html(self)

    def _settings_text(self) -> str:
        rows = self.settings()
        best = sum(plan.seconds for plan in rows[CHOSEN]) or 1.0
        by_name = {row.setting: row for row in self.measured}
        several = len(self.graphs) > 1
        lines = [
            f"{'setting':<24} {'teams':<14}" + "".join(f" {f'{g.kind} ms':>13}" for g in self.graphs) * several
            + f" {'predicted ms':>13} {'over plan':>9} {'kernels ms':>11} {'call ms':>9} {'least':>9}"
        ]  # fmt: skip
        for name, plans in rows.items():
            seconds = sum(plan.seconds for plan in plans)
            cells = "".join(f" {plan.seconds * 1e3:>13.4f}" for plan in plans) * several
            lines.append(
                f"{name:<24} {_teams(plans):<14}{cells} {seconds * 1e3:>13.4f} {seconds / best:>8.2f}x{_measured(by_name.pop(name, None))}"
            )
        blank = " " * (15 + 14 * len(self.graphs) * several + 24)
        lines += [f"{row.setting:<24}{blank}{_measured(row)}" for row in by_name.values()]
        return "\n".join(lines)

    def _stopping_text(self, limit: int | None) -> str:
        total = sum(k.one_ms for graph in self.graphs for k in graph.kernels) or 1.0
        rows = [(g.kind, k) for g in self.graphs for k in g.kernels if k.stops_at is not None]
        if not rows:
            return f"all kernels scale up to {self.cores.total} threads"
        rows.sort(key=lambda row: -row[1].one_ms)
        share = sum(k.one_ms for _, k in rows) / total
        lines = [
            f"{len(rows)} of {sum(len(g.kernels) for g in self.graphs)} kernels, {share:.0%} of the time on one thread, stop scaling",
            f"{'share':>6} {'1 thread ms':>11} {'stops at':>8} {'planned':>7} {'ms':>9}  kernel  (graph, place in the model)",
        ]
        for kind, k in rows[:limit]:
            lines.append(
                f"{k.one_ms / total:>6.1%} {k.one_ms:>11.4f} {k.stops_at:>8} {k.threads:>7} {k.ms:>9.4f}  {k.name}  "
                f"({kind}{', ' + k.place if k.place else ''})"
            )
        if limit is not None and rows[limit:]:
            rest = rows[limit:]
            lines.append(f"{sum(k.one_ms for _, k in rest) / total:>6.1%}  {len(rest)} more")
        return "\n".join(lines)


def _graph_text(graph: PlannedGraph) -> str:
    plan, choice = graph.choice.plan, graph.choice
    sizes = ", ".join(f"{n} on {size}" for size, n in plan.sizes().items())
    ways = ", ".join(f"{n} {kind}" for kind, n in choice.made_of.items())
    return "\n".join(
        [
            f"{graph.kind}: {len(graph.kernels)} kernels",
            f"  heavy kernels    {_width_text(graph.width)}",
            f"  by level         {graph.width.profile()}",
            f"  in their memory  {_width_text(graph.reused)}",
            f"  heavy operators  {_width_text(graph.operators)}; the guideline's pools: {graph.operators.pools}",
            f"  plan             regions: {ways}; kernels by threads: {sizes}; at most {plan.most_beside} side by side",
        ]
    )


def _width_text(w: Width) -> str:
    return (
        f"{w.heavy}, depth {w.depth}, average width {w.average:.2f}, widest level {w.widest}, "
        f"work over critical path {w.parallelism:.2f}"
    )


def _teams(plans: Sequence[GraphPlan]) -> str:
    """Threads of the teams, the smallest and the largest, and how many run side by side."""
    sizes = sorted({slot.threads for plan in plans for slot in plan.slots}) or [1]
    most = max((plan.most_beside for plan in plans), default=1)
    return f"{most} x {sizes[0]}" + (f"..{sizes[-1]}" if len(sizes) > 1 else "")


def _measured(row: MeasuredSetting | None) -> str:
    cells = (None, None, None) if row is None else (row.kernels_ms, row.call_ms, row.least_ms)
    return "".join(
        f" {'-' if cell is None else f'{cell:.4f}':>{width}}" for cell, width in zip(cells, (11, 9, 9), strict=True)
    )
