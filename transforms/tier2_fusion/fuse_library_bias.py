"""A value per column that is added to a product is added by the library that multiplies.

    t = x @ w; y = t + b[column]     -->   y = x @ w + b, one call

cuBLAS adds it before it stores. It is for sums that stay a kernel of their own, since what they make is stored for others: what a
backward keeps in front of an activation. Saves writing and reading the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_forms import collapse, drop_unit_loops, order_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Load, Store
from dcir.ir.types import compute_type
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.library_call import refused_by_library
from dcir.transforms.rule import Rule


class Sum(NamedTuple):
    """A loop nest that adds a value per column to a product.

    Attributes:
        product, op: the operators.
        bias: the values' operand.
        step: their stride.
        strides: of the result over rows and columns.
    """

    product: Op
    op: Op
    bias: Operand
    step: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class FuseLibraryBias(Rule[None, Sum]):
    """Sums with a bias into calls of libraries."""

    tier: ClassVar[int] = 2
    before: ClassVar[tuple[str, ...]] = ("call-libraries",)
    in_bodies: ClassVar[bool] = False  # no call into torch is inside of a loop or branch

    def survey(self, net: Network) -> None:
        """Nothing."""

    def pattern(self, net: Network, op: Op, known: None) -> Sum | None:
        """A sum of two values, one of which is a product's."""
        if not isinstance(op.spec, LoopNest) or op.spec.inner or len(net.outs(op)) != 1 or op.spec.points() == 0:
            return None
        p = collapse(order_loops(drop_unit_loops(op.spec)))
        if [s.op for s in p.body if s.op != "narrow"] != ["load", "load", "add", "store"] or len(p.outer) != 2:
            return None
        store = next(s for s in p.body if isinstance(s, Store))
        loads = [s for s in p.body if isinstance(s, Load) and not s.args]
        ins = net.ins(op)
        for value, bias in (loads, loads[::-1]) if len(loads) == 2 else ():
            writers = net.writers(ins[value.operand].data)
            if len(writers) == 1 and isinstance(writers[0].spec, ContractionSpec) and not bias.strides[0]:
                spec = writers[0].spec
                if (spec.batch, (spec.m, spec.n), spec.c) == ((), p.outer, value.strides) and bias.strides[1] > 0:
                    return Sum(writers[0], op, ins[bias.operand], bias.strides[1], store.strides)
        return None

    def check(self, net: Network, match: Sum, known: None) -> Refusal | int:
        """Whether a library has it."""
        spec, (out,) = match.product.known(ContractionSpec), net.outs(match.product)
        if (refused := refused_by_library(spec)) is not None:
            return refused
        if spec.epilogue is not None:
            return Refusal("it is more than a product")
        types = {net.containers[o.data].dtype for o in (out, match.bias, *net.outs(match.op))}
        if types != {spec.dtype}:
            return Refusal("libraries add what is of the product's type")
        if net.readers(out.data) != [match.op] or out.data in net.result_containers():
            return Refusal("the product has other readers")
        if out not in net.ins(match.op):
            return Refusal("the sum is with another part of the product's container")
        if net.containers[match.bias.data].role not in ("input", "constant"):
            return Refusal("what is added may not be there yet")
        return 2 * net.containers[out.data].nbytes

    def rewrite(self, net: Network, match: Sum, known: None) -> Sequence[Op]:
        """The product stores the sum."""
        spec, (old,) = match.product.known(ContractionSpec), net.outs(match.product)
        shape = (spec.m, spec.n)
        body = LoopNestBuilder(shape)
        value = body.load(body.input(compute_type(spec.dtype)), contiguous(shape))
        bias = body.load(body.input(spec.dtype), (0, match.step))
        body.store(body.output(spec.dtype), match.strides, value + bias)
        made = spec.with_epilogue(body.finish(), match.strides)
        ins = [*net.ins(match.product)[:2], match.bias]
        new = net.rewire(match.product, made, ins, net.outs(match.op), made_by=self.name, came_from=(match.op,))
        net.remove_op(match.op, into=new)
        net.remove_container(old.data)
        return ()
