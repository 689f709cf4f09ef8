"""The report of one optimised module: operators, calls into torch, refusals, bytes and time per tier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dcir.cost.machine import MachineRates
from dcir.ir.origins import summary
from dcir.ir.sites import canonical
from dcir.report.remarks import Remarks

TIERS = ("tidy", "operator-internal", "fusion", "layout", "global data movement")
ONE_FORM = "the one form of its kernel"
_MOST_WAYS = 4


class Report:
    """Records of compiled graphs as text and JSON.

    Args:
        graphs: records with the fields of ``driver.record.GraphRecord``.
        breaks: (reason, place) of TorchDynamo's graph breaks.
        machine: for the floor under a call, if it was measured.
        compared: (bytes, reason) of parameters that are compared with what they were in every call.
        uncompiled: what ran in PyTorch (records of ``driver.uncompiled.Uncompiled``).
        calls: how many there were.
        streams: how calls share the processors, where several run at once (``cost.stream_number.StreamNumber``).
        skip: the places that are switched off.
        remarks: what passes said of each place, to be shown as well.
    """

    def __init__(
        self,
        graphs: Sequence[Any],
        breaks: Sequence[tuple[str, str]] = (),
        machine: MachineRates | None = None,
        compared: Sequence[tuple[int, str]] = (),
        uncompiled: Sequence[Any] = (),
        calls: int = 0,
        streams: Any = None,
        skip: Sequence[str] = (),
        remarks: Remarks | None = None,
    ) -> None:
        self.graphs, self.breaks, self.machine, self.compared = list(graphs), list(breaks), machine, list(compared)
        self.uncompiled, self._calls, self.streams = list(uncompiled), calls, streams
        self._skip, self.remarks = list(skip), remarks

    @property
    def fallbacks(self) -> list[tuple[str, str]]:
        """(operator, place in the user's model) of every operator that runs through torch."""
        return [f for g in self.graphs for f in g.fallbacks]

    @property
    def not_come_up(self) -> list[str]:
        """Places that are switched off, and at which no pass wanted to rewrite anything."""
        off = {site for g in self.graphs for p in g.passes for site in p.skipped}
        return [site for site in self._skip if self.graphs and canonical(site) not in off]

    def floor_seconds(self, graph: Any) -> float | None:
        """A time that no call of this graph goes below: the sum of its kernels' floors. None on a machine not measured."""
        if self.machine is None or not self.machine.measured:
            return None
        return sum(self.machine.floor_seconds(flops, moved, threads=graph.threads) for flops, moved in graph.work)

    def peak_bytes(self, graph: Any) -> int:
        """Planned bytes of a graph's calls: scratch memory, and for a forward and its backward what lies between them too.

        Both use the same scratch memory in turn. Parameters, inputs, results and gradients are their owners'.
        """
        both = [g for g in self.graphs if g is graph or (g.together is not None and g.together == graph.together)]
        return int(sum(g.saved_bytes for g in both) + max(g.arena_bytes + g.library_bytes for g in both))

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "graphs": [
                g.to_json()
                | {"flops": sum(f for f, _ in g.work), "floor_seconds": self.floor_seconds(g)}
                | {"peak_bytes": self.peak_bytes(g)}
                for g in self.graphs
            ],
            "graph_breaks": [list(b) for b in self.breaks],
            "fallbacks": [list(f) for f in self.fallbacks],
            "uncompiled": [asdict(u) for u in self.uncompiled],
            "compared_in_every_call": [{"bytes": size, "reason": reason} for size, reason in self.compared],
            "streams": None if self.streams is None else asdict(self.streams),
            "not_come_up": self.not_come_up,
            **({} if self.remarks is None else {"remarks": self.remarks.to_json()}),
        }

    def to_text(self) -> str:
        """The report for people."""
        if not self.graphs and not self.uncompiled:
            return (
                "nothing to compile: a call computes nothing"
                if self._calls
                else "nothing compiled yet: call the module once, then ask again"
            )
        lines = [] if self.streams is None else [str(self.streams)]
        lines += [] if self.graphs else ["nothing is compiled"]
        for number, g in enumerate(self.graphs):
            lines += self._graph(number, g)
        lines += [str(u) for u in self.uncompiled]
        lines += self._combinations()
        lines += self._list("graph breaks", Counter(self.breaks))
        lines += self._list("operators run through torch", Counter(self.fallbacks))
        lines += self._comparisons()
        lines += [f"switched off, but has not come up: {site}" for site in self.not_come_up]
        lines += [] if self.remarks is None else [self.remarks.to_text()]
        return "\n".join(lines)

    def _comparisons(self) -> list[str]:
        """Parameters that cost the time of reading them, since nobody tells when they change."""
        lines = []
        for reason in dict.fromkeys(reason for _, reason in self.compared):
            sizes = [size for size, other in self.compared if other == reason]
            lines.append(
                f"{len(sizes)} parameters ({_size(sum(sizes))}) are compared in every call, their memory is {reason}"
            )
        return lines + ['  prepare="frozen" does without, and promises that parameters do not change'] * bool(lines)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        from dcir.report.notebook import report_html

        return report_html(self)

    def _graph(self, number: int, g: Any) -> list[str]:
        time = ", ".join(f"{k} {v:.2f} s" for k, v in g.seconds.items()) or "as an earlier compilation left it"
        sizes = _sizes(g.sizes) + _bounds(g.bounds)
        done = f"{g.operators} operators -> {g.calls} calls of {g.kernels} kernels ({g.state})"
        traffic = f"traffic {_size(g.bytes_before)} -> {_size(g.bytes_moved)}, scratch {_size(g.arena_bytes)}"
        traffic += f" and {_size(g.library_bytes)} of libraries" if g.library_bytes else ""
        lines = [
            f"graph {number} ({g.kind}{sizes}): {done}",
            f"  {'at the upper ends: ' * bool(g.bounds)}{traffic}, prepared {_size(g.prepared_bytes)}; {time}",
        ]
        floor = self.floor_seconds(g)
        told = "unknown before `dcir machine`" if floor is None else f"{floor * 1e3:.3g} ms with {g.threads} threads"
        lines.append(f"  work {sum(f for f, _ in g.work) * 1e-9:.4g} GFLOP, floor {told}")
        if g.kind == "forward":
            lines.append(
                f"  kept for the backward {_size(g.saved_bytes)}, planned peak of both {_size(self.peak_bytes(g))}"
            )
        if g.unrecorded:
            lines.append(f"  no graph of CUDA's: {g.unrecorded}")
        if g.parts > 1:
            lines.append(f"  runs in {g.parts} parts: gradients are handed over as they are complete")
        if g.partition is not None:
            lines.append(_partition(g.partition))
        if g.tuned:
            lines.append(f"  {len(g.tuned)} kernels run a measured choice:")
            lines += [f"    {calls:>4} x {what}: {choice}" for what, choice, calls in g.tuned]
        if g.measured:
            lines.append(f"  {len(g.measured)} kernels were measured in several ways (ms, -> runs):")
            lines += [f"    {calls:>4} x {what}: {_ways(choice, ways)}" for what, choice, calls, ways in g.measured]
        if g.schedules:
            known = [summary(g.origins.of(numbers)) for *_, numbers in g.kernel_origins]
            places = [f"  of {place}" if place else "" for place in known] + [""] * len(g.schedules)
            lines.append("  kernels run as (once: when parameters change):")
            lines += [
                f"    {f'{calls} x' if calls else 'once':>6} {what}: {schedule or ONE_FORM}{place}"
                for (what, schedule, calls), place in zip(g.schedules, places, strict=False)
            ]
        if g.passes:
            lines += _passes(g.passes)
        return lines

    def _combinations(self) -> list[str]:
        """Which sizes were compiled for, if there are symbolic ones."""
        found = Counter(
            _sizes(g.sizes) + f" ({g.remark})" * bool(g.remark) for g in self.graphs if g.sizes and g.kind != "backward"
        )
        if not found:
            return []
        return [f"symbolic sizes, {len(found)} combinations compiled:"] + [f"  {text[2:]}" for text in found]

    def _list(self, title: str, items: Counter[tuple[str, str]]) -> list[str]:
        if not items:
            return [f"no {title}"]
        return [f"{title}:"] + [f"  {n:>4} x {what}  {where}" for (what, where), n in items.most_common()]


