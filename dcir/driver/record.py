"""The record of what became of one graph: what ``explain`` and the log tell of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class GraphRecord:
    """What became of one graph.

    Attributes:
        kind: "inference", "forward" or "backward".
        sizes: (place, value) of each symbolic size of the traced graph that this program is for.
        bounds: (place, least, most) of each size that moves, where it is for all of them; figures are then those of the upper ends.
        remark: how this program comes to be compiled for those sizes.
        operators: operators after import.
        fallbacks: (operator, place) run through torch.
        passes: the pass runner's records.
        kernels, calls: distinct kernels and driver steps.
        generated: kernels generated now (0: the library came from the cache).
        arena_bytes: planned scratch memory of one call.
        together: a number that a forward and its backward have in common.
        saved_bytes: what a forward keeps for its backward, beyond its inputs and what its caller gets.
        partition: what was decided under a limit of memory (``frontends.torch.partition.Partition``); only of a forward.
        parts: how many a backward is run in, one after the other, so that gradients are handed over as they come.
        prepared_bytes: memory of values computed from parameters, kept between calls.
        bytes_before, bytes_moved: distinct bytes that all operators of a call touch, before and after the passes.
        threads: size of the team.
        work: per operator of a call, its exact operations and the distinct bytes it touches.
        tuned: (kernel, measured choice, calls) of the kernels that are not as the cost models have them.
        schedules: (kernel, schedule that it was printed from, calls) of all kernels; no schedule of those that have one form only, no
            calls of those that run in loops and branches, or when parameters change.
        seconds: time per step.
    """

    kind: str
    sizes: tuple[tuple[str, int], ...] = ()
    remark: str = ""
    operators: int = 0
    fallbacks: list[tuple[str, str]] = field(default_factory=list)
    passes: list[Any] = field(default_factory=list)
    kernels: int = 0
    calls: int = 0
    generated: int = 0
    arena_bytes: int = 0
    together: int | None = None
    saved_bytes: int = 0
    partition: Any = None
    parts: int = 1
    prepared_bytes: int = 0
    bytes_before: int = 0
    bytes_moved: int = 0
    threads: int = 1
    work: list[tuple[int, int]] = field(default_factory=list)
    tuned: list[tuple[str, str, int]] = field(default_factory=list)
    schedules: list[tuple[str, str, int]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    bounds: tuple[tuple[str, int, int], ...] = ()

    @property
    def state(self) -> str:
        """Whether anything had to be generated."""
        return f"{self.generated} generated now" if self.generated else "from the cache"

    def __str__(self) -> str:
        took = sum(self.seconds.values())
        return f"{self.operators} operators, {self.calls} calls of {self.kernels} kernels ({self.state}), {took:.1f} s"
