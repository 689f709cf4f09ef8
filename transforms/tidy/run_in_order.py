"""The reference: every operator that is equal to a loop nest runs as one, its loops in order on one thread.

    product m512 n768 k3072   -->   runs as loops: for i0 < 512: for i1 < 768: for i2 < 3072

Level 0 is this pass alone. Nothing is tiled, packed, reordered or dealt out and no vectors are asked for, so that what is generated can be
read, and what the tiers above bring can be measured against it. Operators that are no loop nest (attention, sorts, scans) have the one form
of their kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dcir.cost.target import target_of
from dcir.ir.network import Network
from dcir.ir.schedule import PLAIN
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class RunInOrder(Pass):
    """Set the plainest schedule wherever there is a loop nest."""

    tier: ClassVar[int] = 0

    def apply(self, net: Network) -> PassResult:
        """Visit every operator that has code of its own."""
        outcome, target = PassResult.of(net), target_of(net)
        if not target.schedules:
            outcome.missed(f"{target.name} runs loops as it likes")
            return outcome
        for op in net.ops():
            if op.spec.calls_out or op.spec.bodies():
                continue
            if op.spec.loop_nest() is None:
                outcome.missed(f"{op.spec.kind} is equal to no loop nest", (op,))
            elif op.own_schedule != PLAIN and outcome.allowed(self, net, op):
                op.own_schedule = PLAIN
                outcome.passed((op,))
        return outcome
