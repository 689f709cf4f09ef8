"""A pass of your own that `dcir view` led to (docs/finds.md): the mean of a sum of branches is the sum of their means.

    s[c,p] = sum_r x[r,c,p];  m[c] = f(sum_p s[c,p])   -->   q[r,c] = sum_p x[r,c,p];  m[c] = f(sum_r q[r,c])

Split attention (ResNeSt) and selective kernels (SKNet) pool a sum of images. Here the sum is not written for the sake of a few numbers,
and a convolution that makes x takes the sums q itself. The order of additions changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Access, Load, Reduce
from dcir.transforms.rule import Rule


@dataclass(frozen=True)
class SumOfBranches(Rule[None, tuple[Op, Op]]):
    """Means of sums as sums of means."""

    tier: ClassVar[int] = 2
    before: ClassVar[tuple[str, ...]] = ("split-reduction", "fuse-epilogues")

    def survey(self, net: Network) -> None:
        """There is nothing to find out beforehand."""

    def pattern(self, net: Network, op: Op, known: None) -> tuple[Op, Op] | None:
        """A sum over a few branches, and the one operator that sums it up."""
        both = op, *net.readers(net.outs(op)[0].data)
        heads = [o.spec.body[:2] for o in both if isinstance(o.spec, LoopNest)]
        if len(heads) != 2 or len(both) != 2 or len(op.known(LoopNest).body) != 3:
            return None
        return both if all(isinstance(a, Load) and b == Reduce("sum", a.dtype, (0,)) for a, b in heads) else None

    def check(self, net: Network, match: tuple[Op, Op], known: None) -> Refusal | int:
        """It saves the sum's writing and reading."""
        (op, reader), (s, m), (out,) = match, (o.known(LoopNest) for o in match), net.outs(match[0])
        if out.data in net.result_containers() or net.ins(reader) != [out] or sum(a.op == "load" for a in m.body) > 1:
            return Refusal("the sum is read for more than a mean")
        if _walked(s, m) is None or s.dims[-1] > 8 or len(s.inner) != 1:
            return Refusal("the mean runs over other loops than the sum")
        return s.bytes_moved() + m.bytes_moved() - net.moved_by(op)

    def rewrite(self, net: Network, match: tuple[Op, Op], known: None) -> Sequence[Op]:
        """Sum over places first: one loop over branches and channels, as a convolution has its channels, where they lie so."""
        (op, reader), (s, m) = match, (o.known(LoopNest) for o in match)
        walked = _walked(s, m) or []
        count, step, rank = s.inner[0], s.body[0].strides[-1], len(m.outer)  # type: ignore[attr-defined]
        own = [(n, t) for n, t in zip(m.outer, walked, strict=False) if n > 1]
        one = len(own) == 1 and step == own[0][0] * own[0][1]  # branch after branch, channel after channel
        loops = [(count * own[0][0], own[0][1])] if one else [(count, step), *own]
        body = LoopNestBuilder([n for n, _ in loops], m.inner)
        value = body.load(body.input(s.inputs[0]), [*(t for _, t in loops), *walked[rank:]])
        q = Operand(net.add_container((count, *m.outer), value.dtype))
        body.store(
            body.output(value.dtype), [*contiguous(body.outer), *(0 for _ in m.inner)], body.reduce("sum", value)
        )
        sums = net.add_op(body.finish(), net.ins(op), [q], came_from=match, made_by=self.name, before=reader)
        first, *rest = contiguous((count, *m.outer))
        branches = tuple(b.with_strides((*b.strides[:rank], 0)) if isinstance(b, Access) else b for b in m.body[1:])
        made = replace(m, inner=(count,), inputs=(value.dtype,), body=(Load(0, (*rest, first), value.dtype), *branches))
        net.rewire(reader, made, [q], net.outs(reader), made_by=self.name)
        data = net.outs(op)[0].data
        net.remove_op(op, into=sums)
        net.remove_container(data)
        return ()


def _walked(s: LoopNest, m: LoopNest) -> list[int] | None:
    """Steps of the branches' image along the mean's loops; None where these are not the sum's."""
    steps = {(n, b): a for n, a, b in zip(s.outer, s.body[0].strides, s.body[2].strides, strict=False) if n > 1}  # type: ignore[attr-defined]
    found = [0 if n == 1 else steps.pop((n, t), None) for n, t in zip(m.dims, m.body[0].strides, strict=True)]  # type: ignore[attr-defined]
    return None if None in found or steps else found  # type: ignore[return-value]
