"""What is the same in every trip of a loop is computed once, before it.

    loop: y_t = f(x_t, pack(w))    -->    w' = pack(w)
                                          loop: y_t = f(x_t, w')

An operator of the body that reads nothing but what does not change, and whose results are not the body's, moves in front of the loop; what
the others read of it is an input of the body. Weights packed for the body's products are laid out once in this way, and when they
are parameters, once for all calls. Saves that work and traffic in all trips but one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.body import Body
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand
from dcir.ir.statements import Gather
from dcir.ops.library.regions import LoopSpec, Region
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class HoistInvariants(Pass):
    """Move operators of what does not change out of loops."""

    tier: ClassVar[int] = 1

    def apply(self, net: Network) -> PassResult:
        """Visit loops; what one inside of another hoists may leave that one when the pass runs again."""
        outcome = PassResult.of(net)
        for op in net.ops():
            if isinstance(op.spec, Region) and op.spec.fixed():
                self._hoist(net, op, op.spec, outcome)
        return outcome

    def _hoist(self, net: Network, op: Op, spec: Region, outcome: PassResult) -> None:
        bodies = [body.copy() for body in spec.bodies()]
        movable = [body.preparable() for body in bodies]
        found = [[inner for inner in body.ops() if inner in ready] for body, ready in zip(bodies, movable, strict=True)]
        if not isinstance(spec, LoopSpec):
            # It may not run at all, and then an index that it would have met is no error.
            found = [[i for i in ready if not _may_fail(i)] for ready in found]
            found = [_closed(body, ready) for body, ready in zip(bodies, found, strict=True)]
        if not any(found) or not outcome.allowed(self, net, op):
            return
        outer = net.ins(op)
        given: list[Operand] = []
        hoisted: dict[Op, Op] = {}
        for body, ready in zip(bodies, found, strict=True):
            moved: dict[str, Operand] = dict(zip(body.inputs, outer, strict=False))
            for inner in ready:
                outs = []
                for o in body.outs(inner):
                    if o.data not in moved:
                        c = body.containers[o.data]
                        moved[o.data] = Operand(net.add_container(c.shape, c.dtype, strides=c.strides))
                    outs.append(Operand(moved[o.data].data, o.offset))
                ins = [Operand(moved[o.data].data, moved[o.data].offset + o.offset) for o in body.ins(inner)]
                hoisted[inner] = net.add_op(inner.spec, ins, outs, came_from=(inner,), made_by=self.name, before=op)
                outcome.saved_bytes += (spec.runs() - 1) * body.moved_by(inner)
            names = list(dict.fromkeys(o.data for inner in ready for o in body.outs(inner)))
            for inner in ready:
                body.remove_op(inner, into=hoisted[inner])
            for name in names:
                c, read = body.containers[name], body.readers(name)
                if not read:
                    body.remove_container(name)
                    continue
                for other in bodies:
                    new = other.add_container(c.shape, c.dtype, "input", c.strides)
                    other.static.add(new)
                    if other is body:
                        for reader in read:
                            renamed = [Operand(new, o.offset) if o.data == name else o for o in body.ins(reader)]
                            body.rewire(reader, reader.spec, renamed, body.outs(reader))
                        body.remove_container(name)
                given.append(moved[name])
        made = spec.with_fixed([Body.of(body) for body in bodies], len(given))
        net.rewire(op, made, [*outer, *given], net.outs(op), made_by=self.name)
        outcome.passed((op,), count=sum(map(len, found)))


def _may_fail(op: Op) -> bool:
    return not isinstance(op.spec, LoopNest) or any(isinstance(s, Gather) for s in op.spec.body)


def _closed(body: Network, ready: list[Op]) -> list[Op]:
    """Those of some operators whose operands all come from others of them, or from outside."""
    kept = list(ready)
    while True:
        made = set(kept)
        left = [
            op for op in kept if all(made.issuperset(body.writers(o.data)) for o in (*body.ins(op), *body.outs(op)))
        ]
        if len(left) == len(kept):
            return left
        kept = left
