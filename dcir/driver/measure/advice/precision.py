"""Weights and activations in bfloat16: half the bytes, and where the processor multiplies pairs, up to twice the products a second.

This changes numbers: a bfloat16 has eight bits of a float32's 24. So it is offered and marked, and no part of what is advised together.
"""

from __future__ import annotations

from dataclasses import replace

from dcir.cost.bounds import FLOP
from dcir.driver.measure.advice.facts import Facts
from dcir.report.advice_pieces import MODELLED, Piece


def precision(facts: Facts) -> list[Piece]:
    """bfloat16, as much faster as its products are; convolutions and everything else keep the time that they take."""
    if facts.trains or facts.pairs is None:
        return []
    run = facts.clearest
    memories = facts.rates.memory_names()
    by_arithmetic = sum(p.ms for p in run.kernels if p.family == "product" and p.bound.name == FLOP)
    by_bytes = sum(p.ms for p in run.kernels if p.family == "product" and p.bound.name in memories)
    ms = run.whole.ms
    team = f"with {run.setting.threads} thread{'s' * (run.setting.threads != 1)}"
    then = ms - by_arithmetic * (1 - 1 / facts.pairs) - by_bytes / 2
    return [
        Piece(
            "precision", "bfloat16 instead of float32", ms / max(then, 1e-9), then / ms, MODELLED,
            f"{team}, products bound by arithmetic take {by_arithmetic:.4g} of {ms:.4g} ms, and {facts.pairs:.2g} times as many "
            f"fit into a second; those bound by bytes {by_bytes:.4g} ms, and bytes are halved",
            "fast = dcir.optimize(model.bfloat16()); y = fast(x.bfloat16())", "", replace(facts.call, half=True), exact=False,
        )
    ]  # fmt: skip
