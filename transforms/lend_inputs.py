"""Transients of a backward lie in what the forward kept for it, once that has been read for the last time.

    arena: [t0 | t1]   saved: [x0]    -->    arena: [t1]   saved: [x0, then t0]

What the forward keeps for the backward is freed when the backward ends; eager PyTorch frees it piece by piece. Here its memory
is used again instead: a large transient takes the place of a donated input all of whose readers have run. Saves the arena, which
in a backward is about as large as the gradients on their way where the activations are largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.network import Network
from dcir.transforms.base import Outcome, Pass
from dcir.transforms.plan_arena import Lifetime, lifetimes, positions


@dataclass(frozen=True)
class LendInputs(Pass):
    """Places in donated inputs.

    Attributes:
        least: bytes of a transient that is worth one; smaller ones stay in the arena, which is in the caches.
        alignment: of every place, in bytes.
    """

    tier: ClassVar[int] = 4
    least: int = 1 << 20
    alignment: int = 64

    def apply(self, net: Network) -> Outcome:
        """Fill ``net.lent``; an older assignment is thrown away."""
        outcome = Outcome()
        before, net.lent = net.lent, {}
        if net.donated:
            blocks = self._blocks(net)
            live = _spans(net, [t for t in lifetimes(net, 1) if t.nbytes >= self.least])
            for t in sorted(live, key=lambda t: (-t.nbytes, t.first)):
                fitting = [b for b in blocks if b.begins < t.first and b.nbytes >= t.nbytes]
                # The one that was read last is the nearest in the caches, but a large one may hold several.
                fitting.sort(key=lambda b: (b.nbytes > 2 * t.nbytes, -b.begins))
                at = next(((b, place) for b in fitting if (place := b.place(t, self.alignment)) is not None), None)
                if at is None:
                    outcome.refuse("no input that is large enough has been read for the last time")
                else:
                    net.lent[t.name] = at[0].name, at[1]
        if net.lent != before:
            outcome.changed = len(net.lent)
        return outcome

    def _blocks(self, net: Network) -> list[_Block]:
        """Donated inputs, from their last reader on."""
        kept = net.result_containers() | set(net.updates.values())
        position = positions(net)
        ends = {label: position_of_stream(net, i) for i, s in enumerate(net.streams) for label in s.ops}
        blocks = []
        for name in sorted(net.donated - kept):
            readers = net.readers(name)
            last = max((ends.get(r.label, (0, position[r]))[1] for r in readers), default=-1)
            if net.containers[name].nbytes >= self.least:
                blocks.append(_Block(name, net.containers[name].nbytes, last))
        return blocks


def position_of_stream(net: Network, number: int) -> tuple[int, int]:
    """First and last position of a stream's operators."""
    position = {op.label: i for op, i in positions(net).items()}
    stream = net.streams[number]
    return position[stream.ops[0]], position[stream.ops[-1]]


def _spans(net: Network, live: list[Lifetime]) -> list[Lifetime]:
    """Lifetimes of what lies outside of streams; what a stream touches lives through all of it."""
    spans = [(s, position_of_stream(net, i)) for i, s in enumerate(net.streams)]
    result = []
    for t in live:
        if any(t.name in s.inside for s, _ in spans):
            continue
        touched = [span for s, span in spans if t.name in s.steps]
        first = min([t.first, *(span[0] for span in touched)])
        last = max([t.last, *(span[1] for span in touched)])
        result.append(t._replace(first=first, last=last))
    return result


class _Block:
    """Memory of a donated input.

    Attributes:
        begins: position of its last reader: whoever lies here is first written later.
    """

    def __init__(self, name: str, nbytes: int, begins: int) -> None:
        self.name, self.nbytes, self.begins = name, nbytes, begins
        self._taken: list[tuple[int, int, int, int]] = []  # first and last position, first byte, end

    def place(self, t: Lifetime, alignment: int) -> int | None:
        """The lowest free place for ``t``, which it then has; None if there is none."""
        met = sorted((low, high) for first, last, low, high in self._taken if first <= t.last and last >= t.first)
        at = 0
        for low, high in met:
            if low - at >= t.nbytes:
                break
            at = max(at, -(-high // alignment) * alignment)
        if at + t.nbytes > self.nbytes:
            return None
        self._taken.append((t.first, t.last, at, at + t.nbytes))
        return at
