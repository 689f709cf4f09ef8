"""Attention that is written out becomes one operator without the score matrix.

    s = q @ k^T; p = softmax(scale s + mask); o = p @ v      -->   o = attention(q, k, v, mask)

The two products and the softmax agree if the addresses of s and p, as digits of a mixed-radix number, mean the same rows and
keys to each; no shape is prescribed, so grouped heads (queries of several heads side by side) are attention with shared keys.
What lies between the first product and the softmax may be a factor, an addend, -inf for what is not seen, and -inf above the
diagonal: comparisons of positions alone are evaluated, not recognised. A row that sees nothing gives NaN, as its softmax does.
Saves writing and reading both matrices, and above the diagonal the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_forms import drop_unit_loops
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.ir.statements import Compute, Const, Index, Load, Read, Statement, Store
from dcir.ir.types import FLOATS
from dcir.ops.library.attention import AttentionSpec
from dcir.ops.library.contraction import ContractionSpec
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class FuseAttention(Pass):
    """Product, softmax, product into one attention.

    Attributes:
        max_points: largest mask of positions alone that is evaluated.
    """

    tier: ClassVar[int] = 2
    max_points: int = 1 << 22

    def apply(self, net: Network) -> PassResult:
        """Look at every softmax between two products."""
        outcome = PassResult.of(net)
        for op in net.ops():
            if isinstance(op.spec, LoopNest) and _is_softmax(op.spec):
                reason = self._try(net, op, outcome)
                if reason is not None:
                    outcome.missed(reason, _around(net, op))
        return outcome

    def _try(self, net: Network, softmax: Op, outcome: PassResult) -> Refusal | None:
        """Replace the softmax and its two products; the reason why not."""
        (scores,), (weights,) = net.ins(softmax), net.outs(softmax)
        first, second = _only(net.writers(scores.data)), _only(net.readers(weights.data))
        if first is None or second is None or not all(isinstance(op.spec, ContractionSpec) for op in (first, second)):
            return Refusal("the softmax is not between two products")
        if not net.read_once(scores.data) or not net.read_once(weights.data) or len(net.outs(first)) != 1:
            return Refusal("the scores or their softmax are read by others")
        if net.outs(first)[0].offset != scores.offset or net.ins(second)[0] != weights:
            return Refusal("the second product reads another part of the softmax")
        a = first.known(ContractionSpec)
        b = second.known(ContractionSpec)
        if a.dtype != b.dtype or a.dtype not in FLOATS or a.panel or b.panel or b.epilogue is not None:
            return Refusal("one of the products has another type or more to do")
        rows = drop_unit_loops(softmax.known(LoopNest))
        walk = next(s.strides for s in rows.body if isinstance(s, Load))
        if rows.inner != (a.n,) or walk[-1] != a.c[-1]:
            return Refusal("the softmax goes along another dimension")
        if b.k != a.n or walk[-1] != b.a[-1]:
            return Refusal("the second product reads another part of the softmax")
        mine = _digits((*a.batch, a.m), a.c[:-1])
        digits = _common(mine, _digits((*b.batch, b.m), b.a[:-1]))
        if digits is None or _common(mine, _digits(rows.outer, walk[:-1])) is None:
            return Refusal("the softmax and the products walk the scores differently")
        between = self._between(a)
        if isinstance(between, Refusal):
            return between
        spec = _attention(a, b, digits, between)
        if isinstance(spec, Refusal):
            return spec
        place = _around(net, softmax)
        if not net.allows(self, *place):
            return SWITCHED_OFF
        ins = [*net.ins(first)[:2], net.ins(second)[1]]
        if between.mask is not None:
            ins.append(self._mask(net, first, between.mask))
        lse = net.add_container((spec.batch, spec.heads, spec.m), spec.compute)
        before = sum(sum(map(sum, op.spec.footprint())) for op in (first, second)) + softmax.spec.bytes_moved()
        fused = net.add_op(
            spec,
            ins,
            [net.outs(second)[0], Operand(lse, 0)],
            came_from=(softmax, first, second),
            made_by=self.name,
            before=second,
        )
        for op in (second, softmax, first):
            net.remove_op(op, into=fused)
        for name in (weights.data, scores.data):
            net.remove_container(name)
        outcome.passed(place)
        outcome.saved_bytes += before - sum(map(sum, fused.spec.footprint()))
        return None

    def _between(self, a: ContractionSpec) -> _Between | Refusal:
        """What happens to the scores before the softmax."""
        if a.epilogue is None:
            return _Between()
        body = a.epilogue.body
        free = _without_value(body)
        stores = [s for s in body if isinstance(s, Store)]
        if len(stores) != 1 or stores[0].strides != a.c:
            return Refusal("the scores are stored elsewhere too")
        found, at = _Between(), stores[0].args[0]
        while True:
            s = body[at]
            if isinstance(s, Load) and s.operand == 0:
                return found
            if found.factor is not None and s.op in ("where", "add"):
                return Refusal("the scores are scaled after their mask")
            if s.op == "where" and not free[at]:
                seen, other = (1, 2) if free[s.args[2]] else (2, 1)
                instead = body[s.args[other]]
                if not free[s.args[0]] or not isinstance(instead, Const) or instead.value != -math.inf:
                    return Refusal("scores are replaced by something else than -inf")
                shown = _Mask(a.epilogue, s.args[0], negated=seen == 2)
                if not found.causal and found.mask is None and self._is_causal(a, shown):
                    found.causal = True
                elif found.mask is None:
                    found.mask = shown
                else:
                    return Refusal("the scores have more than one mask")
                at = s.args[seen]
            elif s.op == "add" and free[s.args[0]] != free[s.args[1]] and found.mask is None:
                more = s.args[0 if free[s.args[0]] else 1]
                found.mask = _Mask(a.epilogue, more, negated=False)
                at = s.args[0 if more == s.args[1] else 1]
            elif s.op in ("mul", "div") and isinstance(by := body[s.args[1]], Const):
                factor = float(by.value)
                if factor == 0 or not math.isfinite(factor):
                    return Refusal("the scores have a factor that is not a number")
                found.factor = (found.factor or 1.0) * (factor if s.op == "mul" else 1 / factor)
                at = s.args[0]
            else:
                return Refusal(f"the scores go through {s.op}")

    def _is_causal(self, a: ContractionSpec, mask: _Mask) -> bool:
        """Whether a mask of positions alone is the lower triangle, for every head."""
        if any(isinstance(s, Read) for s in mask.statements()) or a.m * a.n > self.max_points:
            return False
        if mask.shape() != (*(1,) * len(a.batch), a.m, a.n):
            return False
        done = np.zeros(a.m * a.n, np.bool_)
        run_program(mask.program(mask.shape())[0], [], [done], reference)
        return bool((done.reshape(a.m, a.n) == np.tri(a.m, a.n, dtype=np.bool_)).all())

    def _mask(self, net: Network, first: Op, mask: _Mask) -> Operand:
        """The operand of an attention: what the epilogue reads, or a smaller program's result."""
        ins: list[Operand] = [Operand("", 0), *net.ins(first)[2:]]
        s = mask.of.body[mask.value]
        if isinstance(s, Load) and not s.args and not mask.negated:
            return ins[s.operand]
        program, used = mask.program(mask.shape())
        data = net.add_container(mask.shape(), program.outputs[0])
        net.add_op(
            program, [ins[u] for u in used], [Operand(data, 0)], came_from=(first,), made_by=self.name, before=first
        )
        return Operand(data, 0)


