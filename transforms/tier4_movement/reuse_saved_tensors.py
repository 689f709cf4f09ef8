"""What a forward keeps for its backward, the backward's large values and its results share memory, one after the other.

    saved: [x0] [x1]   arena: [t0 | t1]   results: [y0]    -->    blocks: [x0, then t0, then t1] [x1, then y0]

What the forward keeps is freed when the backward ends; eager PyTorch frees it piece by piece. Here its memory is used again
instead. Every large result, a gradient, has a block, in which the forward may keep what is read for the last time before the result
is written. The rest of what is kept lies in one more block, what is read last first, so that what has been read is one piece.
Large transients take places in both. A result's block is hardly larger than the result, as it lives as long: nothing that the
forward kept outlives the backward. Saves the gradients, and an arena that in a backward is about as large as the activations on
their way where these are largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.memory_plan import ALIGNMENT, Alias
from dcir.ir.network import Network
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tier4_movement.memory.lifetimes import (
    AFTER,
    BEFORE,
    Lifetime,
    large_results,
    lifetimes,
    position_of_stream,
    spans,
)
from dcir.transforms.tier4_movement.memory.shared_block import SharedBlock


@dataclass(frozen=True)
class ReuseSavedTensors(Pass):
    """Places of donated inputs, results and transients in shared memory.

    Attributes:
        least: bytes of a result or a transient that is worth one; smaller transients stay in the arena, which is in the caches.
        kept: least bytes of a donated input that takes part.
        spare: part of a result's size by which its block may be larger, for donated inputs that just do not fit.
        alignment: of every place, in bytes.
    """

    tier: ClassVar[int] = 4
    after: ClassVar[tuple[str, ...]] = ("prepare-static", "order-execution", "run-per-image")
    final: ClassVar[bool] = True
    in_bodies: ClassVar[bool] = False
    least: int = 1 << 20
    kept: int = 1 << 18
    spare: float = 1 / 16
    alignment: int = ALIGNMENT

    def apply(self, net: Network) -> PassResult:
        """Fill the shared blocks; an older plan of them is thrown away."""
        outcome = PassResult.of(net)
        before, net.memory = net.memory, net.memory.with_shared()
        if net.memory.donated:
            self._fill(net, outcome)
        if net.memory != before:
            shared = net.memory.shared()
            placed = sum(place.block in shared for place in net.memory.placements.values())
            outcome.passed(count=len(net.memory.aliases) + placed)
        return outcome

    def _fill(self, net: Network, outcome: PassResult) -> None:
        kept = self._kept(net)
        if not kept:
            return
        results = large_results(net, self.least)
        # Growing blocks at once has large inputs in them that small ones would have left no place for; mostly it only makes them larger.
        plans = [self._blocks(results, kept, spares) for spares in ((0.0, self.spare), (self.spare,))]
        blocks = min(plans, key=lambda plan: sum(block.size for block in plan))
        for t in sorted(spans(net, lifetimes(net, 1)), key=lambda t: (-t.nbytes, t.first)):
            if t.nbytes >= self.least and not any(b.alias(t) for b in reversed(blocks)):
                why = "nothing that is large enough has been read for the last time"
                outcome.missed(why, net.writers(t.name), value_bytes=t.nbytes)
        # A result alone, or inputs alone, share nothing.
        self._plan(net, [block for block in blocks if block.shared])

    def _plan(self, net: Network, blocks: list[SharedBlock]) -> None:
        donated = net.memory.donated
        parts: dict[str, list[str]] = {}
        for name, part in donated.items():
            parts.setdefault(_buffer(part.buffer), []).append(name)
        places: dict[str, tuple[int, int]] = {}
        aliases: dict[str, Alias] = {}
        for number, block in enumerate(blocks):
            for member, at in block.places.items():
                for name in parts.get(member, [member]):
                    places[name] = number, at + (donated[name].offset if name in donated else 0)
            for name, at in block.aliases.items():
                target = parts.get(member := block.target(name), [member])[0]
                aliases[name] = Alias(target, at - places[target][1])
        net.memory = net.memory.with_shared([block.size for block in blocks], places, aliases)

    def _blocks(self, results: list[Lifetime], kept: list[Lifetime], spares: tuple[float, ...]) -> list[SharedBlock]:
        """A block for every result, and one more, with all that is kept in them; ``spares`` are tried one after the other."""
        blocks = [SharedBlock(self.alignment, t) for t in results]
        waiting = sorted(kept, key=lambda t: (-t.nbytes, t.last))
        for spare in spares:
            for block in blocks:  # in the order in which their results are written: the first have the least choice
                end = block.result.nbytes if block.result is not None else 0
                waiting = [t for t in waiting if not block.place(t, int(end * (1 + spare)))]
        rest = SharedBlock(self.alignment)
        for t in sorted(waiting, key=lambda t: -t.last):
            rest.place(t, None)
        return [*blocks, rest]

    def _kept(self, net: Network) -> list[Lifetime]:
        """Buffers with donated inputs, until their last reader."""
        shown = net.result_containers() | set(net.updates.values())
        position = net.positions()
        ends = {label: position_of_stream(net, i)[1] for i, s in enumerate(net.streams) for label in s.ops}
        buffers: dict[int, Lifetime] = {}
        for name, part in net.memory.donated.items():
            last = max((ends.get(r.label, position[r]) for r in net.readers(name)), default=BEFORE)
            last = AFTER if name in shown else last
            before = buffers.get(part.buffer, Lifetime(_buffer(part.buffer), BEFORE, BEFORE, part.nbytes))
            buffers[part.buffer] = before._replace(last=max(before.last, last))
        return [t for t in buffers.values() if t.nbytes >= self.kept and t.last < AFTER]


def _buffer(number: int) -> str:
    return f"buffer {number}"
