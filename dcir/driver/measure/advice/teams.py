"""How calls share the processors: one call at a time by fewer threads, or several calls at a time, each by a team of its own.

    one call      t(T) as measured with T threads
    N at a time   N calls in t(T) x s + h, where T = processors / N was measured; but one call in h + p at most

s is what a call takes longer when N of them share the last cache and memory, by the cost model behind ``hint="throughput"``
(``cost/stream_number.py``). Handing a call over takes h, and p is around the kernels of one: Python, which runs one thread at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dcir.cost.stream_number import seconds
from dcir.driver.measure.advice.facts import Facts, call_of
from dcir.report.advice_pieces import BOTH, HERE, Call, Piece
from dcir.report.roofline_points import Run, Setting

_HAND_OVER_MS = 0.03
"""A call's way through the queue, its future, and a thread that wakes up."""


@dataclass(frozen=True)
class Team:
    """One way to share the processors, predicted.

    Attributes:
        call: the way.
        items_per_second: of all calls together.
        ms: from a call's begin to its end.
        evidence: in words.
    """

    call: Call
    items_per_second: float
    ms: float
    evidence: str


def threads(facts: Facts) -> list[Piece]:
    """Fewer threads where a call is faster with them: where a team costs more than it brings."""
    now = facts.now
    known = facts.varying("threads")
    best = min(known, key=facts.ms)
    if best == now:
        return []
    gain = facts.ms(now) / facts.ms(best)
    rows = ", ".join(f"{s.threads}: {facts.ms(s):.4g} ms" for s in sorted(known, key=lambda s: s.threads))
    return [
        Piece(
            "threads", f"{best.threads} thread{'s' * (best.threads != 1)} instead of {now.threads}", gain, 1 / gain, HERE,
            f"a call by threads takes {rows}", f"torch.set_num_threads({best.threads}); fast = dcir.optimize(model)",
            facts.command(call_of(best)), call_of(best),
        )
    ]  # fmt: skip


def streams(facts: Facts) -> list[Piece]:
    """Several calls at a time, of the batch of now."""
    if facts.trains:
        return []
    found = streams_at(facts, facts.now)
    if not found:
        return []
    best = max(found, key=lambda team: team.items_per_second)
    n = best.call.streams
    return [
        Piece(
            "streams", f"{n} calls at a time, {_threads(best.call.threads)} each", best.items_per_second / facts.a_second(facts.now),
            best.ms / facts.ms(facts.now), BOTH, best.evidence, python_of(n), facts.command(best.call), best.call,
        )
    ]  # fmt: skip


def python_of(streams: int) -> str:
    """The lines that run so many calls at a time."""
    return f"fast = dcir.optimize(model, streams={streams}); results = list(fast.dcir.map(batches))"


def streams_at(facts: Facts, at: Setting) -> list[Team]:
    """Ways to have several calls at a time that what was measured says something about, for a batch and a level."""
    found = []
    for setting, run in facts.runs.items():
        count, left = divmod(facts.processors, setting.threads)
        if replace(setting, threads=at.threads) != at or count < 2 or left:
            continue
        slower = slow_down(facts, run, count)
        ms = facts.ms(setting) * slower + _HAND_OVER_MS
        # The interpreter runs one thread at a time, so what is around the kernels adds up.
        a_second = facts.items[at.batch] * 1e3 * min(count / ms, 1 / (run.around_ms + _HAND_OVER_MS))
        evidence = (
            f"a call of {_threads(setting.threads)} takes {facts.ms(setting):.4g} ms, of {facts.now.threads} "
            f"{facts.ms(replace(at, threads=facts.now.threads)):.4g} (measured here); {count} that share caches and memory "
            f"{slower - 1:.0%} longer, and {_HAND_OVER_MS * 1e3:.0f} us each to be handed over (modelled)"
        )
        found.append(Team(replace(call_of(setting), streams=count), a_second, ms, evidence))
    return found


def slow_down(facts: Facts, run: Run, count: int) -> float:
    """The time of a call while so many run at once, over its time alone with the same threads."""
    work = [row for p in run.kernels for row in [(p.flops // p.calls, p.bytes // p.calls)] * p.calls]
    # Scratch memory is used again from kernel to kernel: a call comes back to about what its largest kernel touches.
    scratch = max((moved for _, moved in work), default=0)
    alone, among = (seconds(work, facts.weights, scratch, n, run.setting.threads, facts.rates) for n in (1, count))
    return max(1.0, among / alone)


def _threads(number: int) -> str:
    return f"{number} thread{'s' * (number != 1)}"
