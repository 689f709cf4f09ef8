"""A convolution together with sums over what it stores, channel by channel: a batch's statistics, a normalisation's gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from dcir.ir.dace.nodes import Op
from dcir.ir.describe import words_of
from dcir.ir.loop_forms import drop_unit_loops
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.network import Network
from dcir.ir.operator import Operator, Steps
from dcir.ir.refusal import Refusal
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference as reference_of
from dcir.ir.serialize import register
from dcir.ir.statements import Access, Cast, Const, Gather, Index, Load, Reduce, Statement, Store, Strides
from dcir.ir.types import FLOATS
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.epilogue import identity_epilogue

_R = TypeVar("_R")

LEAST_BYTES = 1 << 18
"""Of a result: a small one is read again from the nearest cache."""


@register
@dataclass(frozen=True)
class ConvolutionStatisticsSpec(Operator):
    """A convolution, and a program that sums over one of its results.

    Inputs are the convolution's and then the program's from its second on; outputs are the convolution's (without a result that is not
    kept) and then the program's.

    Attributes:
        product: "forward" or "backward_data".
        sums: loops (channel,) outside and (n, *spatial) inside; its input 0 is result number ``result`` of the product, as stored.
            ``refused_as_sums`` says what it may hold.
        result: which result.
        kept: whether that result is an output. If only the sums read it, it is not stored, and the outputs after it move up.
    """

    product: ConvolutionSpec
    sums: LoopNest
    result: int = 0
    kept: bool = True

    @property
    def kind(self) -> str:
        """The convolution's."""
        return self.product.kind

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes of each operand; the result is not read again."""
        reads, writes = self.product.footprint()
        others, made = self.sums.footprint()
        return (*reads, *others[1:]), (*self.stored(writes), *made)

    def operations(self) -> int:
        """Those of both."""
        return self.product.operations() + self.sums.operations()

    def stored(self, results: Sequence[_R]) -> list[_R]:
        """Of the convolution's results, one entry each, those that are outputs."""
        return [r for i, r in enumerate(results) if self.kept or i != self.result]

    def result_size(self) -> int:
        """Elements from the first to the last of the result that the sums read."""
        first = self._first()
        (store,) = (s for s in first.body if isinstance(s, Store) and s.operand == self.result)
        return 1 + sum((d - 1) * t for d, t in zip(first.dims, store.strides, strict=True))

    def names(self, instead: str) -> tuple[list[str], list[str], list[str], list[str]]:
        """Operands of the convolution and of the program, inputs and outputs of each; a result that is not kept is ``instead``."""
        reads, writes = self.product.footprint()
        ins = [f"a{i}" for i in range(len(reads) + len(self.sums.inputs) - 1)]
        stored = self.stored(writes)
        outs = [f"o{i}" for i in range(len(stored))]
        made = [f"o{len(stored) + i}" for i in range(len(self.sums.outputs))]
        if not self.kept:
            outs.insert(self.result, instead)
        return ins[: len(reads)], outs, [outs[self.result], *ins[len(reads) :]], made

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """One after the other."""
        place = {f"a{i}": a for i, a in enumerate(ins)} | {f"o{i}": o for i, o in enumerate(outs)}
        if not self.kept:
            place["result"] = np.zeros(self.result_size(), np.float32)
        first, results, second, made = ([place[n] for n in names] for names in self.names("result"))
        self.product.reference(first, results)
        run_program(self.sums, second, made, reference_of)

    def steps(self) -> Steps:
        """The same as two loop nests, over a temporary if the result is not kept."""
        first, results, second, made = self.names("result")
        temporaries = [] if self.kept else [("result", "f32", self.result_size())]
        return temporaries, [(self.product.loop_nest(), first, results), (self.sums, second, made)]

    def describe(self) -> str:
        """Both, one after the other."""
        return f"{self.product.describe()}, then {words_of(self.sums.body)}"

    def _first(self) -> LoopNest:
        """The product's epilogue."""
        spec = self.product
        shape, strides = (spec.shapes[2], spec.y) if spec.kind == "forward" else (spec.shapes[0], spec.x)
        return spec.epilogue or identity_epilogue(shape, spec.dtype, strides)

    def whole_epilogue(self) -> LoopNest:
        """The product's epilogue with the part of the program that runs over all points.

        Its inputs and outputs are the node's, and one more output per sum, to which an added store goes.
        """
        first = self._first()
        body = list(first.body)
        ((at, value),) = (
            (i, s.args[0]) for i, s in enumerate(body) if isinstance(s, Store) and s.operand == self.result
        )
        stored = self.stored(first.outputs)
        outputs = [*stored, *self.sums.outputs]
        if not self.kept:
            body[at] = Const(0.0, "f32")  # nobody's: it goes below, and the others keep their numbers
            for i, s in enumerate(body):
                if isinstance(s, Store) and s.operand > self.result:
                    body[i] = s.with_operand(s.operand - 1)
        where: dict[int, int] = {}
        channel = (0, 1, *(0 for _ in first.outer[2:]))
        for i, (s, (stage, full)) in enumerate(zip(self.sums.body, self.sums.levels(), strict=True)):
            if isinstance(s, Load) and s.operand == 0:
                where[i] = value
                continue
            if not isinstance(s, Reduce) and (stage or (isinstance(s, Store) and not full)):
                continue
            new = s.renumbered(where)
            if isinstance(new, Reduce):
                outputs.append("f64")
                new = Store(len(outputs) - 1, channel, new.dtype, new.args, added=True)
            elif isinstance(new, Load | Store):
                c, n, *rest = new.strides
                before = len(first.inputs) - 1 if isinstance(new, Load) else len(stored)
                new = new.at(new.operand + before, (n, c, *rest))
            body.append(new)
            where[i] = len(body) - 1
        inputs = (*first.inputs, *self.sums.inputs[1:])
        return simplify(replace(first, inputs=inputs, outputs=tuple(outputs), body=tuple(body)))

    def rest(self, jobs: int, pitch: int) -> tuple[LoopNest, list[int]]:
        """What follows the sums, over partial sums [job][sum][channel] in float64, with ``pitch`` elements from one sum to the next.

        Its inputs are the program's from the second on, then one for every sum. Also returns which outputs it writes.
        """
        p = self.sums
        count = sum(1 for s in p.body if isinstance(s, Reduce))
        body: list[Statement] = []
        where: dict[int, int] = {}
        made: list[int] = []
        seen = 0
        for i, (s, (stage, full)) in enumerate(zip(p.body, p.levels(), strict=True)):
            if full and not stage:
                continue
            if isinstance(s, Reduce):
                body.append(Load(len(p.inputs) - 1 + seen, (1, count * pitch), "f64"))
                body.append(Reduce(s.kind, "f64", (len(body) - 1,)))
                if s.dtype != "f64":
                    body.append(Cast(s.dtype, (len(body) - 1,)))
                seen += 1
            else:
                new = s.renumbered(where)
                if isinstance(new, Load):
                    new = new.at(new.operand - 1, (new.strides[0], 0))
                elif isinstance(new, Store):
                    made.append(new.operand)
                    new = new.at(len(made) - 1, (new.strides[0], 0))
                body.append(new)
            where[i] = len(body) - 1
        inputs = (*p.inputs[1:], *("f64" for _ in range(count)))
        outputs = tuple(p.outputs[k] for k in made)
        return simplify(replace(p, inner=(jobs,), inputs=inputs, outputs=outputs, body=tuple(body))), made


