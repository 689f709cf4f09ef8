"""An attention reads its keys and values in two pieces: a cache of them is not copied together with what is new.

    k = concatenate(cache, new); o = attention(q, k, …)     -->     o = attention(q, cache, new, …)

The first piece is what a copy brought from elsewhere; it is read there. Whoever wrote the rest writes it into a container of its
own, by the arithmetic of ``relayout.py``, in the order in which the first piece lies. Keys and values must be cut at the same
position. Saves reading and writing the cache, and memory for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ops.library.attention import AttentionSpec
from dcir.ops.library.torch_call import TorchCall
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tier3_layout.layout.relayout import BoundOperator, LayoutCopy, copy_between, copy_of, moved

_FIELDS = {1: "k", 2: "v"}


class _Cut(NamedTuple):
    """The keys or the values in two pieces.

    Attributes:
        copied: the copy that goes.
        first: positions in the first piece.
        kept, kept_strides: where the first piece lies; its strides over (batch, head, position, element).
        joined: the container that goes.
        rest, rest_strides: the container of the second piece.
    """

    copied: Op
    first: int
    kept: Operand
    kept_strides: tuple[int, ...]
    joined: str
    rest: str
    rest_strides: tuple[int, ...]


@dataclass(frozen=True)
class ReadCacheInPlace(Pass):
    """Let attentions read joined keys and values before they are joined."""

    tier: ClassVar[int] = 3
    after: ClassVar[tuple[str, ...]] = ("fuse-attention", "share-keys")

    def apply(self, net: Network) -> PassResult:
        """Look at every attention whose keys and values are written by a copy and others."""
        outcome = PassResult.of(net)
        for op in net.ops():
            spec = op.spec
            if not isinstance(spec, AttentionSpec) or spec.grads or spec.more:
                continue
            if any(len(net.writers(net.ins(op)[i].data)) < 2 for i in _FIELDS):
                continue
            made: list[str] = []
            reason = self._try(net, op, outcome, made)
            if reason is not None:
                outcome.missed(reason, (op,))
                for name in made:
                    net.remove_container(name)
        return outcome

    def _try(self, net: Network, op: Op, outcome: PassResult, made: list[str]) -> Refusal | None:
        """Cut both; the reason why not. ``made`` are the containers that were added."""
        changed: dict[Op, BoundOperator] = {}
        cuts: list[_Cut] = []
        for i in _FIELDS:
            cut = self._cut(net, op, i, changed, made)
            if isinstance(cut, Refusal):
                return cut
            cuts.append(cut)
        keys, values = cuts
        if keys.first != values.first:
            return Refusal("keys and values are joined at different positions")
        if not net.allows(self, op):
            return SWITCHED_OFF
        q, _, _, *mask = net.ins(op)
        spec = replace(
            op.known(AttentionSpec),
            k=keys.kept_strides,
            v=values.kept_strides,
            first=keys.first,
            more=(keys.rest_strides, values.rest_strides),
        )
        for writer, new in changed.items():
            net.rewire(writer, *new, made_by=self.name)
        ins = (q, keys.kept, values.kept, Operand(keys.rest, 0), Operand(values.rest, 0), *mask)
        net.rewire(op, spec, ins, net.outs(op), made_by=self.name)
        for cut in cuts:
            outcome.saved_bytes += cut.copied.spec.bytes_moved()
            net.remove_op(cut.copied, into=op)
            net.remove_container(cut.joined)
        outcome.passed((op,))
        return None

    def _cut(self, net: Network, op: Op, i: int, changed: dict[Op, BoundOperator], made: list[str]) -> _Cut | Refusal:
        """Cut the keys (``i`` = 1) or the values (2); what writers will be goes to ``changed``."""
        spec = op.known(AttentionSpec)
        ins, strides = net.ins(op), getattr(spec, _FIELDS[i])
        joined = ins[i].data
        if joined in net.result_containers() or net.readers(joined) != [op] or [o.data for o in ins].count(joined) > 1:
            return Refusal("joined keys or values are read by others")
        writers = net.writers(joined)
        for copied in writers:
            copy = copy_of(net, copied)
            first = _positions(spec, strides, copy) if copy is not None else None
            if copy is None or first is None:
                continue
            part = BoundOperator(replace(spec, n=first), ins, net.outs(op))
            new = moved(part, copy, copy.target, "in")
            if isinstance(new, Refusal):
                continue
            kept: tuple[int, ...] = getattr(new.spec, _FIELDS[i])
            rest = self._rest(net, spec, first, kept, made)
            if rest is None:
                return Refusal("the first piece has no rows in order")
            name, rest_strides = rest
            shape = (spec.batch, spec.key_heads, spec.n - first, spec.d)
            away = _window(spec.dtype, shape, strides, rest_strides)
            begin = Operand(joined, ins[i].offset + first * strides[2])
            aside = copy_between(away, begin, Operand(name, 0))
            for writer in writers:
                if writer is copied:
                    continue
                if isinstance(writer.spec, TorchCall):
                    return Refusal("calls into torch keep the layout of their results")
                was = changed.get(writer, BoundOperator(writer.spec, net.ins(writer), net.outs(writer)))
                there = moved(was, aside, aside.source, "out")
                if isinstance(there, Refusal):
                    return there
                changed[writer] = there
            return _Cut(copied, first, new.ins[i], kept, joined, name, rest_strides)
        return Refusal("no copy brings the first keys and values")

    def _rest(
        self, net: Network, spec: AttentionSpec, first: int, kept: tuple[int, ...], made: list[str]
    ) -> tuple[str, tuple[int, ...]] | None:
        """A container for the second piece, with its dimensions in the order of the first, and its strides."""
        shape = (spec.batch, spec.key_heads, spec.n - first, spec.d)
        walked = [d for d in range(4) if kept[d] and (d == 2 or shape[d] > 1)]
        order = sorted(walked, key=lambda d: -kept[d])
        if 2 not in order or (spec.d > 1 and (order[-1] != 3 or kept[3] != 1)):
            return None
        dense = contiguous([shape[d] for d in order])
        strides = [0] * 4
        for d, s in zip(order, dense, strict=True):
            strides[d] = s
        if spec.d == 1:
            strides[3] = kept[3]
        if shape[2] == 1:  # one row: any stride is right, and the first piece's lets the kernel read both alike
            strides[2] = kept[2]
        name = net.add_container([shape[d] for d in order], spec.dtype)
        made.append(name)
        return name, tuple(strides)


def _positions(spec: AttentionSpec, strides: Sequence[int], copy: LayoutCopy) -> int | None:
    """How many positions a copy brings, if all heads."""
    one = math.prod(
        e for e, s in zip((spec.batch, spec.key_heads, spec.d), (*strides[:2], strides[3]), strict=True) if s
    )
    first, over = divmod(math.prod(copy.dims), one)
    return first if not over and 0 < first < spec.n else None


def _window(dtype: str, shape: Sequence[int], source: Sequence[int], target: Sequence[int]) -> LoopNest:
    """The copy from one window to another; dimensions along which nothing moves are left out."""
    dims = [d for d in range(4) if source[d] and shape[d] > 1]
    body = LoopNestBuilder([shape[d] for d in dims])
    x = body.load(body.input(dtype), [source[d] for d in dims])
    body.store(body.output(dtype), [target[d] for d in dims], x)
    return body.finish()
