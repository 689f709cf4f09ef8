"""What depends on nothing but parameters is computed when they change, not in every call.

    w' = pack(w); y = x @ w'    -->    prepare: w' = pack(w)    call: y = x @ w'

A parameter changes between calls, when an optimiser or ``load_state_dict`` writes it. Whatever is computed from parameters,
buffers and constants alone, its results not being the network's, moves into a second program that runs before the first call and
again once a parameter has changed. What the calls read of it gets a place that outlives them. Saves the traffic and the work of
those operators in every call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.memory_plan import ALIGNMENT, PREPARED, aligned
from dcir.ir.network import Network
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class PrepareStatic(Pass):
    """Places for what static operators hand to the others.

    Attributes:
        alignment: of every place, in bytes.
    """

    tier: ClassVar[int] = 0
    after: ClassVar[tuple[str, ...]] = ("pack-weights", "use-winograd")
    final: ClassVar[bool] = True
    in_bodies: ClassVar[bool] = False
    alignment: int = ALIGNMENT

    def apply(self, net: Network) -> PassResult:
        """Fill the block of prepared values; an older plan of it is thrown away."""
        outcome = PassResult.of(net)
        static = net.preparable()
        places: dict[str, int] = {}
        size = 0
        for op in net.ops():
            if op not in static:
                continue
            outcome.saved_bytes += net.moved_by(op)
            for o in net.outs(op):
                readers = net.readers(o.data)
                if o.data not in places and any(r not in static for r in readers):
                    places[o.data] = size
                    size += aligned(net.containers[o.data].nbytes, self.alignment)
        planned = net.memory.with_block(PREPARED, size, places)
        if planned != net.memory:
            outcome.passed(count=len(static), bytes_saved=outcome.saved_bytes)
            net.memory = planned
        return outcome
