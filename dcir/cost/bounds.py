"""What keeps work from being done faster on a machine: the roof over it, or a fixed cost that is larger than all roofs."""

from __future__ import annotations

from dataclasses import dataclass

from dcir.cost.machine import MachineRates

FLOP, TEAM, LAUNCH, PYTHON, NOTHING = "FLOP", "team", "launch", "Python", "no roof"
"""Names of bounds besides those of memories (``MachineRates.memory_names``)."""

# Guesses, for which `dcir machine` has no measurement: a call through the driver's table, and one through Python into torch.
_CALL_SECONDS = 2e-7
_TORCH_SECONDS = 1e-5
# Below a tenth of the time the largest of the floors explains nothing.
_LEAST_SHARE = 0.1


@dataclass(frozen=True)
class Bound:
    """What bounds one piece of work.

    Attributes:
        name: a memory, FLOP, team, launch, Python; "no roof" of what takes ten times as long as any of these explain.
        share: the time that this takes at least, as a part of what the work took.
    """

    name: str
    share: float


def bound_of(
    rates: MachineRates,
    flops: float,
    bytes_touched: float,
    seconds: float,
    *,
    threads: int,
    dtype: str = "f32",
    torch: bool = False,
) -> Bound:
    """What bounds one call of a kernel: of all that it takes at least, what takes longest.

    Args:
        rates: the machine.
        flops, bytes_touched: work and distinct bytes of the call.
        seconds: that it took.
        threads: of the team; more than one wait for each other at the kernel's end.
        dtype: of the arithmetic.
        torch: whether it calls torch through Python.
    """
    size = round(bytes_touched)
    memory = rates.memory_names()[rates.memory_of(size, threads)]
    least = {FLOP: flops / rates.flops(threads, dtype), memory: bytes_touched / rates.read_rate(size, threads)}
    # Overhead is what the roofs leave of the time, and no more, whatever it takes elsewhere.
    rest = max(0.0, seconds - max(least.values()))
    least[TEAM] = min(rest, rates.barrier_seconds) if threads > 1 else 0.0
    least[PYTHON if torch else LAUNCH] = min(rest, _TORCH_SECONDS if torch else _CALL_SECONDS)
    name = max(least, key=lambda n: least[n])
    share = least[name] / seconds if seconds else 1.0
    return Bound(name if share >= _LEAST_SHARE else NOTHING, share)
