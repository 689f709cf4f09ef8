"""What a forward keeps for its backward, the backward's large values and its results share memory, one after the other.

    saved: [x0] [x1]   arena: [t0 | t1]   results: [y0]    -->    spaces: [x0, then t0, then t1] [x1, then y0]

What the forward keeps is freed when the backward ends; eager PyTorch frees it piece by piece. Here its memory is used again
instead. Every large result, a gradient, has a space, in which the forward may keep what is read for the last time before the result
is written. The rest of what is kept lies in one more space, what is read last first, so that what has been read is one piece.
Large transients take places in both. A result's space is hardly larger than the result, as it lives as long: nothing that the
forward kept outlives the backward. Saves the gradients, and an arena that in a backward is about as large as the activations on
their way where these are largest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.network import Network
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tier4_movement.plan_arena import Lifetime, lifetimes, positions

_BEFORE, _AFTER = -1, 1 << 60  # positions before and after all operators


@dataclass(frozen=True)
class ReuseSavedTensors(Pass):
    """Places of donated inputs, results and transients in shared memory.

    Attributes:
        least: bytes of a result or a transient that is worth one; smaller transients stay in the arena, which is in the caches.
        kept: least bytes of a donated input that takes part.
        spare: part of a result's size by which its space may be larger, for donated inputs that just do not fit.
        alignment: of every place, in bytes.
    """

    tier: ClassVar[int] = 4
    least: int = 1 << 20
    kept: int = 1 << 18
    spare: float = 1 / 16
    alignment: int = 64

    def apply(self, net: Network) -> PassResult:
        """Fill ``net.spaces``, ``net.homes`` and ``net.lent``; an older assignment is thrown away."""
        outcome = PassResult()
        before = net.spaces, net.homes, net.lent
        net.spaces, net.homes, net.lent = [], {}, {}
        if net.donated:
            self._fill(net, outcome)
        if (net.spaces, net.homes, net.lent) != before:
            outcome.changed = len(net.lent) + len(net.homes)
        return outcome

    def _fill(self, net: Network, outcome: PassResult) -> None:
        kept = self._kept(net)
        if not kept:
            return
        results = large_results(net, self.least)
        # Growing spaces at once has large inputs in them that small ones would have left no place for; mostly it only makes them larger.
        plans = [self._spaces(results, kept, spares) for spares in ((0.0, self.spare), (self.spare,))]
        spaces = min(plans, key=lambda plan: sum(space.size for space in plan))
        for t in sorted(spans(net, lifetimes(net, 1)), key=lambda t: (-t.nbytes, t.first)):
            if t.nbytes >= self.least and not any(s.lend(t) for s in reversed(spaces)):
                outcome.refuse("nothing that is large enough has been read for the last time")
        parts: dict[str, list[str]] = {}
        for name, where in net.donated.items():
            parts.setdefault(_block(where.block), []).append(name)
        for space in spaces:
            if not space.shared:
                continue  # a result alone, or inputs alone
            for block, at in space.homes.items():
                for name in parts.get(block, [block]):
                    offset = net.donated[name].offset if name in net.donated else 0
                    net.homes[name] = len(net.spaces), at + offset
            for name, at in space.lent.items():
                block = space.anchor(name)
                anchor = parts.get(block, [block])[0]
                net.lent[name] = anchor, at - net.homes[anchor][1]
            net.spaces.append(space.size)

    def _spaces(self, results: list[Lifetime], kept: list[Lifetime], spares: tuple[float, ...]) -> list[SharedSpace]:
        """A space for every result, and one more, with all that is kept in them; ``spares`` are tried one after the other."""
        spaces = [SharedSpace(self.alignment, t) for t in results]
        waiting = sorted(kept, key=lambda t: (-t.nbytes, t.last))
        for spare in spares:
            for space in spaces:  # in the order in which their results are written: the first have the least choice
                end = space.birth.nbytes if space.birth is not None else 0
                waiting = [t for t in waiting if not space.take(t, int(end * (1 + spare)))]
        slab = SharedSpace(self.alignment)
        for t in sorted(waiting, key=lambda t: -t.last):
            slab.take(t, None)
        return [*spaces, slab]

    def _kept(self, net: Network) -> list[Lifetime]:
        """Blocks of donated inputs, until their last reader."""
        shown = net.result_containers() | set(net.updates.values())
        position = positions(net)
        ends = {label: position_of_stream(net, i)[1] for i, s in enumerate(net.streams) for label in s.ops}
        blocks: dict[int, Lifetime] = {}
        for name, where in net.donated.items():
            last = max((ends.get(r.label, position[r]) for r in net.readers(name)), default=_BEFORE)
            last = _AFTER if name in shown else last
            before = blocks.get(where.block, Lifetime(_block(where.block), _BEFORE, _BEFORE, where.nbytes))
            blocks[where.block] = before._replace(last=max(before.last, last))
        return [t for t in blocks.values() if t.nbytes >= self.kept and t.last < _AFTER]


def large_results(net: Network, least: int) -> list[Lifetime]:
    """Results of at least so many bytes that are shown whole and once, from their first writer on, in that order."""
    shown = Counter(r.data for r in net.results)
    position = positions(net)
    begins = {label: position_of_stream(net, i)[0] for i, s in enumerate(net.streams) for label in s.ops}
    found = []
    for r in net.results:
        c = net.containers[r.data]
        whole = r.offset == 0 and r.shape == c.shape and r.strides == c.strides
        if c.role == "result" and whole and shown[r.data] == 1 and r.data not in net.updates and c.nbytes >= least:
            first = min((begins.get(w.label, position[w]) for w in net.writers(r.data)), default=_BEFORE)
            found.append(Lifetime(r.data, first, _AFTER, c.nbytes))
    return sorted(found, key=lambda t: (t.first, -t.nbytes))


def _block(number: int) -> str:
    return f"block {number}"


def position_of_stream(net: Network, number: int) -> tuple[int, int]:
    """First and last position of a stream's operators."""
    position = {op.label: i for op, i in positions(net).items()}
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


