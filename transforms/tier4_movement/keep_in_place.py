"""What an update leaves as it was is not moved.

    y = x; y[rows] = v, in place of x     -->   y[rows] = v
    y[:3] = v; y[3:] = x[3:], in place of x   -->   y[:3] = v

An update's memory holds the input's contents before its first write, so a copy of an element to its own place does nothing. That is no
longer visible in the graph afterwards, which is why this comes last: no pass after it may give an update memory of its own. Saves
reading and writing what stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import compact
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.network import Network
from dcir.ir.statements import Load, Statement, Store
from dcir.ir.updates import keeps_most
from dcir.ops.library.scatter import ScatterSpec
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class KeepInPlace(Pass):
    """Drop the copies of elements of updated inputs to themselves."""

    tier: ClassVar[int] = 4
    after: ClassVar[tuple[str, ...]] = ("write-in-place", "reuse-saved-tensors", "reuse-result-buffers")
    final: ClassVar[bool] = True
    in_bodies: ClassVar[bool] = False

    def apply(self, net: Network) -> PassResult:
        """Visit the writers of updates."""
        outcome = PassResult.of(net)
        for data, source in net.updates.items():
            for op in net.writers(data):
                if isinstance(op.spec, LoopNest):
                    self._lean(net, op, data, source, outcome)
                elif isinstance(op.spec, ScatterSpec) and not op.spec.kept and keeps_most(net, op, data, source):
                    if not outcome.allowed(self, net, op):
                        continue
                    before = sum(map(sum, op.spec.footprint()))
                    net.rewire(op, replace(op.spec, kept=True), net.ins(op), net.outs(op), made_by=self.name)
                    outcome.saved_bytes += before - sum(map(sum, op.spec.footprint()))
                    outcome.passed((op,))
        return outcome

    def _lean(self, net: Network, op: Op, data: str, source: str, outcome: PassResult) -> None:
        """Take out the stores of a loop nest that change nothing."""
        p, ins, outs = op.known(LoopNest), net.ins(op), net.outs(op)

        def idle(s: Statement) -> bool:
            if not isinstance(s, Store) or outs[s.operand].data != data:
                return False
            load = p.body[s.args[0]]
            if not isinstance(load, Load) or load.args or ins[load.operand].data != source:
                return False
            same = all(a == b for n, a, b in zip(p.dims, load.strides, s.strides, strict=True) if n > 1)
            return same and ins[load.operand].offset == outs[s.operand].offset

        if not any(map(idle, p.body)):
            return
        rest = [s for s in p.body if isinstance(s, Store) and not idle(s)]
        if not rest and net.writers(data) == [op]:
            outcome.missed("nothing else is written", (op,))
            return
        if not outcome.allowed(self, net, op):
            return
        outcome.saved_bytes += p.bytes_moved()
        if not rest:
            net.remove_op(op, into=())
            outcome.passed((op,))
            return
        lean = compact(simplify(p, lambda s: isinstance(s, Store) and not idle(s)), ins, outs)
        net.rewire(op, lean.program, lean.ins, lean.outs, made_by=self.name)
        outcome.saved_bytes -= lean.program.bytes_moved()
        outcome.passed((op,))
