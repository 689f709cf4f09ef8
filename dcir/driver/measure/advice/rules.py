"""The rules in a table, and what of their advice goes together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dcir.driver.measure.advice.batch import batch
from dcir.driver.measure.advice.facts import Facts, Rule, call_of
from dcir.driver.measure.advice.layout import layout
from dcir.driver.measure.advice.level import level
from dcir.driver.measure.advice.memory import memory
from dcir.driver.measure.advice.outside import breaks, fallbacks
from dcir.driver.measure.advice.precision import precision
from dcir.driver.measure.advice.step import whole_step
from dcir.driver.measure.advice.teams import python_of, streams, streams_at, threads
from dcir.driver.measure.advice.update import update
from dcir.report.advice_pieces import BOTH, LEAST_GAIN, Call, Piece, worth_giving

RULES: tuple[Rule, ...] = (
    memory, batch, streams, threads, level, layout, precision, whole_step, update, fallbacks, breaks
)  # fmt: skip

# These change neither batch nor team, so their gains multiply those of both.
_ALONGSIDE = ("level", "layout", "step", "update")


@dataclass(frozen=True)
class _Way:
    """A batch and a team: items a second and milliseconds of a call, and why."""

    call: Call
    items_per_second: float
    ms: float
    evidence: str


def pieces_of(facts: Facts) -> list[Piece]:
    """What is worth giving, of all rules."""
    return worth_giving([piece for rule in RULES for piece in rule(facts)])


def together(facts: Facts, pieces: list[Piece]) -> Piece | None:
    """The batch and the team with the most items a second, with all that goes alongside; None where that is what there is.

    A batch and streams each spare what the other would, so their gains do not multiply: each pair is predicted from what was measured
    of it. What changes numbers is left out. Nothing goes together where memory does not suffice: it is the limit's plan that was made.
    """
    if any(p.needed for p in pieces):
        return None
    rate, ms = facts.a_second(facts.now), facts.ms(facts.now)
    now = _Way(facts.call, rate, ms, "")
    best = max(_ways(facts), key=lambda way: way.items_per_second, default=now)
    if best.items_per_second < rate * LEAST_GAIN:
        best = now
    call, gain, slower, evidence = best.call, best.items_per_second / rate, best.ms / ms, [best.evidence]
    alongside = [p for p in _one_update(pieces) if p.rule in _ALONGSIDE and p.call is not None]
    for piece in alongside:
        call, gain, slower = _with(call, piece), gain * piece.gain, slower * piece.slower
        evidence.append(f"times {piece.gain:.2f} for {piece.what}")
    if call == facts.call:
        return None
    same = next((p for p in pieces if p.call == call), None)
    if same is not None:
        return replace(same, rule="together")
    return Piece(
        "together", f"all of it that goes together: {call}", gain, slower, BOTH, "; ".join(filter(None, evidence)),
        "; ".join([*(p.python for p in alongside), *_python(facts, call)]), facts.command(call), call,
    )  # fmt: skip


def _one_update(pieces: list[Piece]) -> list[Piece]:
    """Without the lesser of a whole step and the fused form, which spare the same."""
    both = [p for p in pieces if p.rule in ("step", "update")]
    return [p for p in pieces if p not in both or p == max(both, key=lambda p: p.gain)]


def _ways(facts: Facts) -> list[_Way]:
    """All batches and teams at the level of now that were measured, and the streams that follow from them."""
    found = []
    for setting in facts.runs:
        if setting.level != facts.now.level:
            continue
        ms, items = facts.ms(setting), facts.items[setting.batch]
        found.append(
            _Way(call_of(setting), facts.a_second(setting), ms, f"{items} items take {ms:.4g} ms (measured here)")
        )
        if not facts.trains and setting.threads == facts.now.threads:
            found += [_Way(t.call, t.items_per_second, t.ms, t.evidence) for t in streams_at(facts, setting)]
    return found


def _with(call: Call, piece: Piece) -> Call:
    """A call that is changed as a piece says, too."""
    if piece.rule == "layout":
        return replace(call, turned=True)
    if piece.rule == "step":
        return replace(call, whole_step=True)
    if piece.rule == "update":
        return replace(call, fused=True)
    return call if piece.call is None else replace(call, level=piece.call.level)


def _python(facts: Facts, call: Call) -> list[str]:
    lines = []
    if call.batch != facts.now.batch:
        lines.append(f"x = torch.cat(items[:{facts.items[call.batch]}])")
    if call.streams > 1:
        lines.append(python_of(call.streams))
    elif call.threads != facts.now.threads:
        lines.append(f"torch.set_num_threads({call.threads})")
    return lines