def refused_as_sums(p: LoopNest) -> Refusal | None:
    """Why a program of one outer loop cannot follow a convolution."""
    if len(p.outer) != 1 or not p.inner:
        return Refusal("it does not sum over all but the channels")
    for s, (stage, full) in zip(p.body, p.levels(), strict=True):
        if isinstance(s, (Gather, Index)) or (isinstance(s, Load) and s.args):
            return Refusal("it reads through indices or a mask")
        if isinstance(s, Reduce) and (s.kind != "sum" or s.dtype not in FLOATS or stage != 1):
            return Refusal("it takes something else than sums of one sweep")
        if full and stage:
            return Refusal("a later stage goes over the inner loops again")
        if not _is_float32(p, s, full):
            return Refusal("it computes in types that a convolution's tiles do not have")
    return None if any(isinstance(s, Reduce) for s in p.body) else Refusal("it sums nothing")


def _is_float32(p: LoopNest, s: Statement, full: bool) -> bool:
    """Whether a statement is one of float32 or bool, or a float64 factor of a sum."""
    if not full or isinstance(s, Reduce):
        return True
    if s.dtype == "f64":
        given = [p.body[a] for a in s.args]
        if isinstance(s, Cast):
            return given[0].dtype == "f32"
        return s.op == "mul" and all(isinstance(g, Cast) for g in given)
    if isinstance(s, (Load, Store)):
        return (p.inputs if isinstance(s, Load) else p.outputs)[s.operand] in ("f32", "bool")
    return s.dtype in ("f32", "bool") and all(p.body[a].dtype in ("f32", "bool") for a in s.args)


def over(p: LoopNest, order: Sequence[int | None], outer: int, extents: Sequence[int]) -> LoopNest:
    """``p`` with loops of ``extents``: loop number ``order[d]`` of ``p``, or a new one of extent 1 where that is None."""

    def strides(old: Strides) -> Strides:
        return tuple(0 if k is None else old[k] for k in order)

    body = tuple(s.with_strides(strides(s.strides)) if isinstance(s, Access) else s for s in p.body)
    return replace(p, outer=tuple(extents[:outer]), inner=tuple(extents[outer:]), body=body)


def sums_convolved(net: Network, op: Op) -> bool:
    """Whether a program's sums are those of a convolution's result, so that they may join it once layouts are chosen."""
    p = op.spec
    if (
        not isinstance(p, LoopNest)
        or not any(isinstance(s, Reduce) for s in p.body)
        or refused_as_sums(drop_unit_loops(p))
    ):
        return False
    return _follows(net, op, p.points())


def _follows(net: Network, op: Op, points: int, depth: int = 4) -> bool:
    """Whether a program reads a convolution's result of so many points, by itself or through pointwise programs that may join it."""
    for o in net.ins(op):
        c = net.containers[o.data]
        if math.prod(c.shape) != points or c.nbytes < LEAST_BYTES:
            continue
        for w in net.writers(o.data):
            if isinstance(w.spec, ConvolutionSpec) and w.spec.kind != "backward_weight" and w.spec.dtype == "f32":
                return True
            if depth and isinstance(w.spec, LoopNest) and not w.spec.inner and _follows(net, w, points, depth - 1):
                return True
    return False
