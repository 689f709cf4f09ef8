"""What notebooks show of reports, profiles, tunings, rooflines, advice, plans and predictions (``_repr_html_``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcir.report.markup import folded, line, lines, picture, shown, table

if TYPE_CHECKING:
    from dcir.report.advice import Advice
    from dcir.report.explain import Report
    from dcir.report.profile import Profile
    from dcir.report.roofline import Roofline
    from dcir.report.scaling import Scaling
    from dcir.report.scaling_check import ScalingCheck
    from dcir.report.thread_plan import ThreadPlanReport
    from dcir.report.tuning import Tuning

_ROWS = 30
"""Of a table of kernels; all of them are in the text."""


def report_html(report: Report, title: str = "What was done") -> str:
    """A row for every graph, what is not compiled, and the whole text behind it."""
    if not report.graphs and not report.uncompiled:
        return shown(title, line(report.to_text()))
    rows = []
    for g in report.graphs:
        floor = report.floor_seconds(g)
        rows.append(
            (
                g.kind, g.operators, g.kernels, g.calls, g.state, _megabytes(g.bytes_before), _megabytes(g.bytes_moved),
                _megabytes(g.arena_bytes), None if floor is None else f"{floor * 1e3:.3g}", f"{sum(g.seconds.values()):.2f}",
            )
        )  # fmt: skip
    head = (
        "graph",
        "operators",
        "kernels",
        "calls",
        "code",
        "MB before",
        "MB moved",
        "scratch MB",
        "floor ms",
        "compiled in s",
    )
    found = [f"through torch: {what} {place}" for what, place in dict.fromkeys(report.fallbacks)]
    found += [f"graph break: {reason} {place}" for reason, place in dict.fromkeys(report.breaks)]
    found += [str(u) for u in report.uncompiled]
    return shown(title, table(head, rows, (0, 4)), lines(found), folded("all of it", report.to_text()))


def profile_html(profile: Profile) -> str:
    """The longest kernels of a call."""
    rows = [
        (
            r.calls, f"{r.ms:.4f}", f"{r.share:.1%}", f"{r.gflops:.1f}", f"{r.gbytes:.1f}",
            None if r.floor_ratio is None else f"{r.floor_ratio:.0%}", r.what, "; ".join(r.origins[:3]) + " …" * (len(r.origins) > 3),
        )
        for r in profile.rows()[:_ROWS]
    ]  # fmt: skip
    head = ("calls", "ms", "share", "GFLOP/s", "GB/s", "of the floor", "kernel", "place in the model")
    return shown(
        f"Profile of {', '.join(profile.graphs)}",
        line(
            f"a call takes {profile.wall_ms:.3f} ms with {profile.threads} threads (median of {profile.calls}): kernels "
            f"{profile.kernel_ms:.3f}, teams {profile.team_ms:.3f}, Python and PyTorch around them {profile.around_ms:.3f}"
        ),
        table(head, rows, (6, 7)),
        folded("all kernels", profile.to_text(None)),
    )


def tuning_html(tuning: Tuning) -> str:
    """The kernels that were measured, those with the most time first."""
    rows = [
        (
            f"{r.models * r.calls * 1e3:.3f}", f"{r.models / r.seconds - 1:+.1%}" if r.saved > 0 else None, f"{r.spread:.1%}",
            r.tried or "known", f"{r.calls} x {r.what}", r.note or (r.choice if r.saved > 0 else ""),
        )
        for r in sorted(tuning.rows, key=lambda r: -r.models * r.calls)[:_ROWS]
    ]  # fmt: skip
    head = ("ms a call", "gain", "spread", "tried", "kernel", "choice")
    return shown("Tuning", table(head, rows, (4, 5)) if rows else "", line(tuning.to_text().splitlines()[-1]))


def roofline_html(roofline: Roofline) -> str:
    """The picture, and the kernels of the reference."""
    title = f"Roofline of {roofline.model}, {roofline.mode}"
    rows = [
        (
            f"{p.share:.1%}", p.calls, f"{p.ms:.4f}", f"{p.gflops:.1f}", f"{p.gbytes:.1f}",
            f"{p.bound.name} {p.bound.share:.0%}", p.what, p.place,
        )
        for p in roofline.reference.kernels[:_ROWS]
    ]  # fmt: skip
    head = ("share", "calls", "ms", "GFLOP/s", "GB/s", "bound by", "kernel", "place in the model")
    return shown(
        title,
        picture(roofline.to_svg(), title),
        table(head, rows, (5, 6, 7)),
        lines(roofline.notes),
        folded("all figures", roofline.to_text(None)),
    )


def advice_html(advice: Advice) -> str:
    """The pieces, what they rest on, and where they lead to."""
    rows = [
        (
            f"{p.gain:.2f} x", None if p.measured is None else f"{p.measured.gain:.2f} x", f"{p.slower:.2f} x",
            p.title, f"{p.basis}: {p.evidence}", p.python or p.command,
        )
        for p in (*advice.pieces, *[advice.together] * (advice.together is not None))
        if p is not None
    ]  # fmt: skip
    head = ("predicted", "measured", "a call takes", "what", "rests on", "how")
    return shown(
        f"Advice for {advice.roofline.model}, {advice.roofline.mode}",
        table(head, rows, (3, 4, 5)) if rows else "",
        lines(advice.notes),
        line(advice.advice_text().splitlines()[-1]),
        picture(advice.roofline.to_svg(), f"Roofline of {advice.roofline.model}"),
    )


def thread_plan_html(report: ThreadPlanReport) -> str:
    """What is predicted of every setting, beside what was measured."""
    by_name = {row.setting: row for row in report.measured}
    rows = []
    for name, plans in report.settings().items():
        found = by_name.pop(name, None)
        rows.append((name, _ms(sum(p.seconds for p in plans) * 1e3), _ms(None if found is None else found.call_ms)))
    rows += [(name, None, _ms(row.call_ms)) for name, row in by_name.items()]
    return shown(
        f"Threads of {report.model}, {report.mode}, for {report.cores}",
        table(("setting", "predicted ms", "measured ms a call"), rows, (0,)),
        lines(report.all_notes()),
        folded("all of it", report.to_text(None)),
    )


def scaling_html(scaling: Scaling) -> str:
    """A row for every number of processes."""
    head = ["nodes"]
    for step in scaling.steps:
        head += [f"{step.name} step ms", "times", "efficiency", "exposed ms"]
    rows = []
    for found in scaling.predictions():
        cells: list[object] = [found[0].nodes]
        for p in found:
            cells += [f"{p.step_ms:.3f}", f"{p.speed_up:.2f}", f"{p.efficiency:.1%}", f"{p.exposed_ms:.3f}"]
        rows.append(cells)
    title = f"{scaling.model} on many processes of {scaling.threads} threads; {scaling.link}, {scaling.algorithm}"
    return shown(title, table(head, rows, ()), lines(scaling.notes))


def scaling_check_html(check: ScalingCheck) -> str:
    """A row for every number of processes, dcir and eager."""
    head = ("nodes", "threads", "", "alone ms", "predicted ms", "measured ms", "ratio", "spread")
    rows = [
        (
            r.nodes, r.threads, r.name, _ms(r.alone_ms), _ms(r.predicted_ms), _ms(r.measured_ms), f"{r.ratio:.2f}", f"{r.spread:.2f}",
        )
        for r in check.rows
    ]  # fmt: skip
    title = f"{check.model} trained on this machine; {check.link}, {check.algorithm}"
    return shown(title, table(head, rows, (2,)), lines(check.all_notes()))


def _megabytes(count: int) -> str:
    return f"{count * 1e-6:.3f}"


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"