def _around(net: Network, softmax: Op) -> tuple[Op, ...]:
    """A softmax with what alone makes its scores, and what alone reads its weights."""
    (scores,), (weights,) = net.ins(softmax), net.outs(softmax)
    around = _only(net.writers(scores.data)), softmax, _only(net.readers(weights.data))
    return tuple(op for op in around if op is not None)


@dataclass(frozen=True)
class _Mask:
    """An addend of the scores, or which of them are seen, as a value of an epilogue that needs no score."""

    of: LoopNest
    value: int
    negated: bool

    def needed(self) -> list[int]:
        """The statements it follows from."""
        seen, open_ = set(), [self.value]
        while open_:
            at = open_.pop()
            if at not in seen:
                seen.add(at)
                open_ += self.of.body[at].args
        return sorted(seen)

    def statements(self) -> list[Statement]:
        return [self.of.body[i] for i in self.needed()]

    def shape(self) -> tuple[int, ...]:
        """The loops of the epilogue it varies with; the others have extent 1."""
        used = {s.dim for s in self.statements() if isinstance(s, Index)}
        for s in self.statements():
            if isinstance(s, Read):
                used |= {d for d, stride in enumerate(s.strides) if stride}
        return tuple(e if d in used else 1 for d, e in enumerate(self.of.outer))

    def strides(self) -> tuple[int, ...]:
        """Over the epilogue's loops: where it lies as an operand of an attention."""
        s = self.of.body[self.value]
        if isinstance(s, Load) and not s.args and not self.negated:
            return s.strides
        shape = self.shape()
        return _dense(shape)

    def dtype(self) -> str:
        return self.of.body[self.value].dtype

    def program(self, shape: Sequence[int]) -> tuple[LoopNest, list[int]]:
        """It alone, over ``shape``, and the operands of the epilogue that it reads."""
        needed = self.needed()
        used = sorted({s.operand for s in self.statements() if isinstance(s, Read)})
        place = {old: new for new, old in enumerate(needed)}
        body: list[Statement] = []
        for i in needed:
            s = self.of.body[i].renumbered(place)
            body.append(s.with_operand(used.index(s.operand)) if isinstance(s, Read) else s)
        value = len(body) - 1
        if self.negated:
            body.append(Compute("not", "bool", (value,)))
            value += 1
        body.append(Store(0, _dense(shape), body[value].dtype, (value,)))
        whole = LoopNest(tuple(shape), (), tuple(self.of.inputs[u] for u in used), (body[value].dtype,), tuple(body))
        return simplify(whole), used


@dataclass
class _Between:
    """Between the first product and the softmax: a factor, then what may not be seen."""

    factor: float | None = None
    causal: bool = False
    mask: _Mask | None = field(default=None)


