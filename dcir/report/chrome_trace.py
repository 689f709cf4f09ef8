"""A profile as a trace that Perfetto and chrome://tracing open: kernels, teams, calls into torch and Python, a track each.

A profile holds a time for every step, over many calls. The trace lays them end to end in the order in which steps run, and what has no
one place in a call, opening teams and what is around the compiled code, before them. For the steps of one call at their own times, with
what else the process does, there is torch's profiler (``record_function=True``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcir.report.profile import Profile, ProfileStep

AROUND, GRAPHS, TEAMS, KERNELS, TORCH = range(1, 6)
TRACKS = {
    AROUND: "Python and PyTorch around", GRAPHS: "graphs", TEAMS: "teams open and close", KERNELS: "kernels",
    TORCH: "calls into torch",
}  # fmt: skip
_PROCESS = 1
_MICROSECONDS = 1e3


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """The trace as plain data, in the format of the Trace Event Profiling Tool; times are microseconds."""
    title = f"dcir: one call, {', '.join(profile.graphs)}, {profile.threads} threads"
    events = [_named("process_name", 0, title)]
    for track, name in TRACKS.items():
        events += [_named("thread_name", track, name), _of_track("thread_sort_index", track, sort_index=track)]
    at = 0.0
    for track, ms in ((AROUND, profile.around_ms), (TEAMS, profile.team_ms)):
        if ms > 0:
            events.append(_event(TRACKS[track], track, at, ms, {}))
            at += ms
    numbers = list(dict.fromkeys(s.graph for s in profile.steps))
    # A graph without steps has no number here.
    kinds = profile.graphs if len(profile.graphs) == len(numbers) else [f"graph {n}" for n in numbers]
    for number, kind in zip(numbers, kinds, strict=True):
        begin = at
        for step in profile.steps:
            if step.graph == number:
                events.append(_event(_title(step), TORCH if step.torch else KERNELS, at, step.ms, _facts(step)))
                at += step.ms
        events.append(_event(kind, GRAPHS, begin, at - begin, {"graph": number}))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "made by": "dcir", "times": f"of {profile.calls} calls, laid end to end in the order of the steps",
            "call ms": profile.wall_ms, "threads": profile.threads,
        },
    }  # fmt: skip


def _title(step: ProfileStep) -> str:
    return f"{step.what} [{step.origin}]" if step.origin else step.what


def _facts(step: ProfileStep) -> dict[str, Any]:
    rate = 1e-6 / step.ms if step.ms else 0.0
    return {
        "kernel": step.kernel, "place": step.origin, "operations": step.flops, "bytes": step.bytes,
        "GFLOP/s": step.flops * rate, "GB/s": step.bytes * rate, "least ms": step.least_ms, "floor ms": step.floor_ms,
    }  # fmt: skip


def _event(name: str, track: int, at: float, ms: float, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name, "cat": "dcir", "ph": "X", "pid": _PROCESS, "tid": track, "ts": at * _MICROSECONDS,
        "dur": ms * _MICROSECONDS, "args": facts,
    }  # fmt: skip


def _named(kind: str, track: int, name: str) -> dict[str, Any]:
    return _of_track(kind, track, name=name)


def _of_track(kind: str, track: int, **facts: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": track, "args": facts}
