"""Large transients lie in results that are not written yet.

    arena: [t0 | t1]   results: [y]    -->    arena: [t1]   y's memory: t0, then y

A result's memory is the caller's from the beginning of a call, and empty until its first writer runs. Whoever is finished by then may
have it. Only what lies in the arena where that is fullest is moved: anything else would leave it as large as it is. Saves scratch
memory: a result of logits or of an image takes what the layers before it need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dcir.ir.memory_plan import ALIGNMENT, Alias
from dcir.ir.network import Network
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tier4_movement.memory.lifetimes import Lifetime, large_results, lifetimes, spans
from dcir.transforms.tier4_movement.memory.shared_block import SharedBlock


@dataclass(frozen=True)
class ReuseResultBuffers(Pass):
    """Places of transients in the results of a call that stands alone.

    In a backward ``ReuseSavedTensors`` has given the results' memory away. A forward's results are what it keeps, the whole step's memory:
    scratch all over it never is in a cache (WaveNet's step became 5 % slower for 6 of its 164 MB).

    Attributes:
        least: bytes of a result or a transient that is worth one; smaller transients stay in the arena, which is in the caches.
        alignment: of every place, in bytes.
    """

    tier: ClassVar[int] = 4
    after: ClassVar[tuple[str, ...]] = ("reuse-saved-tensors",)
    final: ClassVar[bool] = True
    in_bodies: ClassVar[bool] = False
    least: int = 1 << 20
    alignment: int = ALIGNMENT

    def apply(self, net: Network) -> PassResult:
        """Fill the shared blocks; an older plan of them is thrown away."""
        outcome = PassResult.of(net)
        if net.memory.donated or net.free:
            return outcome
        before, net.memory = net.memory, net.memory.with_shared()
        blocks = [SharedBlock(self.alignment, t) for t in large_results(net, self.least)]
        live = spans(net, lifetimes(net, 1)) if blocks else []
        while live:
            full = _fullest(live)
            large = [t for t in live if t.nbytes >= self.least and full[t.first : t.last + 1].any()]
            large.sort(key=lambda t: (-int(full[t.first : t.last + 1].sum()), -t.nbytes, -t.first))
            moved = next((t for t in large if any(b.alias(t) for b in blocks)), None)
            if moved is None:
                outcome.missed("no result is large enough and still unwritten")
                break
            live.remove(moved)
        used = [(b, b.result.name) for b in blocks if b.aliases and b.result is not None]
        aliases = {name: Alias(result, at) for block, result in used for name, at in block.aliases.items()}
        places = {result: (number, 0) for number, (_, result) in enumerate(used)}
        net.memory = net.memory.with_shared([block.size for block, _ in used], places, aliases)
        if net.memory != before:
            outcome.passed(count=len(aliases))
        return outcome


def _fullest(live: list[Lifetime]) -> NDArray[np.bool_]:
    """The positions at which most bytes are alive."""
    change = np.zeros(max(t.last for t in live) + 2, np.int64)
    for t in live:
        change[t.first] += t.nbytes
        change[t.last + 1] -= t.nbytes
    alive = change.cumsum()
    most: NDArray[np.bool_] = alive == alive.max()
    return most
