"""Which containers of f32 hold nothing but numbers of bf16: read off the stores of those who write them.

Half types are storage, and products of them are those of widened operands (``transforms/tier1_operator/widen_products.py``), so numbers of
bf16 lie in f32 wherever a product reads them. Where a processor multiplies bf16 itself, this is what says that it may.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dcir.cost.target import target_of
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand
from dcir.ir.statements import Compute, Const, Narrow, Read, Store
from dcir.ir.types import bf16_to_f32, f32_to_bf16
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec

HALF = "bf16"
_KEEPING = frozenset(("max", "min", "neg", "abs", "where"))
"""Operators whose result is one of their values, or that with another sign."""


def multiplies_halves(net: Network, op: Op, known: dict[str, bool] | None = None) -> bool:
    """Whether ``op`` is a product of f32 whose operands hold nothing but numbers of bf16, on a processor that has a matrix unit for those.

    Or a convolution, where the processor multiplies pairs of them: such products are in the form that ``UseDots`` gives them.

    Args:
        net: the network.
        op: any operator.
        known: what is known of containers already; what is found out is added.
    """
    spec = op.spec
    isa = target_of(net).machine.isa
    if not isinstance(spec, ContractionSpec | ConvolutionSpec) or spec.dtype != "f32":
        return False
    if not (isa.matrix_unit or (isa.dots and isinstance(spec, ConvolutionSpec))):
        return False
    # Numbers of Winograd's transforms are of f32.
    if isinstance(spec, ConvolutionSpec) and spec.winograd:
        return False
    known = {} if known is None else known
    left, right, *_ = net.ins(op)
    rounded = isinstance(spec, ContractionSpec) and spec.rounds == HALF
    return holds_halves(net, left, known) and (rounded or holds_halves(net, right, known))


def holds_halves(net: Network, operand: Operand, known: dict[str, bool]) -> bool:
    """Whether whoever writes the operand's container stores nothing there but numbers of bf16; ``known``: of containers, filled here."""
    data = operand.data
    if data not in known:
        known[data] = False  # of a circle: two programs that copy from each other in place
        container = net.containers[data]
        writers = net.writers(data)
        known[data] = container.dtype == HALF or (
            container.role == "transient"
            and bool(writers)
            and all(all(_stores_halves(net, writer, data, known)) for writer in writers)
        )
    return known[data]


def _stores_halves(net: Network, writer: Op, data: str, known: dict[str, bool]) -> Iterator[bool]:
    """For each store of ``writer`` into the container whether its value is a number of bf16."""
    spec, ins, outs = writer.spec, net.ins(writer), net.outs(writer)
    product = not isinstance(spec, LoopNest)
    if product:
        epilogue = spec.epilogue if isinstance(spec, ContractionSpec | ConvolutionSpec) else None
        if epilogue is None or (isinstance(spec, ConvolutionSpec) and spec.bias):
            yield False
            return
        spec, ins = epilogue, [ins[0], *ins[2:]]
    assert isinstance(spec, LoopNest)
    body = spec.body

    def held(number: int) -> bool:
        s = body[number]
        if isinstance(s, Narrow):
            return s.storage == HALF
        if isinstance(s, Const):
            return _is_half(s.value)
        if isinstance(s, Compute):
            values = s.args[1:] if s.op == "where" else s.args
            return s.op in _KEEPING and s.dtype == "f32" and all(map(held, values))
        if not isinstance(s, Read) or (product and s.operand == 0):
            return False  # of an epilogue's inputs the first is the product's result
        return all(map(held, s.guard[1:])) and holds_halves(net, ins[s.operand], known)

    for s in body:
        if isinstance(s, Store) and outs[s.operand].data == data:
            yield not s.added and held(s.args[0])


def _is_half(value: float) -> bool:
    """Whether bf16 has that number."""
    one = np.array([value], np.float32)
    return float(bf16_to_f32(f32_to_bf16(one))[0]) == value
