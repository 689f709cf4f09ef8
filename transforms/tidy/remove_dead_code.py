"""What nobody reads is not computed.

    a = f(x); b = g(x); return b   -->   b = g(x); return b
    a, b = f(x), g(x); return b    -->   b = g(x); return b          one program, one store fewer

An operator is needed if the caller or a needed operator reads one of its outputs; one sweep from the last operator to
the first finds all that is not. Saves the work, the traffic and the containers of what is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import compact
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.network import Network
from dcir.ir.statements import Store
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class RemoveDeadCode(Pass):
    """Drop operators without readers, stores without readers, and containers without operators."""

    tier: ClassVar[int] = 0

    def apply(self, net: Network) -> PassResult:
        """One sweep against the order of execution."""
        outcome = PassResult.of(net)
        results = net.result_containers()
        for op in reversed(net.ops()):
            outs = net.outs(op)
            live = {o.data for o in outs if o.data in results or net.readers(o.data)}
            if live and isinstance(op.spec, LoopNest):
                self._trim(net, op, live, outcome)
            elif live:
                if any(o.data not in live for o in outs):
                    outcome.missed("an operator that is no loop nest computes all its results", (op,))
            elif op.spec.has_effects:
                outcome.missed("the operator has effects, or moves the random generator", (op,))
            elif outcome.allowed(self, net, op):
                outcome.saved_bytes += op.spec.bytes_moved()
                net.remove_op(op, into=())
                outcome.passed((op,))
        self._containers(net, results, outcome)
        return outcome

    def _trim(self, net: Network, op: Op, live: set[str], outcome: PassResult) -> None:
        """Stores to ``live`` containers stay, with what they need."""
        p, ins, outs = op.known(LoopNest), net.ins(op), net.outs(op)
        needed = simplify(p, lambda s: isinstance(s, Store) and outs[s.operand].data in live)
        lean = compact(needed, ins, outs)
        if len(needed.body) == len(p.body) and len(lean.ins) == len(ins) and len(lean.outs) == len(outs):
            return
        if not outcome.allowed(self, net, op):
            return
        outcome.saved_bytes += p.bytes_moved() - lean.program.bytes_moved()
        net.rewire(op, lean.program, lean.ins, lean.outs, made_by=self.name)
        outcome.passed((op,))

    def _containers(self, net: Network, results: set[str], outcome: PassResult) -> None:
        gone: list[str] = []
        for name, c in list(net.containers.items()):
            internal = c.role in ("transient", "result") and name not in results
            if internal and not net.writers(name) and not net.readers(name):
                net.remove_container(name)
                gone.append(name)
        net.memory = net.memory.without(gone)
        outcome.passed(count=len(gone), reason="containers that nobody uses")
