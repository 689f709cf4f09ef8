"""The session record `dcir-session/1`: everything that `dcir view` shows of a model, as plain data.

It is written and read as data alone (``session_file.py``): nothing in it is run, loaded or opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from dcir.cost.bounds import bound_of
from dcir.cost.machine import MachineRates
from dcir.report.advice import Advice
from dcir.report.kept_graph import KeptGraph
from dcir.report.profile import Profile, ProfileStep
from dcir.report.roofline import Roofline
from dcir.report.session_graph import GraphRows

FORMAT = "dcir-session/1"


@dataclass
class About:
    """What is known of a session besides its graphs.

    Attributes:
        model: name, source ("onnx", "python" or "module"), mode ("infer" or "train"), batch, inputs.
        options: what it was compiled with.
        pipeline: the passes of the highest level, a row each: name, tier, summary, fields, final.
        profile, roofline, advice: as far as they were measured.
        notes: what was not compiled, or compiled again; a row each: kind, what, place, cure, count.
        variants: what else was asked for; the first is the session itself.
        when: time, as ISO 8601; now unless given.
    """

    model: Mapping[str, Any]
    options: Mapping[str, Any]
    pipeline: Sequence[Mapping[str, Any]] = ()
    profile: Profile | None = None
    roofline: Roofline | None = None
    advice: Advice | None = None
    notes: Sequence[Mapping[str, Any]] = ()
    variants: Sequence[Mapping[str, Any]] = ()
    when: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


def session_record(graphs: Sequence[KeptGraph], about: About, machine: MachineRates, torch: str) -> dict[str, Any]:
    """The record.

    Args:
        graphs: those that were compiled.
        about: all else.
        machine: what it was compiled on.
        torch: its version.
    """
    texts: dict[str, str] = {}
    rows = [GraphRows(n, kept, machine, texts) for n, kept in enumerate(graphs) if kept.network is not None]
    times = [{} for _ in rows] if about.profile is None else _times(rows, about.profile, machine)
    data = [row.to_json(found, _backward_of(row.kept, graphs)) for row, found in zip(rows, times, strict=True)]
    threads = max((kept.record.threads for kept in graphs), default=machine.threads)
    return {
        "format": FORMAT,
        "made": {
            "dcir": version("dcir"), "torch": torch, "processor": machine.processor, "isa": machine.isa, "threads": threads,
            "when": about.when,
        },
        "model": dict(about.model),
        "options": dict(about.options),
        "machine": {"measured": machine.measured, "ceilings": _ceilings(machine), "region_ms": machine.region_seconds * 1e3},
        "pipeline": [dict(row) for row in about.pipeline],
        "levels": [0, 1, 2, 3, 4],
        "graphs": data,
        "profile": None if about.profile is None else _whole(about.profile),
        "roofline": None if about.roofline is None else about.roofline.to_json(),
        "advice": None if about.advice is None else about.advice.to_json()["advice"],
        "notes": [*_graph_notes(graphs), *map(dict, about.notes)],
        "variants": list(about.variants),
        "texts": texts,
    }  # fmt: skip


def without_texts(session: Mapping[str, Any]) -> dict[str, Any]:
    """A record whose code is fetched piece by piece."""
    return {**session, "texts": {}}


def _backward_of(kept: KeptGraph, graphs: Sequence[KeptGraph]) -> KeptGraph | None:
    if kept.record.kind != "forward":
        return None
    same = (g for g in graphs if g.record.kind == "backward" and g.record.together == kept.record.together)
    return next(same, None)


def _ceilings(machine: MachineRates) -> list[dict[str, Any]]:
    memories = zip(machine.memory_names(), machine.reads, strict=True)
    rows = [{"name": n, "unit": "GB/s", "one": r.one * 1e-9, "all": r.all * 1e-9} for n, r in memories]
    return rows + [
        {
            "name": n, "unit": "GFLOP/s", "one": machine.flops(1, n) * 1e-9,
            "all": machine.flops(machine.threads, n) * 1e-9,
        }
        for n in machine.arithmetic
    ]  # fmt: skip


def _whole(profile: Profile) -> dict[str, Any]:
    return {
        "threads": profile.threads, "calls": profile.calls, "wall_ms": profile.wall_ms,
        "least_wall_ms": profile.least_wall_ms, "around_ms": profile.around_ms, "team_ms": profile.team_ms,
        "kernel_ms": profile.kernel_ms, "floor_ms": profile.floor_ms,
    }  # fmt: skip


def _times(rows: Sequence[GraphRows], profile: Profile, machine: MachineRates) -> list[dict[int, dict[str, Any]]]:
    """Of each graph what was measured of its versions: a graph is found by its kernels, in their order."""
    measured: dict[int, list[ProfileStep]] = {}
    for step in profile.steps:
        measured.setdefault(step.graph, []).append(step)
    found = []
    for row in rows:
        ops = {op.label: op for op in row.net.ops()}
        own = [kernel or ops[row.history.versions[v].label].spec.calls_out for v, kernel in row.steps]
        number = next((n for n, steps in measured.items() if [s.kernel for s in steps] == own), None)
        steps = () if number is None else measured.pop(number)
        found.append({v: _time(s, profile.threads, machine) for (v, _), s in zip(row.steps, steps, strict=False)})
    return found


def _time(s: ProfileStep, threads: int, machine: MachineRates) -> dict[str, Any]:
    bound = bound_of(machine, s.flops, s.bytes, s.ms * 1e-3, threads=threads, dtype=s.dtype, torch=s.torch)
    return {"ms": s.ms, "least_ms": s.least_ms, "floor_ms": s.floor_ms, "bound": bound.name}


def _graph_notes(graphs: Sequence[KeptGraph]) -> list[dict[str, Any]]:
    """What of the graphs runs through torch, and which were compiled for further sizes."""
    counts: dict[tuple[str, str], int] = {}
    for kept in graphs:
        for what, place in kept.record.fallbacks:
            counts[what, place] = counts.get((what, place), 0) + 1
    rows = [_note("fallback", what, place, count=n) for (what, place), n in counts.items()]
    rows += [_note("recompile", k.record.remark, "") for k in graphs[1:] if k.record.remark]
    return rows


def _note(kind: str, what: str, place: str, cure: str = "", count: int = 1) -> dict[str, Any]:
    return {"kind": kind, "what": what, "place": place, "cure": cure, "count": count}


def coverage_notes(report: Any) -> list[dict[str, Any]]:
    """Rows of what a report (``report.explain.Report``) says of graph breaks, of what runs uncompiled, and of sites that never came up."""
    breaks: dict[tuple[str, str], int] = {}
    for at in report.breaks:
        breaks[at] = breaks.get(at, 0) + 1
    rows = [_note("break", reason, place, count=n) for (reason, place), n in breaks.items()]
    rows += [_note("uncompiled", u.reason, u.place, u.cure) for u in report.uncompiled]
    rows += [
        _note("compared", f"{size} bytes of a parameter are compared in every call: {reason}", "", 'prepare="frozen"')
        for size, reason in report.compared
    ]
    return rows + [_note("not-come-up", site, "") for site in report.not_come_up]
