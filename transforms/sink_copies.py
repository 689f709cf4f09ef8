"""Transpositions and joins become strides of the operators around them, and no data moves.

    t = x.permute(...).contiguous(); y = t @ w     -->   y = x @ w, x read with the permuted strides
    a = x @ v; c[:, :n] = a; c[:, n:] = b          -->   x @ v writes into c[:, :n] with the strides of c

A copy maps the elements of one window to those of another. Its readers read its source instead if the arithmetic of
``relayout.py`` puts all their accesses there; all readers must agree, else the copy stays for the others anyway. Failing
that, the one operator that wrote the source writes the target, by the same arithmetic the other way round. Saves reading
and writing all that was copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from dcir.ir.network import Network
from dcir.ir.nodes import Op
from dcir.ops.torch_call import TorchCall
from dcir.transforms.base import Outcome, Pass
from dcir.transforms.relayout import Copy, Wired, copy_of, moved


class _Rewired(NamedTuple):
    """What an operator will be."""

    op: Op
    to: Wired


@dataclass(frozen=True)
class SinkCopies(Pass):
    """Let the readers of a copy read its source, or the writer of its source write its target."""

    tier: ClassVar[int] = 3

    def apply(self, net: Network) -> Outcome:
        """Visit the copies in order of execution."""
        outcome = Outcome()
        results = net.result_containers()
        for op in net.ops():
            copy = copy_of(net, op)
            if copy is None:
                continue
            plan, gone = self._readers(net, copy, results), copy.target.at.data
            if isinstance(plan, str):
                outcome.refuse(plan)
                plan, gone = self._writer(net, op, copy, results), copy.source.at.data
            if isinstance(plan, str):
                outcome.refuse(plan)
                continue
            outcome.changed += 1
            outcome.saved_bytes += op.spec.bytes_moved()
            net.remove_op(op)
            for new in plan:
                net.rewire(new.op, *new.to, made_by=self.name)
            net.remove_container(gone)
        return outcome

    def _readers(self, net: Network, copy: Copy, results: set[str]) -> list[_Rewired] | str:
        """All readers of the copy as readers of its source."""
        data = copy.target.at.data
        if data in results:
            return "the copy makes a result of the network"
        if len(net.writers(data)) > 1:
            return "other operators write into the copy's container"
        plan = []
        for reader in net.readers(data):
            if isinstance(reader.spec, TorchCall):
                return "calls into torch keep the layout of their operands"
            new = moved(Wired(reader.spec, net.ins(reader), net.outs(reader)), copy, copy.target, "in")
            if isinstance(new, str):
                return new
            plan.append(_Rewired(reader, new))
        return plan or "nobody reads the copy"

    def _writer(self, net: Network, op: Op, copy: Copy, results: set[str]) -> list[_Rewired] | str:
        """The writer of the copy's source as a writer of its target."""
        data = copy.source.at.data
        if net.containers[data].role in ("input", "constant") or data in results:
            return "the copy's source is an input or a result"
        writers = net.writers(data)
        if len(writers) != 1 or net.readers(data) != [op]:
            return "the copy's source has other readers or writers"
        writer = writers[0]
        new = moved(Wired(writer.spec, net.ins(writer), net.outs(writer)), copy, copy.source, "out")
        return new if isinstance(new, str) else [_Rewired(writer, new)]
