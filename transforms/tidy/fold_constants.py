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
from dcir.ir.fuse import Fused, compact, inline, match
from dcir.ir.loop_forms import drop_unit_loops
from dcir.ir.loop_nest import LoopNest, Stmt, simplify
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import Refusal
from dcir.ir.scalars import evaluate
from dcir.ir.types import compute_type
from dcir.transforms.base import Pass, PassResult

_ARITHMETIC = {"cast", "narrow", "add", "sub", "mul", "neg", "abs", "min", "max"}
_LOGIC = {"where", "and", "or", "xor", "not", "eq", "ne", "lt", "le", "gt", "ge"}


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Inline programs without inputs.

    Attributes:
        max_operations: longest expression of loop indices that is worth computing again in every reader.
    """

    tier: ClassVar[int] = 0
    max_operations: int = 12

    def apply(self, net: Network) -> PassResult:
        """One sweep in order of execution."""
        outcome = PassResult()
        results = net.result_containers()
        for op in net.ops():
            if not isinstance(op.spec, LoopNest):
                continue
            for data in dict.fromkeys(o.data for o in net.ins(op)):
                self._fold(net, op, data, outcome)
        for op in reversed(net.ops()):
            if self._constant(op) and not any(o.data in results or net.readers(o.data) for o in net.outs(op)):
                outs = {o.data for o in net.outs(op)}
                net.remove_op(op)
                for name in outs:
                    if not net.writers(name):
                        net.remove_container(name)
                outcome.changed += 1
        return outcome

    def _constant(self, op: Op) -> bool:
        return isinstance(op.spec, LoopNest) and not op.spec.inputs

    def _fold(self, net: Network, reader: Op, data: str, outcome: PassResult) -> None:
        writers = net.writers(data)
        if not any(self._constant(w) for w in writers):
            return
        if len(writers) > 1:
            outcome.refuse("several operators write the container")
            return
        p, outs = writers[0].known(LoopNest), net.outs(writers[0])
        stores = [i for i, s in enumerate(p.body) if s.op == "store" and outs[s.attr[0]].data == data]
        if len(stores) > 1:
            outcome.refuse("the constant is written in several parts")
            return
        value = _number(p, p.body[stores[0]])
        before = reader.spec.bytes_moved()
        if value is not None:
            fused: Fused | Refusal = _with_number(
                reader.known(LoopNest), net.ins(reader), net.outs(reader), data, value
            )
        else:
            fused = self._with_expression(net, writers[0], stores[0], reader, data)
        if isinstance(fused, Refusal):
            outcome.refuse(fused)
            return
        outcome.changed += 1
        outcome.saved_bytes += before - fused.program.bytes_moved()
        net.rewire(reader, fused.program, fused.ins, fused.outs, made_by=self.name)

    def _with_expression(self, net: Network, writer: Op, store: int, reader: Op, data: str) -> Fused | Refusal:
        p = writer.known(LoopNest)
        work = [s.op for s in p.body if s.op not in ("const", "index", "store")]
        if len(work) > self.max_operations or not (_ARITHMETIC | _LOGIC).issuperset(work):
            return Refusal("the constant costs more to compute than to read")
        p, at = drop_unit_loops(_rounded(p, store)), net.outs(writer)[p.body[store].attr[0]].offset
        stores = [s for s in p.body if s.op == "store"]
        c, ins = drop_unit_loops(reader.known(LoopNest)), net.ins(reader)
        reads = [i for i, s in enumerate(c.body) if s.op in ("load", "gather") and ins[s.attr[0]].data == data]
        if any(c.body[i].op == "gather" or c.body[i].args for i in reads):
            return Refusal("a range is read through indices or a mask")
        m = match(p, stores[0], at, c, [(i, ins[c.body[i].attr[0]].offset) for i in reads])
        if isinstance(m, Refusal):
            return m
        moved = [i for i, s in enumerate(m.consumer.body) if s.op == "load" and ins[s.attr[0]].data == data]
        loads = dict.fromkeys(moved, stores[0].args[0])
        return inline(p, [], net.outs(writer), m, ins, net.outs(reader), loads, keep_stores=False)


def _number(p: LoopNest, store: Stmt) -> Any:
    """The one number that a store writes everywhere, as a load gives it back; None if it depends on the place."""
    values: list[Any] = []
    for s in p.body:
        known = [values[a] for a in s.args]
        if s.op == "const":
            values.append(s.attr[0])
        elif not s.args or s.op in ("store", "reduce") or any(v is None for v in known):
            values.append(None)
        else:
            types = [p.body[a].dtype for a in s.args]
            values.append(evaluate(s.op, s.dtype, s.attr, list(zip(known, types, strict=True))))
    value, dtype = values[store.args[0]], store.dtype
    if value is None or compute_type(dtype) == dtype:
        return value
    return evaluate("narrow", compute_type(dtype), (dtype,), [(value, compute_type(dtype))])


def _rounded(p: LoopNest, store: int) -> LoopNest:
    """The program with only this store, of a value already rounded to its storage type."""
    s = p.body[store]
    body = list(p.body[:store])
    if compute_type(s.dtype) != s.dtype:
        body.append(Stmt("narrow", s.args, compute_type(s.dtype), (s.dtype,)))
        s = s._replace(args=(len(body) - 1,))
    return simplify(replace(p, body=(*body, s)))


def _compared(body: list[Stmt], how: str, index: int, limit: int) -> int:
    body += [Stmt("const", (), "i64", (limit,)), Stmt(how, (index, len(body)), "bool")]
    return len(body) - 1


def _with_number(
    p: LoopNest, ins: Sequence[Operand], outs: Sequence[Operand], data: str, value: Any
) -> Fused | Refusal:
    """The reader with a number in place of its loads."""
    body: list[Stmt] = []
    where: list[int] = []
    for s in p.body:
        args = tuple(where[a] for a in s.args)
        if s.op in ("load", "gather") and ins[s.attr[0]].data == data:
            indices = len(s.attr[2]) if s.op == "gather" else 0
            if s.op == "gather" and s.attr[4] == "checked":
                return Refusal("the indices have to be checked")
            wanted, other = list(args[indices : indices + 1]), args[indices + 1 :]
            if s.op == "gather":  # outside of the operand, it gives its other value, and 0 if it has none
                for index, extent in zip(args[:indices], s.attr[2], strict=True):
                    wanted += [_compared(body, "ge", index, 0), _compared(body, "lt", index, extent)]
            body.append(Stmt("const", (), s.dtype, (value,)))
            if wanted:
                number = len(body) - 1
                if not other:
                    body.append(Stmt("const", (), s.dtype, (0,)))
                    other = (len(body) - 1,)
                for n in wanted[1:]:
                    body.append(Stmt("and", (wanted[0], n), "bool"))
                    wanted[0] = len(body) - 1
                body.append(Stmt("where", (wanted[0], number, *other), s.dtype))
        else:
            body.append(s._replace(args=args))
        where.append(len(body) - 1)
    return compact(simplify(replace(p, body=tuple(body))), ins, outs)
