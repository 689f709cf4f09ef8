"""Operators that read the same container run in one nest, so that it is read once.

    a = f(x); b = g(x)                 -->   a, b = f(x), g(x)
    s = sum(dy); t = sum(dy * xhat)    -->   s, t in one sweep over dy

Both walk the shared container with all their loops, in any order of loops. Saves one read of what they share.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.cost_answers import pays
from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import Fused, Match, extend, keeps_places, match
from dcir.ir.loop_forms import drop_unit_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ir.statements import Load
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class FuseSiblings(Pass):
    """Horizontal fusion of loop nests.

    Attributes:
        max_operands: most operands of a fused kernel.
        max_statements: most statements of a fused kernel.
        min_bytes: least size of a shared container; below it a kernel call is all there is to save.
        max_distance: how far apart in execution order two siblings may be; farther apart the data has left the cache
            and living longer costs memory.
    """

    tier: ClassVar[int] = 2
    max_operands: int = 20
    max_statements: int = 160
    min_bytes: int = 1024
    max_distance: int = 64

    def apply(self, net: Network) -> PassResult:
        """Fuse pairs of readers, container by container."""
        outcome = PassResult.of(net)
        position = {op: float(i) for i, op in enumerate(net.ops())}
        static = net.preparable()
        for data in list(net.containers):
            if data in net.containers and pays("read twice", net.containers[data].nbytes >= self.min_bytes):
                self._container(net, data, position, static, outcome)
        return outcome

    def _container(
        self, net: Network, data: str, position: dict[Op, float], static: set[Op], outcome: PassResult
    ) -> None:
        done = False
        while not done:
            done = True
            readers = sorted((r for r in net.readers(data) if isinstance(r.spec, LoopNest)), key=position.__getitem__)
            for first, second in itertools.pairwise(readers):
                if (first in static) != (second in static):
                    outcome.missed("one of them is computed once, before the calls", (first, second))
                    continue
                answer = self._try(net, data, first, second, position)
                if isinstance(answer, Refusal):
                    outcome.missed(answer, (first, second))
                    continue
                if first in static:
                    static.add(answer)
                outcome.passed((first, second))
                done = False
                break

    def _try(self, net: Network, data: str, first: Op, second: Op, position: dict[Op, float]) -> Op | Refusal:
        at = _place(net, first, second, position)
        if at is None:
            return Refusal("one depends on the other")
        if position[second] - position[first] > self.max_distance:
            return Refusal("they are far apart in execution order")
        a, b = drop_unit_loops(first.known(LoopNest)), drop_unit_loops(second.known(LoopNest))
        if len(a.body) + len(b.body) > self.max_statements:
            return Refusal("the fused kernel would be too long")
        if len(a.inputs) + len(b.inputs) + len(a.outputs) + len(b.outputs) > self.max_operands:
            return Refusal("the fused kernel would have too many operands")
        if b.inner and not a.inner:
            a, b, first, second = b, a, second, first
        if a.inner and not b.inner and pays("rows starve threads", math.prod(a.outer) < 64):
            return Refusal("the reduction has too few rows for more work")
        fused = _merge(net, data, first, second, a, b)
        if isinstance(fused, Refusal):
            return fused
        if not net.allows(self, first, second):
            return SWITCHED_OFF
        new = net.add_op(fused.program, fused.ins, fused.outs, came_from=(first, second), made_by=self.name, before=at)
        position[new] = position[at]
        for op in (first, second):
            net.remove_op(op, into=new)
            del position[op]
        return new


def _place(net: Network, first: Op, second: Op, position: dict[Op, float]) -> Op | None:
    readers = {r for o in net.outs(first) for r in net.readers(o.data)}
    if all(position[r] > position[second] for r in readers):
        return second
    sources = [w for o in net.ins(second) for w in net.writers(o.data)]
    return first if all(position[w] < position[first] for w in sources) else None


def _merge(net: Network, data: str, first: Op, second: Op, a: LoopNest, b: LoopNest) -> Fused | Refusal:
    ins_a, ins_b = net.ins(first), net.ins(second)
    loads_a = [s for s in a.body if isinstance(s, Load) and not s.args and ins_a[s.operand].data == data]
    loads_b = [
        (i, ins_b[s.operand].offset)
        for i, s in enumerate(b.body)
        if isinstance(s, Load) and not s.args and ins_b[s.operand].data == data
    ]
    refusal = Refusal("they share it through indices or a mask only")
    for load in loads_a:
        for i, offset in loads_b:
            m = match(a, load, ins_a[load.operand].offset, b, [(i, offset)])
            if isinstance(m, Refusal):
                refusal = m
                continue
            place = _one_to_one(a, m)
            if place is None:
                refusal = Refusal("their loops differ")
                continue
            return extend(a, ins_a, net.outs(first), m, ins_b, net.outs(second), {}, place, keep=lambda s: True)
    return refusal


def _one_to_one(a: LoopNest, m: Match) -> list[int] | None:
    """For every loop of the second program the loop of the first it equals, with reduced loops on reduced loops."""
    place: dict[int, int] = {}
    for d in range(len(a.dims)):
        k = m.partner(d)
        if k is None or k in place or m.consumer.dims[k] != a.dims[d]:
            return None
        place[k] = d
    b = m.consumer
    if len(place) != len(b.dims):
        return None
    reduced = {place[k] for k in range(len(b.outer), len(b.dims))}
    if b.inner and reduced != set(range(len(a.outer), len(a.dims))):
        return None
    numbers = [place[k] for k in range(len(b.dims))]
    return numbers if keeps_places(b, numbers) else None
