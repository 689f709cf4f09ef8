"""What a library makes in memory of its own stays there, instead of being copied into scratch memory.

    t = conv(x, w) by a library: t' = library(x, w); t = t', in the arena     -->   t = library(x, w)

PyTorch's convolutions take no memory for their results. One that is a whole container becomes a tensor that the call holds until it has
been read for the last time, as a result of the network that a library makes is already. Saves reading and writing every such result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network
from dcir.ir.refusal import Refusal
from dcir.ops.library.library_call import LibraryCall
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class LeaveResultsToLibraries(Pass):
    """Give transients that libraries make no place in scratch memory."""

    tier: ClassVar[int] = 4
    after: ClassVar[tuple[str, ...]] = ("call-libraries", "order-execution")
    before: ClassVar[tuple[str, ...]] = ("plan-arena",)
    final: ClassVar[bool] = True
    in_bodies: ClassVar[bool] = False  # a body's memory is that of its trips

    def apply(self, net: Network) -> PassResult:
        """Visit the calls of libraries."""
        outcome = PassResult.of(net)
        for op in net.ops():
            if not isinstance(op.spec, LibraryCall) or not op.spec.makes:
                continue
            reason = _refused(net, op, op.spec)
            if reason is not None:
                outcome.missed(reason, (op,))
                continue
            if not outcome.allowed(self, net, op):
                continue
            (out,) = net.outs(op)
            net.promote(out.data)
            outcome.passed((op,))
            outcome.saved_bytes += 2 * net.containers[out.data].nbytes
        return outcome


def _refused(net: Network, op: Op, spec: LibraryCall) -> Refusal | None:
    """Why what a library makes has to be copied; None of what it makes for the caller, too."""
    (out,) = net.outs(op)
    c, (shape, strides, _) = net.containers[out.data], spec.outs[0]
    if c.role != "transient":
        return Refusal("it is a result already")
    if net.writers(out.data) != [op] or (out.offset, c.shape, c.strides) != (0, shape, strides):
        return Refusal("it is a part of what others write, too")
    return Refusal("it has a place") if net.memory.is_planned(out.data) else None
