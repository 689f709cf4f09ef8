"""Transpositions and joins become strides of the operators around them, and no data moves.

    t = x.permute(...).contiguous(); y = t @ w     -->   y = x @ w, x read with the permuted strides
    a = x @ v; c[:, :n] = a; c[:, n:] = b          -->   x @ v writes into c[:, :n] with the strides of c

A copy maps the elements of one window to those of another. Its readers read its source instead if the arithmetic of
``relayout.py`` puts all their accesses there; all readers must agree, else the copy stays for the others anyway. Failing
that, the one operator that wrote the source writes the target, by the same arithmetic the other way round. Saves reading
and writing all that was copied.

    s[j] = sum_i (c[i, j] = t[j, i])               -->   s[j] = sum_i c[i, j], and whoever wrote t writes c

A program that copies beside what it computes does no more than compute, if the writer of the source can write the target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import compact
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Load, Read, Store
from dcir.ops.library.torch_call import TorchCall
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tier3_layout.layout.relayout import BoundOperator, LayoutCopy, copy_between, copy_of, moved


class _Rewired(NamedTuple):
    """What an operator will be."""

    op: Op
    to: BoundOperator


@dataclass(frozen=True)
class SinkCopies(Pass):
    """Let the readers of a copy read its source, or the writer of its source write its target."""

    tier: ClassVar[int] = 3

    def apply(self, net: Network) -> PassResult:
        """Visit the copies in order of execution."""
        outcome = PassResult.of(net)
        results = net.result_containers()
        for op in net.ops():
            copy = copy_of(net, op)
            if copy is None:
                self._beside(net, op, results, outcome)
                continue
            plan, gone = self._readers(net, copy, results), copy.target.at.data
            if isinstance(plan, Refusal):
                outcome.missed(plan, (op,))
                plan, gone = self._writer(net, op, copy, results), copy.source.at.data
            if isinstance(plan, Refusal):
                outcome.missed(plan, (op,))
                continue
            if not outcome.allowed(self, net, op):
                continue
            outcome.saved_bytes += net.moved_by(op)
            net.remove_op(op, into=[new.op for new in plan])
            self._rewire(net, op, plan, gone, outcome)
            outcome.passed((op,))
        return outcome

    def _rewire(self, net: Network, op: Op, plan: list[_Rewired], gone: str, outcome: PassResult) -> None:
        """Carry out a plan; what an operator reads twice now, from where it copied before, counts once. ``op`` makes the copy no more."""
        for new in plan:
            outcome.saved_bytes += net.moved_by(new.op)
            net.rewire(new.op, *new.to, made_by=self.name, came_from=(op,))
            outcome.saved_bytes -= net.moved_by(new.op)
        net.remove_container(gone)

    def _beside(self, net: Network, op: Op, results: set[str], outcome: PassResult) -> None:
        """Take the copies out of a program that computes something too."""
        while isinstance(op.spec, LoopNest) and len(op.spec.outputs) > 1:
            body = op.spec.body
            stores = [(s, body[s.args[0]]) for s in body if isinstance(s, Store)]
            for store, load in [(s, load) for s, load in stores if isinstance(load, Load)]:
                plan = self._taken_out(net, op, load, store, results)
                if isinstance(plan, Refusal):
                    outcome.missed(plan, (op,))
                    continue
                if not outcome.allowed(self, net, op):
                    continue
                self._rewire(net, op, plan, net.ins(op)[load.operand].data, outcome)
                outcome.passed((op,))
                break
            else:
                return

    def _taken_out(self, net: Network, op: Op, load: Load, store: Store, results: set[str]) -> list[_Rewired] | Refusal:
        """The writer of what ``load`` and ``store`` copy as a writer of where to, and ``op`` as its reader."""
        p, ins, outs = op.known(LoopNest), net.ins(op), net.outs(op)
        source, target = ins[load.operand], outs[store.operand]
        if p.inputs[load.operand] != p.outputs[store.operand] or load.args:
            return Refusal("it is not copied as it is")
        if net.writers(target.data) != [op] or [o.data for o in outs].count(target.data) > 1:
            return Refusal("other operators write into the copy's container")
        if any(isinstance(s, Read) and ins[s.operand].data == source.data and s != load for s in p.body):
            return Refusal("the source is read in another way too")
        types = (p.inputs[load.operand],)
        body = (Load(0, load.strides, load.dtype), Store(0, store.strides, store.dtype, (0,)))
        copy = copy_between(LoopNest(p.dims, (), types, types, body), source, target)
        plan = self._writer(net, op, copy, results)
        if isinstance(plan, Refusal):
            return plan
        reads = load.at(len(p.inputs), store.strides)
        changed = [reads if s == load else s for s in p.body]
        kept = [i for i, s in enumerate(changed) if s != store]
        place = {old: new for new, old in enumerate(kept)}
        rest = tuple(changed[i].renumbered(place) for i in kept)
        lean = compact(replace(p, inputs=(*p.inputs, *types), body=rest), [*ins, target], outs)
        return [*plan, _Rewired(op, BoundOperator(lean.program, lean.ins, lean.outs))]

    def _readers(self, net: Network, copy: LayoutCopy, results: set[str]) -> list[_Rewired] | Refusal:
        """All readers of the copy as readers of its source."""
        data = copy.target.at.data
        if data in results:
            return Refusal("the copy makes a result of the network")
        if len(net.writers(data)) > 1:
            return Refusal("other operators write into the copy's container")
        plan = []
        for reader in net.readers(data):
            if isinstance(reader.spec, TorchCall):
                return Refusal("calls into torch keep the layout of their operands")
            new = moved(BoundOperator(reader.spec, net.ins(reader), net.outs(reader)), copy, copy.target, "in")
            if isinstance(new, Refusal):
                return new
            plan.append(_Rewired(reader, new))
        return plan or Refusal("nobody reads the copy")

    def _writer(self, net: Network, op: Op, copy: LayoutCopy, results: set[str]) -> list[_Rewired] | Refusal:
        """The writer of the copy's source as a writer of its target."""
        data = copy.source.at.data
        if net.containers[data].role in ("input", "constant") or data in results:
            return Refusal("the copy's source is an input or a result")
        writers = net.writers(data)
        if len(writers) != 1 or net.readers(data) != [op]:
            return Refusal("the copy's source has other readers or writers")
        writer = writers[0]
        new = moved(BoundOperator(writer.spec, net.ins(writer), net.outs(writer)), copy, copy.source, "out")
        return new if isinstance(new, Refusal) else [_Rewired(writer, new)]
