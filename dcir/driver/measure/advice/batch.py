"""More items in one call: weights are read once for all of them, and fixed costs are shared."""

from __future__ import annotations

from dcir.driver.measure.advice.facts import Facts, call_of
from dcir.report.advice_pieces import HERE, Piece


def batch(facts: Facts) -> list[Piece]:
    """The batch with the most items a second, of those that were measured with the threads and the level of now."""
    now = facts.now
    best = max(facts.varying("batch"), key=facts.a_second)
    if best == now:
        return []
    items, before = facts.items[best.batch], facts.items[now.batch]
    ms, ms_before = facts.ms(best), facts.ms(now)
    call = "loss = criterion(fast(x), y)" if facts.trains else "y = fast(x)"
    return [
        Piece(
            "batch", f"{items} items in a call instead of {before}", facts.a_second(best) / facts.a_second(now),
            ms / ms_before, HERE, f"{items} take {ms:.4g} ms, {before} take {ms_before:.4g}",
            f"x = torch.cat(items[:{items}]); {call}", facts.command(call_of(best)), call_of(best),
        )
    ]  # fmt: skip
