"""Attention: o = softmax(scale q k^T + mask) v without the score matrix, and its gradients from the log-sum-exp.

With s the scores, m the row maximum and z = sum exp(s - m): o = exp(s - m) v / z and lse = m + log z. Backwards
p = exp(s - lse), delta = sum_d do * o, ds = p * (do v^T - delta); then dq = scale ds k, dk = scale ds^T q, dv = p^T do
(Dao et al., FlashAttention, 2022). A row whose scores are all -inf gives zeros and lse = 0, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.operator import OperandWindow, Operator, Step, Steps, Windows
from dcir.ir.serialize import register
from dcir.ir.types import compute_type, itemsize
from dcir.ops.library.torch_call import window_tensor


@register
@dataclass(frozen=True)
class AttentionSpec(Operator):
    """Forward: reads q, k, v[, k2, v2][, mask], writes o, lse. Backward: reads do, q, k, v, o, lse[, mask], writes dq, dk, dv.

    Attributes:
        dtype: dcir type of q, k, v, o and their gradients; half types are computed in f32.
        batch, heads: extents of the two leading dimensions.
        m, n, d: query positions, key positions, elements of a head.
        scale: factor of the scores.
        causal: whether position i sees only the positions up to i.
        q, k, v, o: strides over (batch, head, position, element); lse: over (batch, head, position), compute type.
        mask: strides over (batch, head, query, key) of an addend to the scores, () for none; mask_dtype: its type. A mask of bool
            says which keys are seen; the scores of the others are -inf.
        grads: strides of do, dq, dk, dv; () for forward.
        strict: a row whose scores are all -inf gives NaN, as a softmax does, in place of zeros; forward only.
        first: keys and values before this position lie in k and v, the others in k2 and v2 (a cache and what is new); 0: all lie
            in k and v. Forward only.
        more: strides of k2 and v2, () if there are none.
        group: how many neighbouring heads of q share one of k and v, whose strides (and their gradients') count key heads.
    """

    dtype: str
    batch: int
    heads: int
    m: int
    n: int
    d: int
    scale: float
    causal: bool
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    o: tuple[int, ...]
    lse: tuple[int, ...]
    mask: tuple[int, ...] = ()
    mask_dtype: str = "f32"
    grads: tuple[tuple[int, ...], ...] = ()
    strict: bool = False
    first: int = 0
    more: tuple[tuple[int, ...], ...] = ()
    group: int = 1

    @property
    def kind(self) -> str:
        """Name for labels and reports."""
        return "attention_backward" if self.grads else "attention"

    @property
    def compute(self) -> str:
        """The type everything is computed in."""
        return compute_type(self.dtype)

    @property
    def key_heads(self) -> int:
        """Heads of k and v."""
        return self.heads // self.group

    def pairs(self) -> int:
        """Pairs of a query and a key that see each other, in one head."""
        if not self.causal:
            return self.m * self.n
        full = max(self.m - self.n, 0)
        part = self.m - full
        return full * self.n + part * (part + 1) // 2

    def operations(self) -> int:
        """Multiplications, additions and exponentials; the same for every way of blocking."""
        pairs, mask = self.pairs(), 1 if self.mask else 0
        if self.grads:  # five products; scale, subtract, exp, subtract, multiply per pair; delta; scale of dq
            one = pairs * (10 * self.d + 5 + mask) + 3 * self.m * self.d
        else:  # two products; scale, maximum, subtract, exp, add per pair; the division and the logarithm per row
            one = pairs * (4 * self.d + 5 + mask) + self.m * (self.d + 2)
        return self.batch * self.heads * one

    def pieces(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Shape and strides of k, v[, k2, v2]."""
        b, h, n, d = self.batch, self.key_heads, self.n, self.d
        if not self.more:
            return [((b, h, n, d), st) for st in (self.k, self.v)]
        kept, new = (b, h, self.first, d), (b, h, n - self.first, d)
        return [(kept, self.k), (kept, self.v), (new, self.more[0]), (new, self.more[1])]

    def windows(self) -> Windows:
        """Of all operands."""
        rows, keys = (self.batch, self.heads, self.m, self.d), (self.batch, self.key_heads, self.n, self.d)
        q = OperandWindow(rows, self.q, "q")
        fields: list[tuple[str, int | None]] = [("k", None), ("v", None), ("more", 0), ("more", 1)]
        kv = [OperandWindow(shape, st, *f) for (shape, st), f in zip(self.pieces(), fields, strict=False)]
        o, lse = OperandWindow(rows, self.o, "o"), OperandWindow(rows[:3], self.lse, "lse")
        mask = [OperandWindow((*rows[:3], self.n), self.mask, "mask")] if self.mask else []
        if not self.grads:
            return [q, *kv, *mask], [o, lse]
        shapes = enumerate((rows, rows, keys, keys))
        do, *made = (OperandWindow(shape, self.grads[i], "grads", i) for i, shape in shapes)
        return [do, q, *kv, o, lse, *mask], [*made]

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes of every operand."""

        def size(shape: Sequence[int], strides: Sequence[int], dtype: str) -> int:
            return itemsize(dtype) * math.prod(e for e, s in zip(shape, strides, strict=True) if s)

        rows, keys = (self.batch, self.heads, self.m, self.d), (self.batch, self.key_heads, self.n, self.d)
        q, kv = size(rows, self.q, self.dtype), [size(shape, st, self.dtype) for shape, st in self.pieces()]
        o, lse = size(rows, self.o, self.dtype), size(rows[:3], self.lse, self.compute)
        mask = [size((*rows[:3], self.n), self.mask, self.mask_dtype)] if self.mask else []
        if not self.grads:
            return (q, *kv, *mask), (o, lse)
        do, dq, dk, dv = (size(s, g, self.dtype) for s, g in zip((rows, rows, keys, keys), self.grads, strict=True))
        return (do, q, *kv, o, lse, *mask), (dq, dk, dv)

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it over 1-D NumPy buffers: in float64, rounded once."""
        rows, keys = (self.batch, self.heads, self.m, self.d), (self.batch, self.key_heads, self.n, self.d)

        def window(buffer: Any, shape: Sequence[int], strides: tuple[int, ...]) -> torch.Tensor:
            return window_tensor(buffer, (tuple(shape), strides, self.dtype))

        first = 1 if self.grads else 0
        q = window(ins[first], rows, self.q).double()
        kv = [window(ins[first + 1 + i], shape, st).double() for i, (shape, st) in enumerate(self.pieces())]
        k, v = (torch.cat(kv[i::2], 2).repeat_interleave(self.group, 1) for i in (0, 1))
        scores = q @ k.transpose(-1, -2) * self.scale
        if self.mask:
            mask = window_tensor(ins[-1], ((*rows[:3], self.n), self.mask, self.mask_dtype))
            scores = scores.masked_fill(~mask, -math.inf) if self.mask_dtype == "bool" else scores + mask.double()
        if self.causal:
            scores = scores.masked_fill(~torch.ones(self.m, self.n, dtype=torch.bool).tril(), -math.inf)
        if not self.grads:
            lse = torch.logsumexp(scores, -1)
            if not self.strict:
                lse = torch.where(lse == -math.inf, 0.0, lse)
            window(outs[0], rows, self.o).copy_(torch.exp(scores - lse[..., None]) @ v)
            window_tensor(outs[1], (rows[:3], self.lse, self.compute)).copy_(lse)
            return
        do, o = window(ins[0], rows, self.grads[0]).double(), window(ins[4], rows, self.o).double()
        p = torch.exp(scores - window_tensor(ins[5], (rows[:3], self.lse, self.compute)).double()[..., None])
        ds = p * (do @ v.transpose(-1, -2) - (do * o).sum(-1, keepdim=True)) * self.scale
        window(outs[0], rows, self.grads[1]).copy_(ds @ k)
        for i, of_heads in ((1, ds.transpose(-1, -2) @ q), (2, p.transpose(-1, -2) @ do)):
            shared = of_heads.unflatten(1, (self.key_heads, self.group)).sum(2)
            window(outs[i], keys, self.grads[1 + i]).copy_(shared)

    def describe(self) -> str:
        """Its extents."""
        causal = " causal" if self.causal else ""
        return f"{self.kind} {self.batch}x{self.heads} of m{self.m} n{self.n} d{self.d}{causal}"

    def steps(self) -> Steps:
        """The same as loop nests over temporaries, the score matrix among them: the plain form for stock DaCe."""
        if self.group > 1:
            return _shared_steps(self)
        if self.grads:
            return _backward_steps(self)
        return _joined_steps(self) if self.more else _forward_steps(self)


def _score(spec: AttentionSpec, body: LoopNestBuilder, operand: int, dot: Expr) -> Expr:
    """A score over loops (batch, head, query, key, …) from its product; the mask is input ``operand``."""
    score = dot * spec.scale
    if spec.mask:
        mask = body.load(operand, (*spec.mask, *[0] * (body.rank - 4)))
        if spec.mask_dtype == "bool":
            score = body.where(mask, score, body.const(-math.inf, spec.compute))
        else:
            score = score + body.convert(mask, spec.compute)
    if spec.causal:
        score = body.where(body.index(3) <= body.index(2), score, body.const(-math.inf, spec.compute))
    return score


def _forward_steps(spec: AttentionSpec) -> Steps:
    b, h, m, n, d = spec.batch, spec.heads, spec.m, spec.n, spec.d
    whole, one = (b, h, m, n), spec.compute
    dense = contiguous(whole)
    scores = LoopNestBuilder(whole, (d,))
    q, k = scores.input(spec.dtype), scores.input(spec.dtype)
    dot = scores.load(q, (*spec.q[:3], 0, spec.q[3])) * scores.load(k, (*spec.k[:2], 0, spec.k[2], spec.k[3]))
    mask = scores.input(spec.mask_dtype) if spec.mask else 0
    score = _score(spec, scores, mask, scores.reduce("sum", dot))
    scores.store(scores.output(one), (*dense, 0), score)

    soft = LoopNestBuilder(whole[:3], (n,))
    s = soft.load(soft.input(one), dense)
    top = soft.reduce("max", s)
    top = soft.where(top.eq(-math.inf), soft.const(0, one), top)
    e = soft.op("exp", s - top)
    z = soft.reduce("sum", e)
    if not spec.strict:
        z = soft.where(z.eq(0.0), soft.const(1, one), z)
    soft.store(soft.output(one), dense, e / z)
    soft.store(soft.output(one), (*spec.lse, 0), top + soft.op("log", z))

    mix = _product(spec, (b, h, m, d), n, (*dense[:3], 0, dense[3]), (*spec.v[:2], 0, spec.v[3], spec.v[2]), spec.o)
    temporaries = [("s", one, math.prod(whole)), ("p", one, math.prod(whole))]
    masks = ["a3"] if spec.mask else []
    return temporaries, [
        (scores.finish(), ["a0", "a1", *masks], ["s"]),
        (soft.finish(), ["s"], ["p", "o1"]),
        (mix, ["p", "a2"], ["o0"]),
    ]


def _joined_steps(spec: AttentionSpec) -> Steps:
    """The pieces of keys and values copied together, then the steps over one piece."""
    whole = (spec.batch, spec.heads, spec.n, spec.d)
    dense = contiguous(whole)
    temporaries, steps = _forward_steps(replace(spec, k=dense, v=dense, first=0, more=()))
    names = {"a1": "k", "a2": "v", "a3": "a5"}
    copies = []
    for kept, new, strides, more in (("a1", "a3", spec.k, spec.more[0]), ("a2", "a4", spec.v, spec.more[1])):
        body = LoopNestBuilder(whole)
        x, y = body.input(spec.dtype), body.input(spec.dtype)
        at, first = body.index(2), body.const(spec.first, "i64")
        old = at < first
        later = body.where(old, body.const(0, "i64"), at - first)
        nothing = body.const(0, spec.compute)
        apart = (*more[:2], 0, more[3])
        value = body.where(
            old,
            body.load(x, strides, old, nothing),
            body.gather(y, apart, [later], [spec.n - spec.first], [more[2]]),
        )
        body.store(body.output(spec.dtype), dense, value)
        copies.append((body.finish(), [kept, new], [names[kept]]))
    joined = [(p, [names.get(r, r) for r in reads], writes) for p, reads, writes in steps]
    size = math.prod(whole)
    return [*temporaries, ("k", spec.dtype, size), ("v", spec.dtype, size)], [*copies, *joined]


def _shared_steps(spec: AttentionSpec) -> Steps:
    """The keys and values of every head copied apart, then the steps over those; gradients are added up in the end."""
    b, h, g, d = spec.batch, spec.key_heads, spec.group, spec.d
    first, names, temporaries, before, after = (1 if spec.grads else 0), {}, [], [], []
    alone, own = replace(spec, group=1), []
    for i, (shape, strides) in enumerate(spec.pieces()):
        dense = contiguous((b, h, g, *shape[2:]))
        body = LoopNestBuilder((b, h, g, *shape[2:]))
        body.store(body.output(spec.dtype), dense, body.load(body.input(spec.dtype), (*strides[:2], 0, *strides[2:])))
        operand = f"a{first + 1 + i}"
        names[operand] = f"own{i}"
        temporaries.append((names[operand], spec.dtype, b * h * g * math.prod(shape[2:])))
        before.append((body.finish(), [operand], [names[operand]]))
        own.append((dense[0], *dense[2:]))
    alone = replace(alone, k=own[0], v=own[1], more=tuple(own[2:]))
    if spec.grads:
        each = (b, h, g, spec.n, d)
        dense = contiguous(each)
        alone = replace(alone, grads=(*spec.grads[:2], (dense[0], *dense[2:]), (dense[0], *dense[2:])))
        for operand, strides in (("o1", spec.grads[2]), ("o2", spec.grads[3])):
            body = LoopNestBuilder((b, h, spec.n, d), (g,))
            x = body.load(body.input(spec.dtype), (*dense[:2], *dense[3:], dense[2]))
            body.store(body.output(spec.dtype), (*strides, 0), body.reduce("sum", body.convert(x, spec.compute)))
            names[operand] = f"own_{operand}"
            temporaries.append((names[operand], spec.dtype, math.prod(each)))
            after.append((body.finish(), [names[operand]], [operand]))
    more, steps = alone.steps()
    inside = [(p, [names.get(x, x) for x in reads], [names.get(x, x) for x in writes]) for p, reads, writes in steps]
    return [*temporaries, *more], [*before, *inside, *after]


def _product(
    spec: AttentionSpec, outer: Sequence[int], inner: int, x: Sequence[int], y: Sequence[int], out: Sequence[int]
) -> LoopNest:
    """out = sum x y, with x a temporary of the compute type."""
    body = LoopNestBuilder(outer, (inner,))
    a, b = body.input(spec.compute), body.input(spec.dtype)
    total = body.reduce("sum", body.load(a, x) * body.load(b, y))
    body.store(body.output(spec.dtype), (*out, 0), total)
    return body.finish()


def _backward_steps(spec: AttentionSpec) -> Steps:
    b, h, m, n, d = spec.batch, spec.heads, spec.m, spec.n, spec.d
    whole, one = (b, h, m, n), spec.compute
    dense, rows = contiguous(whole), contiguous((b, h, m))
    do, dq, dk, dv = spec.grads
    delta = LoopNestBuilder(whole[:3], (d,))
    x, y = delta.input(spec.dtype), delta.input(spec.dtype)
    delta.store(delta.output(one), (*rows, 0), delta.reduce("sum", delta.load(x, do) * delta.load(y, spec.o)))

    body = LoopNestBuilder(whole, (d,))
    names = ["a0", "a1", "a2", "a3"]
    g, q, k, v = (body.input(spec.dtype) for _ in names)
    mask = body.input(spec.mask_dtype) if spec.mask else 0
    lse, center = body.input(one), body.input(one)

    def row(operand: int, st: Sequence[int]) -> Expr:
        return body.load(operand, (*st[:3], 0, st[3]))

    def key(operand: int, st: Sequence[int]) -> Expr:
        return body.load(operand, (*st[:2], 0, *st[2:]))

    dot = body.reduce("sum", row(q, spec.q) * key(k, spec.k))
    grown = body.reduce("sum", row(g, do) * key(v, spec.v))
    p = body.op("exp", _score(spec, body, mask, dot) - body.load(lse, (*spec.lse, 0, 0)))
    ds = p * (grown - body.load(center, (*rows, 0, 0))) * spec.scale
    body.store(body.output(one), (*dense, 0), p)
    body.store(body.output(one), (*dense, 0), ds)

    by_row, by_key = (*dense[:3], 0, dense[3]), (*dense[:2], dense[3], 0, dense[2])

    def across(st: Sequence[int]) -> tuple[int, ...]:
        return (*st[:2], 0, st[3], st[2])

    steps: list[Step] = [
        (delta.finish(), ["a0", "a4"], ["delta"]),
        (body.finish(), [*names, *(["a6"] if spec.mask else []), "a5", "delta"], ["p", "ds"]),
        (_product(spec, (b, h, m, d), n, by_row, across(spec.k), dq), ["ds", "a2"], ["o0"]),
        (_product(spec, (b, h, n, d), m, by_key, across(spec.q), dk), ["ds", "a1"], ["o1"]),
        (_product(spec, (b, h, n, d), m, by_key, across(do), dv), ["p", "a0"], ["o2"]),
    ]
    size = math.prod(whole)
    return [("p", one, size), ("ds", one, size), ("delta", one, b * h * m)], steps
