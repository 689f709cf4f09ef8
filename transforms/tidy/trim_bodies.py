"""Loops and branches are given, and give, what somebody reads.

    y, g = loop(x, w): y_t, g_t = f(x_t)   -->   y = loop(x): y_t = f(x_t)        where nobody reads g, and f not w

What has computed a result that is gone is dead code of the body (``remove_dead_code.py``), and what was read for that alone goes the next
time. Saves the traffic of stacked results that only a backward pass would read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.network import Network
from dcir.ops.library.regions import Region
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class TrimBodies(Pass):
    """Leave out results without readers, and inputs that bodies do not read."""

    tier: ClassVar[int] = 0

    def apply(self, net: Network) -> PassResult:
        """Visit loops and branches, the last one first: what one no longer reads is a result that another need not give."""
        outcome = PassResult.of(net)
        results = net.result_containers()
        for op in reversed(net.ops()):
            spec, ins, outs = op.spec, net.ins(op), net.outs(op)
            if not isinstance(spec, Region):
                continue
            wanted = [o.data in results or bool(net.readers(o.data)) for o in outs]
            gone_in, gone_out = spec.unused(wanted)
            if len(gone_out) == len(outs) or not (gone_in or gone_out):
                continue  # dead code as a whole
            if not outcome.allowed(self, net, op):
                continue
            before = op.spec.bytes_moved()
            lean = spec.without(gone_in, gone_out)
            names = {outs[i].data for i in gone_out}
            net.rewire(
                op, lean, [o for i, o in enumerate(ins) if i not in gone_in],
                [o for i, o in enumerate(outs) if i not in gone_out], made_by=self.name,
            )  # fmt: skip
            gone = {name for name in names if not net.writers(name) and not net.readers(name)}
            for name in gone:
                net.remove_container(name)
            net.memory = net.memory.without(gone)
            outcome.passed((op,))
            outcome.saved_bytes += before - lean.bytes_moved()
        return outcome
