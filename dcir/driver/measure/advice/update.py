"""The fused form of an optimiser, where its update runs an operator and a tensor at a time.

    now   as measured: each of some operators reads and writes all of a tensor, and is called for each tensor
    then  bytes of parameters, gradients and state / memory's rate + tensors x a kernel's call

The state's bytes are moved once, and calls are one for each tensor. What has no fused form in torch may have its update in a whole step.
"""

from __future__ import annotations

from dataclasses import replace

from dcir.driver.measure.advice.facts import Facts, Update
from dcir.report.advice_pieces import BOTH, Piece

OPERATORS = {"sgd": 3, "adam": 9, "adamw": 10}
"""Of a loop's update of one tensor: with momentum, without weight decay but for AdamW's."""
_CLASSES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
_CALL_SECONDS = 2e-6
"""Until one tensor's part of a fused update is begun: a guess."""


def update(facts: Facts) -> list[Piece]:
    """The fused form in place of a loop."""
    found = facts.update
    if found is None or found.form == "fused":
        return []
    ms, now = fused_ms(facts, found), facts.ms(facts.now)
    # Update, forward and backward were measured apart from each other and from the step: on a busy machine they are not its parts.
    part = found.ms / (found.ms + facts.run.whole.ms)
    then = now * (1 - part * (1 - ms / found.ms))
    calls = OPERATORS.get(found.name, 1) * found.tensors
    return [
        Piece(
            "update", f"the fused form of {found.name} instead of {found.form}", now / then, then / now, BOTH,
            f"its update takes {found.ms:.4g} ms, {part:.0%} of a step, for {found.tensors} tensors, in about {calls} operators by "
            f"{found.form}; fused, {found.bytes / 1e6:.4g} MB move once, {ms:.4g} ms at memory's rate with {found.tensors} calls",
            f"optimizer = torch.optim.{_CLASSES.get(found.name, found.name)}(model.parameters(), ..., fused=True)"
            "  # or say neither fused nor foreach: dcir.optimize takes it", "", replace(facts.call, fused=True),
        )
    ]  # fmt: skip


def fused_ms(facts: Facts, found: Update) -> float:
    """Predicted milliseconds of the fused update; no more than it takes now."""
    rates, threads = facts.rates, facts.now.threads
    call = _CALL_SECONDS + (rates.barrier_seconds if threads > 1 else 0.0)
    seconds = found.bytes / rates.reads[-1].of(threads, rates.threads) + found.tensors * call
    return min(found.ms, seconds * 1e3)
