"""Products that take an epilogue, as nodes: which do, what it is with its operands, and how it is set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from dcir.ir.cost_answers import pays
from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import Fused
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.statements import Read
from dcir.isa import Isa
from dcir.ops.library.contraction import MOST_PACKED_BYTES, ContractionSpec, packs
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.epilogue import first_store, identity_epilogue

VALUE = Operand("", 0)
"""Stands for the product's value among the operands of an epilogue."""

Product = ContractionSpec | ConvolutionSpec


def is_product(spec: object) -> TypeGuard[Product]:
    """Whether an operator can have an epilogue."""
    return isinstance(spec, Product) and spec.takes_epilogue


def epilogue_of(net: Network, op: Op) -> tuple[Product, Fused]:
    """A product without bias, and its epilogue with the operands (``VALUE`` first); the trivial one if it has none."""
    spec, ins, outs = op.spec, net.ins(op), tuple(net.outs(op))
    assert isinstance(spec, Product)
    if spec.epilogue is not None:
        return spec, Fused(spec.epilogue, (VALUE, *ins[2:]), outs)
    shape, strides = spec.shapes[2], spec.result_strides
    if isinstance(spec, ContractionSpec) or not spec.bias:
        return spec, Fused(identity_epilogue(shape, spec.dtype, strides), (VALUE,), outs)
    body = LoopNestBuilder(shape)
    value = body.load(body.input(spec.dtype), contiguous(shape))
    bias = body.load(body.input(spec.dtype), [1 if d == 1 else 0 for d in range(len(shape))])
    body.store(body.output(spec.dtype), strides, value + bias)
    return replace(spec, bias=False), Fused(body.finish(), (VALUE, ins[2]), outs)


def set_epilogue(
    net: Network,
    op: Op,
    spec: Product,
    epilogue: Fused,
    by: str,
    *,
    before: Op | None = None,
    came_from: Sequence[Op] = (),
) -> Op:
    """Give a product this epilogue (none if it only stores): in place, or as a new operator ``before`` another.

    ``came_from`` are the operators that the epilogue takes the place of.
    """
    steps, usual = first_store(epilogue.program).strides, spec.result_strides
    # Along extents of 1 any stride is right, and a usual one names a layout.
    strides = tuple(u if n == 1 else s for s, u, n in zip(steps, usual, spec.shapes[2], strict=True))
    trivial = [s.op for s in epilogue.program.body] == ["load", "store"] and epilogue.program.outputs == (spec.dtype,)
    program = None if trivial else epilogue.program
    made = spec.with_epilogue(program, strides)
    ins = [*net.ins(op)[:2], *epilogue.ins[1:]]
    if before is None:
        return net.rewire(op, made, ins, epilogue.outs, made_by=by, came_from=came_from)
    return net.add_op(made, ins, epilogue.outs, came_from=(op, *came_from), made_by=by, before=before)


def value_first(f: Fused) -> Fused:
    """Inputs numbered by their first use, the product's value before all others."""
    seen = dict.fromkeys(s.operand for s in f.program.body if isinstance(s, Read))
    order = sorted(seen, key=lambda i: f.ins[i] != VALUE)
    place = {old: new for new, old in enumerate(order)}
    body = tuple(s.with_operand(place[s.operand]) if isinstance(s, Read) else s for s in f.program.body)
    return Fused(
        replace(f.program, inputs=tuple(f.program.inputs[i] for i in order), body=body),
        tuple(f.ins[i] for i in order),
        f.outs,
    )


def packs_much(net: Network, product: Op, isa: Isa) -> bool:
    """Whether an epilogue would cost more than it saves: without one, tiles read both operands where they lie."""
    spec = product.spec
    if not isinstance(spec, ContractionSpec) or spec.epilogue is not None or spec.panel:
        return False
    which, nbytes = packs(spec, isa)
    if pays("packing for an epilogue", nbytes <= MOST_PACKED_BYTES):
        return False
    data = net.ins(product)[which].data
    ready = net.preparable()
    return not (data in net.static or data in net.constants or any(w in ready for w in net.writers(data)))
