"""Library nodes as the loop nests that they are defined by, which every pass sees and rewrites.

    convolution, product, attention, scan, sort ...   -->   loop nests, one after the other, and arrays between them

A library node has two expansions: "kernel", its emitter's register tiles, and "loops". This pass is the choice of the second one: by a
user or a pass, who say which nodes (``only``), and by cost, where a product has so few operations that a kernel of its own costs more
time than its loops inside of what surrounds it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class ExpandLoops(Pass):
    """Take library nodes apart.

    Attributes:
        only: a regular expression; expanded is what it is found in: label, description or place in the user's model.
        most: operations of a node that is expanded, at most; None: any number.
    """

    tier: ClassVar[int] = 1
    only: str = ""
    most: int | None = None

    def apply(self, net: Network) -> PassResult:
        """Visit every library node."""
        outcome = PassResult.of(net)
        for op in net.ops():
            if isinstance(op.spec, LoopNest) or not self._wanted(op):
                continue
            why = self.refusal(op)
            if why is None and not net.allows(self, op):
                why = SWITCHED_OFF
            if why is None:
                expand(net, op, self.name)
                outcome.passed((op,))
            else:
                outcome.missed(why, (op,))
        return outcome

    def _wanted(self, op: Op) -> bool:
        return re.search(self.only, f"{op.label} {op.spec.describe()} {op.origin}") is not None

    def refusal(self, op: Op) -> Refusal | None:
        """Why a library node is not expanded."""
        if op.spec.calls_out:
            return Refusal("a call into torch has no loops")
        if op.spec.bodies():
            return Refusal("a loop or branch over a network is no loop nest")
        if self.most is not None and op.spec.operations() > self.most:
            return Refusal("a kernel is faster")
        if op.spec.steps() is None:
            return Refusal("no loops are known for it")
        return None


def expand(net: Network, op: Op, made_by: str) -> list[Op]:
    """Replace a library node by its loop nests; these."""
    found = op.spec.steps()
    assert found is not None
    temporaries, steps = found
    operands = {f"a{i}": o for i, o in enumerate(net.ins(op))} | {f"o{i}": o for i, o in enumerate(net.outs(op))}
    for name, dtype, size in temporaries:
        operands[name] = Operand(net.add_container((max(size, 1),), dtype))
    made = [
        net.add_op(
            nest,
            [operands[n] for n in reads],
            [operands[n] for n in writes],
            came_from=(op,),
            made_by=made_by,
            before=op,
        )
        for nest, reads, writes in steps
    ]
    net.remove_op(op, into=made)
    return made
