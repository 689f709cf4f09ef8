"""What runs outside of generated code: operators that are calls into torch, and Python between the parts of a graph that breaks."""

from __future__ import annotations

from dcir.driver.measure.advice.facts import Facts
from dcir.report.advice_pieces import MODELLED, Piece


def fallbacks(facts: Facts) -> list[Piece]:
    """For each kind of operator that runs through torch, code of its own: the time above its roof is what that could bring at most."""
    run, threads = facts.run, facts.now.threads
    pieces = []
    for p in run.kernels:
        if p.family != "torch":
            continue
        floor = facts.rates.floor_seconds(p.flops // p.calls, p.bytes // p.calls, threads=threads) * p.calls * 1e3
        ms = run.whole.ms
        gain = ms / max(ms - max(p.ms - floor, 0.0), 1e-9)
        pieces.append(
            Piece(
                "fallback", f"{p.what.removeprefix('torch ')} from operators that are compiled", gain, 1 / gain, MODELLED,
                f"its {p.calls} calls into torch take {p.ms:.4g} of {ms:.4g} ms, and {floor:.2g} at the roof over them: so much at most; "
                f"at {p.place}",
                "other operators in the model; or a page for this one, see docs/extending.md",
            )
        )  # fmt: skip
    return pieces


def breaks(facts: Facts) -> list[Piece]:
    """One graph where Dynamo made several: what is around the kernels is then around one program (a training step: two)."""
    run, fewest = facts.run, 2 if facts.trains else 1
    graphs = len(run.graphs)
    if graphs <= fewest:
        return []
    ms = run.whole.ms
    gain = ms / max(ms - run.around_ms * (1 - fewest / graphs), 1e-9)
    return [
        Piece(
            "breaks", f"no graph breaks: {fewest} graph{'s' * (fewest > 1)} instead of {graphs}", gain, 1 / gain, MODELLED,
            f"{run.around_ms:.4g} of {ms:.4g} ms are around the kernels of {graphs} graphs, and would be around {fewest}",
            "fast = dcir.optimize(model, strict=True)  # its error says where Dynamo leaves the graph",
        )
    ]  # fmt: skip