class SharedSpace:
    """Memory that is used by one after the other.

    Attributes:
        birth: the result that lies at its beginning and keeps it after the call.
        homes, lent: byte offsets of inputs and the result, and of transients.
        size: bytes.
    """

    def __init__(self, alignment: int, birth: Lifetime | None = None) -> None:
        self.alignment, self.birth = alignment, birth
        self.homes: dict[str, int] = {}
        self.lent: dict[str, int] = {}
        self.size = 0
        self._taken: list[tuple[Lifetime, int]] = []
        if birth is not None:
            self._put(birth, 0, self.homes)

    @property
    def shared(self) -> bool:
        """Whether one follows another here."""
        return bool(self.lent) or (self.birth is not None and len(self.homes) > 1)

    def take(self, t: Lifetime, most: int | None) -> bool:
        """Give a place to a donated input, in at most so many bytes; says whether there was one."""
        at = self._gap(t, most)
        if at is None:
            return False
        self._put(t, at, self.homes)
        return True

    def lend(self, t: Lifetime) -> bool:
        """Give a place to a transient; says whether there was one."""
        at = self._gap(t, self.size)
        if at is None or self._anchor(at) is None:
            return False
        self._put(t, at, self.lent)
        return True

    def anchor(self, name: str) -> str:
        """Who has the slot of the pointer table from which a lent transient is reached."""
        found = self._anchor(self.lent[name])
        assert found is not None
        return found

    def _anchor(self, at: int) -> str | None:
        """Whoever lies nearest below."""
        below = [(place, o.name) for o, place in self._taken if o.name in self.homes and place <= at]
        return max(below)[1] if below else None

    def _gap(self, t: Lifetime, most: int | None) -> int | None:
        """The lowest free place."""
        met = sorted((at, at + o.nbytes) for o, at in self._taken if o.first <= t.last and o.last >= t.first)
        at = 0
        for low, high in met:
            if low - at >= t.nbytes:
                break
            at = max(at, -(-high // self.alignment) * self.alignment)
        return at if most is None or at + t.nbytes <= most else None

    def _put(self, t: Lifetime, at: int, table: dict[str, int]) -> None:
        table[t.name] = at
        self._taken.append((t, at))
        self.size = max(self.size, at + t.nbytes)
