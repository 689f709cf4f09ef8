"""A whole training step as one program, the optimiser's update with it."""

from __future__ import annotations

from dataclasses import replace

from dcir.driver.measure.advice.facts import Facts
from dcir.report.advice_pieces import BOTH, Piece

_STAYS = 0.5
"""Part of what is around forward and backward that is around one program: one call instead of two, and no autograd."""


def whole_step(facts: Facts) -> list[Piece]:
    """``train_step``: the step without half of what is around its kernels, and with the optimiser at the roof of memory."""
    update, run = facts.update, facts.run
    if update is None:
        return []
    memory = facts.rates.reads[-1].of(facts.now.threads, facts.rates.threads)
    floor = min(update.ms, update.bytes / memory * 1e3)
    now = facts.ms(facts.now)
    then = max(
        now - (update.ms - floor) - (1 - _STAYS) * run.around_ms, run.kernel_ms * (now / (run.whole.ms + update.ms))
    )
    return [
        Piece(
            "step", "one program for forward, backward and update", now / then, then / now, BOTH,
            f"{update.name} takes {update.ms:.4g} ms, {floor:.4g} at memory's rate, and {run.around_ms:.4g} of {run.whole.ms:.4g} ms are "
            "around the kernels, half of that around one program",
            "step = dcir.train_step(model, criterion, optimizer); loss = step(x, y)", "",
            replace(facts.call, whole_step=True),
        )
    ]  # fmt: skip
