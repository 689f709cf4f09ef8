"""Transpositions and joins become strides of the operators around them, and no data moves.

    t = x.permute(...).contiguous(); y = t @ w     -->   y = x @ w, x read with the permuted strides
    a = x @ v; c[:, :n] = a; c[:, n:] = b          -->   x @ v writes into c[:, :n] with the strides of c

A copy maps the elements of one window to those of another. An operator that walks the copy's destination by strides can
walk its source instead if each of its strides and its offset decompose into the destination's (``dcir.ir.fuse.match``,
as digits of a mixed-radix number): stride = sum_d coefficient[d] * source_stride[d]. All readers must agree, else the
copy stays for the others anyway. Failing that, the one operator that wrote the source writes the destination, by the
same arithmetic the other way round. Saves reading and writing all that was copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from dcir.ir.fuse import compact, match
from dcir.ir.loops import collapse, drop_unit_loops, order_loops
from dcir.ir.network import Network, Operand
from dcir.ir.nodes import Op
from dcir.ir.program import Program, Stmt
from dcir.ops.attention import AttentionSpec
from dcir.ops.contraction import ContractionSpec
from dcir.ops.convolution import ConvolutionSpec
from dcir.ops.torch_call import TorchCall
from dcir.transforms.base import Outcome, Pass


class _Side(NamedTuple):
    """One side of a copy: where it begins, and its strides over the copy's loops."""

    at: Operand
    strides: tuple[int, ...]


