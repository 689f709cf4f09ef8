"""Another level of optimisation, as measured."""

from __future__ import annotations

from dcir.driver.measure.advice.facts import Facts, call_of
from dcir.report.advice_pieces import HERE, Piece


def level(facts: Facts) -> list[Piece]:
    """The fastest level of those that were measured with the threads and the batch of now."""
    now = facts.now
    known = facts.varying("level")
    best = min(known, key=facts.ms)
    if best == now:
        return []
    gain = facts.ms(now) / facts.ms(best)
    rows = ", ".join(f"-O{s.level}: {facts.ms(s):.4g} ms" for s in sorted(known, key=lambda s: s.level))
    return [
        Piece(
            "level", f"-O{best.level} instead of -O{now.level}", gain, 1 / gain, HERE, f"a call by levels takes {rows}",
            f"fast = dcir.optimize(model, level={best.level})", facts.command(call_of(best)), call_of(best),
        )
    ]  # fmt: skip
