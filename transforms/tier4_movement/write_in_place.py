"""What becomes a part of an updated input is made where that input lies.

    t = x with rows written; o = f(t); y = t, in place of x   -->   y = x with rows written, in place of x; o = f(y)

A copy that moves all of a transient by one distance of memory into an update says that the transient may lie there: its writers
write the update, its readers read it. That is done where a writer only changes some elements of the input (a scatter into it, a
window around others), since then nothing but those needs to move (``keep_in_place.py``). The old contents must not be asked for
any more: nobody who reads the input may depend on what was written. Saves a copy of all of a cache, and one more for its readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ir.updates import keeps_most
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class WriteInPlace(Pass):
    """Let the copies that end in updates vanish where most of an input stays as it is."""

    tier: ClassVar[int] = 4
    in_bodies: ClassVar[bool] = False

    def apply(self, net: Network) -> PassResult:
        """Look at every copy into an update, until there is none to change."""
        outcome = PassResult.of(net)
        for data, source in net.updates.items():
            again = True
            while again:
                again = False
                for op in net.writers(data):
                    done = self._place(net, op, data, source)
                    if isinstance(done, Refusal):
                        outcome.missed(done, (op,))
                    elif done:
                        outcome.passed((op,))
                        again = True
                        break
        return outcome

    def _place(self, net: Network, op: Op, data: str, source: str) -> bool | Refusal:
        """Have the source of the copy ``op`` lie in the update ``data`` of ``source``; whether it does, False for no such copy."""
        distance = _distance(net, op)
        if distance is None:
            return False
        made = net.ins(op)[0].data
        c, writers = net.containers[made], net.writers(made)
        if c.role != "transient" or not writers:
            return False
        if not any(keeps_most(net, w, made, source, distance) for w in writers):
            return Refusal("the update changes all of its input")
        after = _depending(net, made)
        for reader in net.readers(source):
            if reader in writers and not keeps_most(net, reader, made, source, distance):
                return Refusal("what is written is made of other old contents")
            if reader in after:
                return Refusal("the old contents are read after the new ones")
        if any(w in after for w in net.writers(data) if w is not op):
            return Refusal("the update consists of several steps")
        if not net.allows(self, op):
            return SWITCHED_OFF
        net.remove_op(op, into=writers)

        def there(o: Operand) -> Operand:
            return Operand(data, o.offset + distance) if o.data == made else o

        for user in dict.fromkeys((*writers, *net.readers(made))):
            ins, outs = map(there, net.ins(user)), map(there, net.outs(user))
            net.rewire(user, user.spec, list(ins), list(outs), made_by=self.name)
        net.remove_container(made)
        return True


def _distance(net: Network, op: Op) -> int | None:
    """How far a copy of the whole of a container moves each of its elements; None of anything else."""
    p = op.spec
    if not isinstance(p, LoopNest) or p.inner or p.inputs != p.outputs:
        return None
    pair = p.as_copy()
    if pair is None:
        return None
    load, store = pair
    (source,), (target,) = net.ins(op), net.outs(op)
    c = net.containers[source.data]
    same = all(a == b for n, a, b in zip(p.dims, load.strides, store.strides, strict=True) if n > 1)
    whole = same and not source.offset and _walk(p.dims, load.strides) == _walk(c.shape, c.strides)
    return target.offset if whole else None


def _walk(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """The elements that loops visit, as (stride, extent) of as few loops as possible, the smallest stride first."""
    found: list[tuple[int, int]] = []
    for step, n in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if found and step == found[-1][0] * found[-1][1]:
            found[-1] = found[-1][0], found[-1][1] * n
        else:
            found.append((step, n))
    return found


def _depending(net: Network, data: str) -> set[Op]:
    """The operators that need what ``data`` holds, directly or through others."""
    found: set[Op] = set()
    waiting = net.readers(data)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [r for o in net.outs(op) for r in net.readers(o.data)]
    return found