class _Copy(NamedTuple):
    dims: tuple[int, ...]
    source: _Side
    target: _Side

    def map(
        self, walked: _Side, program: Program, number: int, offset: int
    ) -> tuple[Program, tuple[int, ...], int] | str:
        """A statement that walks one side from ``offset`` on, put on the other side.

        Returns:
            The program (its loops split where one of them runs over several of the copy's), the statement's strides
            and offset on the other side; or the reason why there are none.
        """
        other = self.target if walked is self.source else self.source
        if any(s == 0 for s in walked.strides):
            return "the copy repeats elements"
        store = Stmt("store", (), "", (0, walked.strides))
        m = match(Program(self.dims, (), (), (), ()), store, walked.at.offset, program, [(number, offset)])
        if isinstance(m, str):
            return m
        strides = [0] * len(m.consumer.dims)
        for row, step in zip(m.coefficients, other.strides, strict=True):
            for k, q in enumerate(row or ()):
                strides[k] += q * step
        start = other.at.offset + sum(a * s for a, s in zip(m.start, other.strides, strict=True))
        return m.consumer, tuple(strides), start

    def map_window(
        self, walked: _Side, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> tuple[tuple[int, ...], int] | str:
        """The same for a window, whose dimensions cannot be split; dimensions of extent 1 keep their stride."""
        window = Program(tuple(shape), (), ("",), (), (Stmt("load", (), "", (0, tuple(strides))),))
        mapped = self.map(walked, window, 0, offset)
        if isinstance(mapped, str):
            return mapped
        program, new, start = mapped
        if program is not window:
            return "a dimension runs over several dimensions of the copy"
        return tuple(old if n == 1 else s for old, s, n in zip(strides, new, shape, strict=True)), start


class _Rewired(NamedTuple):
    """What an operator will be."""

    op: Op
    spec: Any
    ins: Sequence[Operand]
    outs: Sequence[Operand]


@dataclass(frozen=True)
class SinkCopies(Pass):
    """Let the readers of a copy read its source, or the writer of its source write its target."""

    tier: ClassVar[int] = 3

    def apply(self, net: Network) -> Outcome:
        """Visit the copies in order of execution."""
        outcome = Outcome()
        results = net.result_containers()
        for op in net.ops():
            copy = _as_copy(net, op)
            if copy is None:
                continue
            plan, gone = self._readers(net, op, copy, results), copy.target.at.data
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
                net.rewire(new.op, new.spec, new.ins, new.outs, made_by=self.name)
            net.remove_container(gone)
        return outcome

    def _readers(self, net: Network, op: Op, copy: _Copy, results: set[str]) -> list[_Rewired] | str:
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
            new = _moved(net, reader, copy, copy.target, net.ins(reader), "in")
            if isinstance(new, str):
                return new
            plan.append(new)
        return plan or "nobody reads the copy"

    def _writer(self, net: Network, op: Op, copy: _Copy, results: set[str]) -> list[_Rewired] | str:
        """The writer of the copy's source as a writer of its target."""
        data = copy.source.at.data
        if net.containers[data].role in ("input", "constant") or data in results:
            return "the copy's source is an input or a result"
        writers = net.writers(data)
        if len(writers) != 1 or net.readers(data) != [op]:
            return "the copy's source has other readers or writers"
        new = _moved(net, writers[0], copy, copy.source, net.outs(writers[0]), "out")
        return new if isinstance(new, str) else [new]


def _as_copy(net: Network, op: Op) -> _Copy | None:
    """The copy that an operator is, over as few loops as possible."""
    p = op.spec
    if not isinstance(p, Program) or [s.op for s in p.body] != ["load", "store"] or p.inner:
        return None
    if p.inputs != p.outputs or p.body[0].args or p.points() == 0:
        return None
    source, target = net.ins(op)[0], net.outs(op)[0]
    p = collapse(order_loops(drop_unit_loops(p)))
    return _Copy(p.dims, _Side(source, p.body[0].attr[1]), _Side(target, p.body[1].attr[1]))


def _moved(net: Network, op: Op, copy: _Copy, walked: _Side, operands: list[Operand], way: str) -> _Rewired | str:
    """``op`` with its operands on one side of the copy put on the other; ``way``: "in" or "out"."""
    kinds = ("load", "gather") if way == "in" else ("store",)
    if isinstance(op.spec, Program):
        mapped = _moved_program(op.spec, copy, walked, operands, kinds)
        if isinstance(mapped, str):
            return mapped
        ins, outs = (mapped[1], net.outs(op)) if way == "in" else (net.ins(op), mapped[1])
        lean = compact(mapped[0], ins, outs)
        return _Rewired(op, lean.program, lean.ins, lean.outs)
    if isinstance(op.spec, ContractionSpec):
        mapped = _moved_program(_as_loops(op.spec), copy, walked, operands, kinds)
        if isinstance(mapped, str):
            return mapped
        spec = _as_contraction(op.spec, mapped[0])
        if isinstance(spec, str):
            return spec
        numbers = [s.attr[0] for s in (mapped[0].body[:2] if way == "in" else mapped[0].body[2:])]
        moved = [mapped[1][n] for n in numbers]
        ins, outs = (moved, net.outs(op)) if way == "in" else (net.ins(op), moved)
        return _Rewired(op, *_rows_first(spec, ins), outs)
    windows = _moved_windows(op.spec, copy, walked, operands, way)
    if isinstance(windows, str):
        return windows
    return _Rewired(op, windows[0], *((windows[1], net.outs(op)) if way == "in" else (net.ins(op), windows[1])))


def _moved_windows(
    spec: Any, copy: _Copy, walked: _Side, operands: list[Operand], way: str
) -> tuple[Any, list[Operand]] | str:
    """A spec that is no program, with every operand on one side of the copy put on the other; and its operands."""
    fixed = f"an operator of kind {spec.kind} keeps the layout of its operands"
    table = _windows(spec)
    if table is None:
        return fixed
    moved, other = list(operands), copy.target if walked is copy.source else copy.source
    for i, (o, w) in enumerate(zip(operands, table[way == "out"], strict=True)):
        if o.data != walked.at.data:
            continue
        to = copy.map_window(walked, w.shape, w.strides, o.offset)
        if isinstance(to, str):
            return to
        if any(s < 0 for s in to[0]):
            return "the copy goes backwards"
        spec = _with_strides(spec, w, to[0])
        if spec is None:
            return fixed
        moved[i] = Operand(other.at.data, to[1])
    return spec, moved


def _as_loops(spec: ContractionSpec) -> Program:
    """The strides of a contraction over its loops (*batch, m, n, k), so that its batch can be split."""
    rank = len(spec.batch)
    a = (*spec.a[:rank], spec.a[rank], 0, spec.a[rank + 1])
    b = (*spec.b[:rank], 0, spec.b[rank + 1], spec.b[rank])
    body = (Stmt("load", (), spec.dtype, (0, a)), Stmt("load", (), spec.dtype, (1, b)),
            Stmt("store", (0,), spec.dtype, (0, (*spec.c, 0))))  # fmt: skip
    return Program((*spec.batch, spec.m, spec.n, spec.k), (), (spec.dtype,) * 2, (spec.dtype,), body)


def _as_contraction(old: ContractionSpec, p: Program) -> ContractionSpec | str:
    """The inverse of ``_as_loops``."""
    *batch, m, n, k = p.dims
    if (m, n, k) != (old.m, old.n, old.k):
        return "a dimension runs over several dimensions of the copy"
    a, b, c = (s.attr[1] for s in p.body)
    if any(s < 0 for s in (*a, *b, *c)):
        return "the copy goes backwards"
    rank = len(batch)
    new = [(*a[:rank], a[rank], a[-1]), (*b[:rank], b[-1], b[rank + 1]), c[:-1]]
    extents, before = ((m, k), (k, n), (m, n)), (old.a, old.b, old.c)
    for i, (strides, kept, (d0, d1)) in enumerate(zip(new, before, extents, strict=True)):
        last = (kept[-2] if d0 == 1 else strides[-2], kept[-1] if d1 == 1 else strides[-1])
        new[i] = (*strides[:-2], *last)  # along an extent of 1 any stride is right, and a usual one is fastest
    return replace(old, batch=tuple(batch), a=new[0], b=new[1], c=new[2])


def _rows_first(spec: ContractionSpec, ins: Sequence[Operand]) -> tuple[ContractionSpec, Sequence[Operand]]:
    """The product of the transposes where C would be written along columns: kernels write rows."""
    if spec.c[-2] >= spec.c[-1] or spec.m == 1 or spec.n == 1:
        return spec, ins
    a, b, c = ((*st[:-2], st[-1], st[-2]) for st in (spec.a, spec.b, spec.c))
    return replace(spec, m=spec.n, n=spec.m, a=b, b=a, c=c), ins[::-1]


def _moved_program(
    p: Program, copy: _Copy, walked: _Side, operands: Sequence[Operand], kinds: tuple[str, ...]
) -> tuple[Program, list[Operand]] | str:
    """A program with every statement on one side of the copy put on the other; and its operands, old and new."""
    moved = list(operands)
    other = copy.target if walked is copy.source else copy.source

    def on_this_side(s: Stmt) -> bool:
        return s.op in kinds and moved[s.attr[0]].data == walked.at.data

    number = 0
    while number < len(p.body):
        s = p.body[number]
        if not on_this_side(s):
            number += 1
            continue
        offset = moved[s.attr[0]].offset
        if s.op == "gather":  # its computed indices are loops like others, only that they cannot be split
            rank = len(p.dims)
            to = copy.map_window(walked, (*p.dims, *s.attr[2]), (*s.attr[1], *s.attr[3]), offset)
            if isinstance(to, str):
                return to
            (strides, steps), start = (to[0][:rank], to[0][rank:]), to[1]
            rest: tuple[Any, ...] = (strides, s.attr[2], steps, s.attr[4])
        else:
            mapped = copy.map(walked, p, number, offset)
            if isinstance(mapped, str):
                return mapped
            p, strides, start = mapped
            number = next(i for i in range(number, len(p.body)) if on_this_side(p.body[i]))  # a split adds statements
            rest = (strides,)
        operand = Operand(other.at.data, start)
        known = operand in moved and "load" in kinds
        attr = (moved.index(operand) if known else len(moved), *rest)
        body = (*p.body[:number], p.body[number]._replace(attr=attr), *p.body[number + 1 :])
        p = replace(p, body=body)
        if not known:
            moved.append(operand)
            ins, outs = ((p.inputs[s.attr[0]],), ()) if "load" in kinds else ((), (s.dtype,))
            p = replace(p, inputs=p.inputs + ins, outputs=p.outputs + outs)
    return p, moved


class _Window(NamedTuple):
    """An operand of a spec that is no program: its shape, its strides, and the field that holds them."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    field: str = ""
    place: int | None = None


def _windows(spec: Any) -> tuple[list[_Window], list[_Window]] | None:
    """Inputs and outputs of a spec, or None for one that says nothing about strides."""
    if isinstance(spec, ConvolutionSpec):
        x, w, y = (_Window(s, getattr(spec, f), f) for s, f in zip(spec.shapes, "xwy", strict=True))
        bias = [_Window((spec.groups * spec.cout,), (1,))] if spec.bias else []
        return {
            "forward": ([x, w, *bias], [y]),
            "backward_data": ([y, w], [x]),
            "backward_weight": ([x, y], [w]),
        }[spec.kind]
    if isinstance(spec, AttentionSpec):
        rows, keys = (spec.batch, spec.heads, spec.m, spec.d), (spec.batch, spec.heads, spec.n, spec.d)
        q, k, v = (_Window(s, getattr(spec, f), f) for s, f in zip((rows, keys, keys), "qkv", strict=True))
        o, lse = _Window(rows, spec.o, "o"), _Window(rows[:3], spec.lse, "lse")
        mask = [_Window((*rows[:3], spec.n), spec.mask, "mask")] if spec.mask else []
        if not spec.grads:
            return [q, k, v, *mask], [o, lse]
        do, *rest = (_Window(s, spec.grads[i], "grads", i) for i, s in enumerate((rows, rows, keys, keys)))
        return [do, q, k, v, o, lse, *mask], rest
    if isinstance(spec, TorchCall):
        ins, outs = ([_Window(s, t, f, i) for i, (s, t, _) in enumerate(getattr(spec, f))] for f in ("ins", "outs"))
        return ins, outs
    return None


def _with_strides(spec: Any, w: _Window, strides: tuple[int, ...]) -> Any:
    """The spec with other strides of one operand, or None if they are fixed."""
    if strides == w.strides:
        return spec
    if not w.field:
        return None
    if w.place is None:
        return replace(spec, **{w.field: strides})
    table = list(getattr(spec, w.field))
    table[w.place] = (w.shape, strides, table[w.place][2]) if isinstance(spec, TorchCall) else strides
    return replace(spec, **{w.field: tuple(table)})
