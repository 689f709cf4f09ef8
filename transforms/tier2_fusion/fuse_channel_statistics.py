"""Sums over a convolution's result, channel by channel, are taken while it is computed.

    y = conv(x, w); s, q = sum(y), sum(y * y)          -->   y, s, q = conv(x, w) with sums
    dx = conv^T(dy, w); s, t = sum(dx'), sum(dx' x')   -->   dx, s, t = conv^T(dy, w) with sums

with dx' what an activation lets through of dx, and x' another operand: batch normalisation's statistics, and the sums of its gradient.
A program of one sweep joins if its outer loop is the product's channel and its inner loops are all others, one to one, by the
same arithmetic on strides as epilogues. What it makes of the sums it still makes, once they are complete. Saves one read of the result;
and its store, where the product has other results (dx' above) and only the sums read this one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import match, place_of_both
from dcir.ir.loop_forms import drop_unit_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ir.statements import Load, Reduce, Store
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.convolution_statistics import (
    LEAST_BYTES,
    ConvolutionStatisticsSpec,
    over,
    refused_as_sums,
    sums_convolved,
)
from dcir.ops.library.epilogue import identity_epilogue
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class FuseChannelStatistics(Pass):
    """Programs of one sweep into the convolutions before them.

    Attributes:
        min_bytes: least size of the result.
        max_operands: most operands of the program.
    """

    tier: ClassVar[int] = 2
    after: ClassVar[tuple[str, ...]] = ("assign-layouts", "lower-to-im2col", "pack-weights", "use-winograd")
    min_bytes: int = LEAST_BYTES
    max_operands: int = 20

    def apply(self, net: Network) -> PassResult:
        """Visit programs with reductions in order of execution."""
        outcome = PassResult.of(net)
        position = {op: float(i) for i, op in enumerate(net.ops())}
        for op in net.ops():
            if not isinstance(op.spec, LoopNest) or not any(isinstance(s, Reduce) for s in op.spec.body):
                continue
            for o in dict.fromkeys(net.ins(op)):
                product = _product(net, o)
                if product is None or net.containers[o.data].nbytes < self.min_bytes:
                    continue
                size = net.containers[o.data].nbytes
                reason = self._try(net, product, op, o, position)
                if reason is None:
                    outcome.passed((product, op))
                    outcome.saved_bytes += size if net.writers(o.data) else 2 * size
                    break
                outcome.missed(reason, (product, op))
        return outcome

    def reserves(self, net: Network, op: Op) -> Refusal | None:
        """Sums over a convolution's result: with later stages, or in parts, they could not join it once layouts are chosen."""
        return Refusal("a convolution may take the sums") if sums_convolved(net, op) else None

    def _try(self, net: Network, product: Op, consumer: Op, read: Operand, position: dict[Op, float]) -> Refusal | None:
        """Move ``consumer`` into ``product``; the reason why not."""
        made = summed(net, product, consumer, read)
        if isinstance(made, Refusal):
            return made
        spec, others = made
        if len(others) > self.max_operands:
            return Refusal("the sums would have too many operands")
        where = place_of_both(net, product, consumer, position)
        if where is None:
            return Refusal("another operator needs the product first")
        if not net.allows(self, product, consumer):
            return SWITCHED_OFF
        if net.read_once(read.data):
            lean = replace(spec, kept=False)
            # Tiles that only add have no form: something is stored.
            spec = lean if any(isinstance(s, Store) and not s.added for s in lean.whole_epilogue().body) else spec
        ins, outs = [*net.ins(product), *others], [*spec.stored(net.outs(product)), *net.outs(consumer)]
        fused = net.add_op(spec, ins, outs, came_from=(product, consumer), made_by=self.name, before=where)
        position[fused] = position[where]
        for op in (product, consumer):
            net.remove_op(op, into=fused)
            del position[op]
        if not spec.kept:
            net.remove_container(read.data)
        return None


def summed(
    net: Network, product: Op, consumer: Op, read: Operand
) -> tuple[ConvolutionStatisticsSpec, list[Operand]] | Refusal:
    """The product with the consumer's sums, and the operands that the latter adds; or why not."""
    spec, outs, ins = product.known(ConvolutionSpec), net.outs(product), net.ins(consumer)
    forward = spec.kind == "forward"
    shape, strides = (spec.shapes[2], spec.y) if forward else (spec.shapes[0], spec.x)
    stored = spec.epilogue or identity_epilogue(shape, spec.dtype, strides)
    stores = [s for s in stored.body if isinstance(s, Store) and outs[s.operand].data == read.data]
    if len(stores) != 1 or stores[0].dtype != "f32":
        return Refusal("the product writes it in several parts, or in another type")
    if {o.data for o in outs} & {o.data for o in ins} != {read.data} or sum(o.data == read.data for o in ins) != 1:
        return Refusal("the sums read several results of the product")
    c = drop_unit_loops(consumer.known(LoopNest))
    refusal = refused_as_sums(c)
    if refusal is not None:
        return refusal
    loads = [(i, ins[s.operand].offset) for i, s in enumerate(c.body) if isinstance(s, Load) and ins[s.operand] == read]
    m = match(stored, stores[0], outs[stores[0].operand].offset, c, loads)
    if isinstance(m, Refusal):
        return m
    loops = [None if n == 1 else m.partner(d) for d, n in enumerate(shape)]
    found = [k for k in loops if k is not None]
    c = m.consumer
    if any(k is None or c.dims[k] != n for k, n in zip(loops, shape, strict=True) if n > 1):
        return Refusal("the sums do not run over the product's results one to one")
    if len(c.outer) != 1 or loops[1] != 0 or sorted(found) != list(range(len(c.dims))):
        return Refusal("the sums do not run over the product's results one to one")
    n, channel, *spatial = zip(loops, shape, strict=True)
    order, extents = zip(channel, n, *spatial, strict=True)
    sums = over(c, order, 1, extents)
    number = ins.index(read)
    place = {k: 0 if k == number else k + (k < number) for k in range(len(ins))}
    inputs = (sums.inputs[number], *(t for k, t in enumerate(sums.inputs) if k != number))
    body = tuple(s.with_operand(place[s.operand]) if isinstance(s, Load) else s for s in sums.body)
    made = replace(sums, inputs=inputs, body=body)
    return ConvolutionStatisticsSpec(spec, made, stores[0].operand), [o for k, o in enumerate(ins) if k != number]


def _product(net: Network, o: Operand) -> Op | None:
    """The convolution that alone wrote a container, if its tiles hold channels side by side and can sum over them."""
    writers = net.writers(o.data)
    if len(writers) != 1 or not isinstance(writers[0].spec, ConvolutionSpec):
        return None
    spec = writers[0].spec
    if spec.kind == "backward_weight" or spec.dtype != "f32" or spec.bias or not spec.x[1] == spec.y[1] == 1:
        return None
    depthwise = spec.cin == spec.cout == 1 and len(spec.kernel) == 2
    if spec.kind == "backward_data" and (any(s != 1 for s in spec.stride) or not (depthwise or max(spec.kernel) == 1)):
        return None
    return writers[0] if depthwise or (spec.cin > 1 and spec.cout > 8) else None