def _passes(passes: Sequence[Any]) -> list[str]:
    """A row for every pass that changed something; the names of the others."""
    lines, idle = [], [p for p in passes if not p.changed]
    width = max(len(p.name) for p in passes)
    if len(idle) < len(passes):
        lines.append(f"  tier  {'pass':<{width}}  {'rewrites':>8}  {'bytes saved':>11}  {'scratch':>9}  {'ms':>6}")
    for p in passes:
        if not p.changed:
            continue
        saved = _size(p.bytes_before - p.bytes_after)
        lines.append(
            f"  {p.tier:>4}  {p.name:<{width}}  {p.changed:>8}  {saved:>11}  {_size(p.peak_after):>9}  {p.seconds * 1e3:>6.1f}"
        )
        for reason, n in sorted(p.refused.items(), key=lambda kv: -kv[1])[:4]:
            lines.append(f"        {'':<{width}}  {n:>8}  not done: {reason}")
    # What such a pass would have done and may not is what a reader looks for.
    names = (f"{p.name} ({sum(p.refused.values())} not done)" if p.refused else p.name for p in idle)
    return lines + [f"  changed nothing: {', '.join(names)}"] * bool(idle)


def _bounds(bounds: Sequence[tuple[str, int, int]]) -> str:
    return (
        ", for all sizes: " + ", ".join(f"{name} {low}" + f" to {high}" * (low != high) for name, low, high in bounds)
        if bounds
        else ""
    )


def _sizes(sizes: Sequence[tuple[str, int]]) -> str:
    return "".join(f", {name}={value}" for name, value in sizes)


def _ways(chosen: str, ways: Sequence[tuple[str, float]]) -> str:
    """What the ways of making a kernel took, the fastest ones and the one that runs."""
    shown = [way for n, way in enumerate(ways) if n < _MOST_WAYS or way[0] == chosen]
    more = f" and {len(ways) - len(shown)} more" if len(ways) > len(shown) else ""
    return ", ".join(f"{'-> ' if name == chosen else ''}{name} {taken:.3g}" for name, taken in shown) + more


def _partition(p: Any) -> str:
    """What was decided under a limit of memory."""
    chosen = ", ".join(f"{kind} {number} ({_size(size)})" for kind, (number, size) in p.chosen.items())
    proven = "" if p.proven else " (best found)"
    return f"  without a limit {_size(p.unlimited.peak)}; {chosen or 'as without a limit'}{proven}; predicted {p.seconds * 1e3:+.3g} ms"


def _size(n: float) -> str:
    sign = "-" if n < 0 else ""
    n = abs(n)
    for unit in ("B", "KB", "MB"):
        if n < 1000:
            return f"{sign}{n:.0f} {unit}" if unit == "B" else f"{sign}{n:.1f} {unit}"
        n /= 1000
    return f"{sign}{n:.2f} GB"
