"""Fills and ranges are computed where they are read.

    c = full(2.0); y = x * c                  -->   y = x * 2.0
    i = arange(n); y = where(i < 4, x, 0)     -->   y = where(index < 4, x, 0)

A program without inputs writes numbers that are known when compiling: one number, or a short expression of its loop
indices. Readers that are loop nests take the number, or the expression at the place they read (see ``dcir.ir.fuse``);
operators are visited in order of execution, so a program that becomes constant thereby folds into its own readers. The
container dies with its last reader. Saves one write and all reads of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import Fused, compact, inline, match, moved_loads, plain_reads
from dcir.ir.loop_forms import drop_unit_loops
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import Refusal
from dcir.ir.scalars import evaluate
from dcir.ir.statements import Compute, Const, Gather, Index, Narrow, Read, Reduce, Statement, Store
from dcir.ir.types import compute_type
from dcir.transforms.base import Pass, PassResult

_ARITHMETIC = {"cast", "narrow", "add", "sub", "mul", "neg", "abs", "min", "max", "shr", "idiv_floor", "floor"}
_LOGIC = {"where", "and", "or", "xor", "not", "eq", "ne", "lt", "le", "gt", "ge"}


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Inline programs without inputs.

    Attributes:
        max_operations: longest expression of loop indices that is worth computing again in every reader.
        longest: in a reader that becomes a constant itself.
    """

    tier: ClassVar[int] = 0
    max_operations: int = 12
    longest: int = 48

    def apply(self, net: Network) -> PassResult:
        """One sweep in order of execution."""
        outcome = PassResult.of(net)
        results = net.result_containers()
        for op in net.ops():
            if not isinstance(op.spec, LoopNest):
                continue
            for data in dict.fromkeys(o.data for o in net.ins(op)):
                self._fold(net, op, data, outcome)
        for op in reversed(net.ops()):
            if self._constant(op) and not any(o.data in results or net.readers(o.data) for o in net.outs(op)):
                outs = {o.data for o in net.outs(op)}
                net.remove_op(op, into=())
                for name in outs:
                    if not net.writers(name):
                        net.remove_container(name)
                outcome.passed((op,), reason="nobody reads the constant any more")
        return outcome

    def _constant(self, op: Op) -> bool:
        return isinstance(op.spec, LoopNest) and not op.spec.inputs

    def _fold(self, net: Network, reader: Op, data: str, outcome: PassResult) -> None:
        writers = net.writers(data)
        if not any(self._constant(w) for w in writers):
            return
        if len(writers) > 1:
            outcome.missed("several operators write the container", (*writers, reader))
            return
        p, outs = writers[0].known(LoopNest), net.outs(writers[0])
        stores = [i for i, s in enumerate(p.body) if isinstance(s, Store) and outs[s.operand].data == data]
        if len(stores) > 1:
            outcome.missed("the constant is written in several parts", (*writers, reader))
            return
        value = _number(p, stores[0])
        before = reader.spec.bytes_moved()
        if value is not None:
            fused: Fused | Refusal = _with_number(
                reader.known(LoopNest), net.ins(reader), net.outs(reader), data, value
            )
        else:
            fused = self._with_expression(net, writers[0], stores[0], reader, data)
        if isinstance(fused, Refusal):
            outcome.missed(fused, (*writers, reader))
            return
        if not outcome.allowed(self, net, *writers, reader):
            return
        outcome.saved_bytes += before - fused.program.bytes_moved()
        net.rewire(reader, fused.program, fused.ins, fused.outs, made_by=self.name, came_from=writers)
        outcome.passed((*writers, reader))

    def _with_expression(self, net: Network, writer: Op, store: int, reader: Op, data: str) -> Fused | Refusal:
        p = writer.known(LoopNest)
        work = [s.op for s in p.body if not isinstance(s, (Const, Index, Store))]
        most = self.max_operations
        if all(o.data == data for o in net.ins(reader)) and reader.known(LoopNest).points() <= p.points():
            most = self.longest  # the reader becomes a constant, and computes it as often
        if len(work) > most or not (_ARITHMETIC | _LOGIC).issuperset(work):
            return Refusal("the constant costs more to compute than to read")
        p = drop_unit_loops(_rounded(p, store))
        (only,), outs = (s for s in p.body if isinstance(s, Store)), net.outs(writer)
        c, ins = drop_unit_loops(reader.known(LoopNest)), net.ins(reader)
        reads = plain_reads(c, ins, data)
        if reads is None:
            return Refusal("a range is read through indices or a mask")
        m = match(p, only, outs[only.operand].offset, c, reads)
        if isinstance(m, Refusal):
            return m
        loads = dict.fromkeys(moved_loads(m.consumer, ins, data), only.args[0])
        return inline(p, [], outs, m, ins, net.outs(reader), loads, keep_stores=False)


def _number(p: LoopNest, store: int) -> Any:
    """The one number that a store writes everywhere, as a load gives it back; None if it depends on the place."""
    values: list[Any] = []
    for s in p.body:
        known = [values[a] for a in s.args]
        if isinstance(s, Const):
            values.append(s.value)
        elif not s.args or isinstance(s, (Store, Reduce)) or any(v is None for v in known):
            values.append(None)
        else:
            types = [p.body[a].dtype for a in s.args]
            values.append(evaluate(s, list(zip(known, types, strict=True))))
    value, dtype = values[p.body[store].args[0]], p.body[store].dtype
    if value is None or compute_type(dtype) == dtype:
        return value
    return evaluate(Narrow(dtype, compute_type(dtype), (0,)), [(value, compute_type(dtype))])


def _rounded(p: LoopNest, store: int) -> LoopNest:
    """The program with only this store, of a value already rounded to its storage type."""
    s = p.body[store]
    body = list(p.body[:store])
    if compute_type(s.dtype) != s.dtype:
        body.append(Narrow(s.dtype, compute_type(s.dtype), s.args))
        s = s.with_args((len(body) - 1,))
    return simplify(replace(p, body=(*body, s)))


def _compared(body: list[Statement], how: str, index: int, limit: int) -> int:
    body += [Const(limit, "i64"), Compute(how, "bool", (index, len(body)))]
    return len(body) - 1


def _with_number(
    p: LoopNest, ins: Sequence[Operand], outs: Sequence[Operand], data: str, value: Any
) -> Fused | Refusal:
    """The reader with a number in place of its loads."""
    body: list[Statement] = []
    where: list[int] = []
    for s in p.body:
        new = s.renumbered(where)
        if isinstance(new, Read) and ins[new.operand].data == data:
            if isinstance(new, Gather) and new.checked:
                return Refusal("the indices have to be checked")
            wanted, other = list(new.guard[:1]), new.guard[1:]
            if isinstance(new, Gather):  # outside of the operand, it gives its other value, and 0 if it has none
                for index, extent in zip(new.indices, new.extents, strict=True):
                    wanted += [_compared(body, "ge", index, 0), _compared(body, "lt", index, extent)]
            body.append(Const(value, s.dtype))
            if wanted:
                number = len(body) - 1
                if not other:
                    body.append(Const(0, s.dtype))
                    other = (len(body) - 1,)
                for n in wanted[1:]:
                    body.append(Compute("and", "bool", (wanted[0], n)))
                    wanted[0] = len(body) - 1
                body.append(Compute("where", s.dtype, (wanted[0], number, *other)))
        else:
            body.append(new)
        where.append(len(body) - 1)
    return compact(simplify(replace(p, body=tuple(body))), ins, outs)