class _Digit(NamedTuple):
    """A digit of the scores' addresses: its extent and stride, and where it lies in the two lists of dimensions."""

    extent: int
    stride: int
    at: int
    other: int
    step: int  # what one step of it is in steps of its dimension in the first list
    other_step: int


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a program's store that leaves no gap; none where an extent is 1."""
    return tuple(0 if e == 1 else s for e, s in zip(shape, contiguous(shape), strict=True))


def _only(ops: Sequence[Op]) -> Op | None:
    return ops[0] if len(ops) == 1 else None


def _is_softmax(p: LoopNest) -> bool:
    """Whether it stores exp(x - max x) / sum exp(x - max x) where x lies."""
    if len(p.inputs) != 1 or len(p.outputs) != 1 or not p.inner:
        return False
    q = drop_unit_loops(p)
    body = LoopNestBuilder(q.outer, q.inner)
    loads = [s for s in q.body if isinstance(s, Load)]
    if len(loads) != 1 or len(q.inner) != 1:
        return False
    x = body.load(body.input(q.inputs[0]), loads[0].strides)
    e = body.op("exp", x - body.reduce("max", x))
    body.store(body.output(q.outputs[0]), loads[0].strides, e / body.reduce("sum", e))
    return body.finish() == simplify(q)


def _without_value(body: Sequence[Statement]) -> list[bool]:
    """Per statement whether it needs no score."""
    free: list[bool] = []
    for s in body:
        free.append(not (isinstance(s, Load) and s.operand == 0) and all(free[x] for x in s.args))
    return free


def _digits(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int, int]]:
    """(stride, extent, dimension) of every dimension that moves, the smallest stride last."""
    return sorted(((s, e, d) for d, (e, s) in enumerate(zip(shape, strides, strict=True)) if e > 1), reverse=True)


def _common(a: list[tuple[int, int, int]], b: list[tuple[int, int, int]]) -> list[_Digit] | None:
    """The coarsest digits that both lists are made of, the smallest stride first; None if they walk other addresses."""
    a, b = list(a), list(b)
    found: list[_Digit] = []
    steps = [1, 1]
    while a and b:
        (sa, ea, da), (sb, eb, db) = a.pop(), b.pop()
        e = min(ea, eb)
        if sa != sb or ea % e or eb % e:
            return None
        found.append(_Digit(e, sa, da, db, steps[0], steps[1]))
        steps = [1, 1]
        if ea > e:
            a.append((sa * e, ea // e, da))
            steps[0] = found[-1].step * e
        if eb > e:
            b.append((sb * e, eb // e, db))
            steps[1] = found[-1].other_step * e
    return None if a or b else found


def _attention(
    a: ContractionSpec, b: ContractionSpec, digits: list[_Digit], between: _Between
) -> AttentionSpec | Refusal:
    """The spec over the digits: one counts queries, the others, joined where all operands allow it, batch and heads."""
    rows, mixed = len(a.batch), len(b.batch)
    mask = between.mask.strides() if between.mask is not None else (0,) * (rows + 2)
    query = next((g for g in digits if g.at == rows and g.other == mixed), None)
    if query is None and a.m > 1:
        return Refusal("queries of the two products differ")
    if between.causal and query is not None and query.extent != a.m:
        return Refusal("positions are cut in parts")

    def walks(g: _Digit) -> tuple[int, ...]:
        """Strides of q, k, v, o and the mask."""
        k = a.b[g.at] if g.at < rows else 0
        v = b.b[g.other] if g.other < mixed else 0
        q, o = a.a[g.at] * g.step, b.c[g.other] * g.other_step
        return q, k * g.step, v * g.other_step, o, mask[g.at] * g.step

    outer: list[tuple[int, tuple[int, ...]]] = []
    for g in digits:
        if g is query:
            continue
        inner = outer[-1] if outer else None
        if inner is not None and walks(g) == tuple(inner[0] * s for s in inner[1]):
            outer[-1] = (inner[0] * g.extent, inner[1])
        else:
            outer.append((g.extent, walks(g)))
    if len(outer) > 2:
        return Refusal("more than two dimensions besides queries and keys")
    outer += [(1, (0,) * 5)] * (2 - len(outer))
    (heads, h), (batch, i) = outer
    m, w = (query.extent, walks(query)) if query is not None else (1, (0,) * 5)
    lse = contiguous((batch, heads, m))
    q, k, v, o = (
        (i[x], h[x], step, last)
        for x, step, last in ((0, w[0], a.a[-1]), (1, a.b[-1], a.b[-2]), (2, b.b[-2], b.b[-1]), (3, w[3], b.c[-1]))
    )
    spec = AttentionSpec(
        a.dtype, batch, heads, m, a.n, a.k, between.factor or 1.0, between.causal, q, k, v, o, lse, strict=True
    )
    if b.n != a.k:
        return Refusal("keys and values differ in length")
    if between.mask is None:
        return spec
    return replace(spec, mask=(i[4], h[4], w[4], mask[-1]), mask_dtype=between.mask.dtype())
