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

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.memory_plan import ALIGNMENT, Alias, aligned
from dcir.ir.network import Network
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tier4_movement.plan_arena import Lifetime, lifetimes

_BEFORE, _AFTER = -1, 1 << 60  # positions before and after all operators


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
    least: int = 1 << 20
    kept: int = 1 << 18
    spare: float = 1 / 16
    alignment: int = ALIGNMENT

    def apply(self, net: Network) -> PassResult:
        """Fill the shared blocks; an older plan of them is thrown away."""
        outcome = PassResult()
        before, net.memory = net.memory, net.memory.with_shared()
        if net.memory.donated:
            self._fill(net, outcome)
        if net.memory != before:
            shared = net.memory.shared()
            placed = sum(place.block in shared for place in net.memory.placements.values())
            outcome.changed = len(net.memory.aliases) + placed
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
                outcome.refuse("nothing that is large enough has been read for the last time")
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
            last = max((ends.get(r.label, position[r]) for r in net.readers(name)), default=_BEFORE)
            last = _AFTER if name in shown else last
            before = buffers.get(part.buffer, Lifetime(_buffer(part.buffer), _BEFORE, _BEFORE, part.nbytes))
            buffers[part.buffer] = before._replace(last=max(before.last, last))
        return [t for t in buffers.values() if t.nbytes >= self.kept and t.last < _AFTER]


def large_results(net: Network, least: int) -> list[Lifetime]:
    """Results of at least so many bytes that are shown whole and once, from their first writer on, in that order."""
    shown = Counter(r.data for r in net.results)
    position = net.positions()
    begins = {label: position_of_stream(net, i)[0] for i, s in enumerate(net.streams) for label in s.ops}
    found = []
    for r in net.results:
        c = net.containers[r.data]
        whole = r.offset == 0 and r.shape == c.shape and r.strides == c.strides
        if c.role == "result" and whole and shown[r.data] == 1 and r.data not in net.updates and c.nbytes >= least:
            first = min((begins.get(w.label, position[w]) for w in net.writers(r.data)), default=_BEFORE)
            found.append(Lifetime(r.data, first, _AFTER, c.nbytes))
    return sorted(found, key=lambda t: (t.first, -t.nbytes))


def _buffer(number: int) -> str:
    return f"buffer {number}"


def position_of_stream(net: Network, number: int) -> tuple[int, int]:
    """First and last position of a stream's operators."""
    position = {op.label: i for op, i in net.positions().items()}
    stream = net.streams[number]
    return position[stream.ops[0]], position[stream.ops[-1]]


def spans(net: Network, live: list[Lifetime]) -> list[Lifetime]:
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


class SharedBlock:
    """Memory that is used by one after the other.

    Attributes:
        result: the one that lies at its beginning and keeps it after the call.
        places, aliases: byte offsets of inputs and the result, and of transients.
        size: bytes.
    """

    def __init__(self, alignment: int, result: Lifetime | None = None) -> None:
        self.alignment, self.result = alignment, result
        self.places: dict[str, int] = {}
        self.aliases: dict[str, int] = {}
        self.size = 0
        self._taken: list[tuple[Lifetime, int]] = []
        if result is not None:
            self._put(result, 0, self.places)

    @property
    def shared(self) -> bool:
        """Whether one follows another here."""
        return bool(self.aliases) or (self.result is not None and len(self.places) > 1)

    def place(self, t: Lifetime, most: int | None) -> bool:
        """Give a place to a donated input, in at most so many bytes; says whether there was one."""
        at = self._gap(t, most)
        if at is None:
            return False
        self._put(t, at, self.places)
        return True

    def alias(self, t: Lifetime) -> bool:
        """Give a place to a transient; says whether there was one."""
        at = self._gap(t, self.size)
        if at is None or self._below(at) is None:
            return False
        self._put(t, at, self.aliases)
        return True

    def target(self, name: str) -> str:
        """Who has the slot of the pointer table from which a transient is reached."""
        found = self._below(self.aliases[name])
        assert found is not None
        return found

    def _below(self, at: int) -> str | None:
        """Whoever lies nearest below."""
        below = [(place, o.name) for o, place in self._taken if o.name in self.places and place <= at]
        return max(below)[1] if below else None

    def _gap(self, t: Lifetime, most: int | None) -> int | None:
        """The lowest free place."""
        met = sorted((at, at + o.nbytes) for o, at in self._taken if o.first <= t.last and o.last >= t.first)
        at = 0
        for low, high in met:
            if low - at >= t.nbytes:
                break
            at = max(at, aligned(high, self.alignment))
        return at if most is None or at + t.nbytes <= most else None

    def _put(self, t: Lifetime, at: int, table: dict[str, int]) -> None:
        table[t.name] = at
        self._taken.append((t, at))
        self.size = max(self.size, at + t.nbytes)
