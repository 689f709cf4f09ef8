"""Equal operators on equal operands run once.

    a = f(x); b = f(x); y = g(a, b)   -->   a = f(x); y = g(a, a)

Equal means the same spec on the same windows of the same containers. Readers of the second result read the first
instead, and since operators are visited in order of execution, chains of equal operators merge from their beginning on.
Results of the network never share a container. Saves the second operator's work, traffic and container.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class MergeCommonSubexpressions(Pass):
    """Merge equal operators."""

    tier: ClassVar[int] = 0

    def apply(self, net: Network) -> PassResult:
        """One sweep in order of execution."""
        outcome = PassResult.of(net)
        seen: dict[Any, Op] = {}
        results = net.result_containers()
        for op in net.ops():
            spec = op.spec
            # By text where a spec is no program: 0.0 == -0.0 and 1 == True among the arguments of a call into torch.
            key = (spec if isinstance(spec, LoopNest) else repr(spec), tuple(net.ins(op)))
            first = seen.setdefault(key, op)
            if first is op:
                continue
            reason = self._merge(net, first, op, results)
            if reason is not None:
                outcome.missed(reason, (first, op))
                continue
            outcome.passed((first, op))
            outcome.saved_bytes += sum(sum(table) for table in spec.footprint())
        return outcome

    def _merge(self, net: Network, first: Op, second: Op, results: set[str]) -> Refusal | None:
        """Let readers of ``second`` read ``first``; the reason why not."""
        if first.spec.has_effects:
            return Refusal("operators with effects or random numbers differ from call to call")
        ours, theirs = net.outs(first), net.outs(second)
        moves: dict[str, str] = {}  # container that goes -> container that stays
        for a, b in zip(ours, theirs, strict=True):
            if a.offset != b.offset or net.containers[a.data].size != net.containers[b.data].size:
                return Refusal("they write into different places of their containers")
            if len(net.writers(a.data)) > 1 or len(net.writers(b.data)) > 1:
                return Refusal("other operators write into the same container")
            if a.data in results and b.data in results:
                return Refusal("both are results of the network")
            gone, stays = (a, b) if b.data in results else (b, a)
            if moves.setdefault(gone.data, stays.data) != stays.data:
                return Refusal("they write into different places of their containers")
        if not net.allows(self, first, second):
            return SWITCHED_OFF
        for old, new in moves.items():
            for reader in net.readers(old):
                net.rewire(reader, reader.spec, _renamed(net.ins(reader), old, new), net.outs(reader))
        net.remove_op(second, into=first)
        outs = [Operand(moves.get(o.data, o.data), o.offset) for o in ours]
        if outs != ours:  # a result of the network keeps its container
            net.rewire(first, first.spec, net.ins(first), outs)
        for name in moves:
            net.remove_container(name)
        return None


def _renamed(operands: Sequence[Operand], old: str, new: str) -> list[Operand]:
    return [Operand(new, o.offset) if o.data == old else o for o in operands]
