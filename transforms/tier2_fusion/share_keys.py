"""Attention over keys that are repeated for several heads reads them where they are once.

    k[b, h g, n, d] = x[b, h, n, d] (and v); o = attention(q, k, v)             -->   o = attention(q, x, y) with groups of g heads
    dq, dk, dv = attention_backward(...); dx = sum of dk over g (and dv)        -->   dq, dx, dy = attention_backward(...)

A copy repeats heads if the arithmetic of ``relayout.py`` turns the walk over its heads into a walk over heads and one that stands still.
Keys and values must agree on the group; backwards their gradients must be asked for in sums over the groups only. Saves writing and
reading keys and values once per head in place of once per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_forms import drop_unit_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ir.statements import Load, Reduce, Store
from dcir.ops.library.attention import AttentionSpec
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tier3_layout.layout.relayout import copy_of


class _Once(NamedTuple):
    """Keys or values as they are before they are repeated."""

    copy: Op
    operand: Operand
    strides: tuple[int, ...]
    group: int


class _Sum(NamedTuple):
    """The sum of a gradient over the heads that share what it belongs to."""

    op: Op
    operand: Operand
    strides: tuple[int, ...]


@dataclass(frozen=True)
class ShareKeys(Pass):
    """Let attentions read repeated keys and values before they are repeated."""

    tier: ClassVar[int] = 2
    after: ClassVar[tuple[str, ...]] = ("fuse-attention",)

    def apply(self, net: Network) -> PassResult:
        """Look at every attention."""
        outcome = PassResult.of(net)
        for op in net.ops():
            if isinstance(op.spec, AttentionSpec) and op.spec.group == 1 and not op.spec.more and op.spec.heads > 1:
                refusal = self._share(net, op, outcome)
                if refusal is not None:
                    outcome.missed(refusal, (op,))
        return outcome

    def _share(self, net: Network, op: Op, outcome: PassResult) -> Refusal | None:
        """Rewire one attention where keys and values are repeated, or say why not."""
        spec = op.known(AttentionSpec)
        first = 2 if spec.grads else 1
        found = [_once(net, spec, net.ins(op)[first + i], st) for i, st in enumerate((spec.k, spec.v))]
        if not any(found):
            return None
        k, v = found
        if k is None or v is None or k.group != v.group:
            return Refusal("keys and values are repeated in different ways")
        ins, outs, grads = net.ins(op), net.outs(op), spec.grads
        ins[first : first + 2] = [k.operand, v.operand]
        done, summed = [k.copy, v.copy], list[Op]()
        if grads:
            sums = [_summed(net, spec, outs[i], grads[1 + i], k.group) for i in (1, 2)]
            if None in sums:
                return Refusal("gradients of every head are asked for")
            dk, dv = (s for s in sums if s is not None)
            outs[1:], grads = [dk.operand, dv.operand], (*grads[:2], dk.strides, dv.strides)
            summed = [dk.op, dv.op]
        if not net.allows(self, op):
            return SWITCHED_OFF
        for s in summed:
            outcome.saved_bytes += s.spec.bytes_moved()
            net.remove_op(s, into=op)
        new = replace(spec, k=k.strides, v=v.strides, group=k.group, grads=grads)
        outcome.saved_bytes += sum(map(sum, spec.footprint())) - sum(map(sum, new.footprint()))
        net.rewire(op, new, ins, outs, made_by=self.name, came_from=done)
        for copy in dict.fromkeys(done):
            if not any(net.readers(o.data) for o in net.outs(copy)):
                outcome.saved_bytes += copy.spec.bytes_moved()
                net.remove_op(copy, into=op)
        outcome.passed((op,))
        return None


def _once(net: Network, spec: AttentionSpec, operand: Operand, strides: tuple[int, ...]) -> _Once | None:
    """Keys or values before the copy that repeats their heads; None if there is no such copy."""
    writers = net.writers(operand.data)
    if len(writers) != 1 or operand.data in net.result_containers():
        return None
    copy = copy_of(net, writers[0])
    if copy is None or copy.target.at.data != operand.data:
        return None
    shape = (spec.batch, spec.heads, spec.n, spec.d)
    walk = LoopNest(shape, (), ("",), (), (Load(0, strides, ""),))
    mapped = copy.map(copy.target, walk, 0, operand.offset)
    if isinstance(mapped, Refusal):
        return None
    program, steps, start = mapped
    parts = _dealt(program.dims, steps, shape)
    if parts is None:
        return None
    heads = parts.pop(1)
    if not heads or heads[-1][1] or len(heads) > 2 or any(len(p) > 1 for p in parts):
        return None
    batch, position, element = (p[0][1] if p else 0 for p in parts)
    head = heads[0][1] if len(heads) == 2 else 0
    return _Once(writers[0], Operand(copy.source.at.data, start), (batch, head, position, element), heads[-1][0])


def _dealt(dims: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> list[list[tuple[int, int]]] | None:
    """The loops (extent, stride) that each dimension of ``shape`` was split into, without those of extent 1."""
    rest = [(n, s) for n, s in zip(dims, steps, strict=True) if n > 1]
    parts = []
    for extent in shape:
        part, reach = [], 1
        while reach < extent and rest:
            part.append(rest.pop(0))
            reach *= part[-1][0]
        if reach != extent:
            return None
        parts.append(part)
    return None if rest else parts


def _summed(net: Network, spec: AttentionSpec, operand: Operand, strides: tuple[int, ...], group: int) -> _Sum | None:
    """The only reader of a gradient, if that adds up the heads of each group and does nothing else."""
    readers, shown = net.readers(operand.data), operand.data in net.result_containers()
    if shown or len(readers) != 1 or not isinstance(readers[0].spec, LoopNest):
        return None
    p = drop_unit_loops(readers[0].spec)
    if len(p.body) != 3 or p.inner != (group,) or p.outputs != (spec.dtype,):
        return None
    load, total, store = p.body
    if not (isinstance(load, Load) and isinstance(total, Reduce) and isinstance(store, Store)) or total.kind != "sum":
        return None
    (read,), (written,) = net.ins(readers[0]), net.outs(readers[0])
    if read.offset != operand.offset or load.strides[-1] != strides[1]:
        return None
    wanted = [
        (spec.batch, strides[0]),
        (spec.heads // group, strides[1] * group),
        *zip((spec.n, spec.d), strides[2:], strict=True),
    ]
    loops = [(n, a, b) for n, a, b in zip(p.outer, load.strides, store.strides, strict=False) if n > 1]
    new = []
    for extent, step in wanted:
        at = next((i for i, (n, a, _) in enumerate(loops) if extent > 1 and (n, a) == (extent, step)), None)
        if extent > 1 and at is None:
            return None
        new.append(0 if at is None else loops.pop(at)[2])
    return None if loops else _Sum(readers[0], written, tuple(new))
