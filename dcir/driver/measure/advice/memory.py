"""A limit of a training step's memory: values that the forward kept are computed again, which takes time and is no gain but in bytes.

    then = now + seconds of what is computed again, at the machine's rates x (kernels of now / they at these rates)

What is computed again follows from the limit by the integer program that also decides when it is set (``partition/solver.py``), and the
plan's bytes are those of the compiled graphs. Its seconds count with the machine's rates, which kernels seldom reach: they are taken to
fall as short of them as the kernels that were measured.
"""

from __future__ import annotations

from dataclasses import replace

from dcir.driver.measure.advice.facts import Facts, Kept, Memory
from dcir.report.advice_pieces import BOTH, Piece


def memory(facts: Facts) -> list[Piece]:
    """Each limit that was planned, where a step takes more memory than the user allows, or than a large part of the machine's."""
    found = facts.memory
    if not facts.trains or found is None:
        return []
    slower = over_roofs(facts)
    return [_piece(facts, found, kept, slower) for kept in found.kept if kept.peak < found.peak]


def over_roofs(facts: Facts) -> float:
    """The time of the kernels that were measured, over what they take at the rates that the integer program counts with.

    Kernels were measured apart from the steps that took turns: their time is that of a step of now.
    """
    flops, moved = facts.rates.flops_f32.all, facts.rates.reads[-1].all
    own = [p for p in facts.run.kernels if p.family != "torch"]
    roofs = sum(max(p.flops / flops, p.bytes / moved) for p in own) * 1e3
    whole = facts.run.whole.ms + (0.0 if facts.update is None else facts.update.ms)
    return max(1.0, sum(p.ms for p in own) / roofs * facts.ms(facts.now) / whole) if roofs else 1.0


def _piece(facts: Facts, found: Memory, kept: Kept, slower: float) -> Piece:
    now, roof = facts.ms(facts.now), max(kept.seconds, 0.0) * 1e3
    then = now + roof * slower
    wanted = "allowed" if found.asked else "half of the machine's memory"
    fits = kept.peak + found.beside <= found.allowed
    return Piece(
        "memory", f"a memory limit of {kept.limit / 1e6:.4g} MB" + ("" if fits else ", the least there is"), now / then, then / now, BOTH,
        f"what is kept and scratch memory take {_mb(found.peak)}, parameters, gradients, state and inputs {_mb(found.beside)}, and "
        f"{_mb(found.allowed)} are {wanted}; under the limit they take {_mb(kept.peak)}: {_values(kept.stored)} are kept and "
        f"{_values(kept.again)} computed again, {roof:.3g} ms at the machine's rates, of which kernels here take {slower:.3g} times",
        f"fast = dcir.optimize(model, memory_limit={kept.limit:_})", "", replace(facts.call, memory_limit=kept.limit),
        saves=found.peak - kept.peak, needed=found.asked,
    )  # fmt: skip


def _mb(size: int) -> str:
    return f"{size / 1e6:.4g} MB"


def _values(number_and_size: tuple[int, int]) -> str:
    number, size = number_and_size
    return f"{number} value{'s' * (number != 1)} ({_mb(size)})"
