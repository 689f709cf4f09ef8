"""Static weights are laid out once, the way the kernels of products read them.

    y = x @ w         -->   w' = panels of neighbouring columns of w      once per weight
                            y = x @ w'
    y = w @ x         -->   y' = x' @ panels of w'                        where y lies along its columns
    y = conv(x, w)    -->   w' = panels of output channels, of all groups where those are small; depthwise: taps, then channels

A panel holds a few vectors of columns for every step of the reduction (``dcir.ops.library.packing``), so a register tile reads its weights
as one stream. Else every call would gather them again. Weights of a product that were widened from a half type are packed as they were:
they take half the bytes, and the tile widens them, or multiplies them as they are (``use_dots.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.cost.target import target_of
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ir.statements import Load, Narrow, Store
from dcir.ir.types import FLOATS, HALVES
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec, channel_pairs_refusal
from dcir.ops.library.epilogue import reorder_epilogue
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import (
    pack_program,
    packed_shape,
    pair_program,
    panel_width,
    panels,
    strides_at_source,
    wants_panels,
)
from dcir.transforms.base import Pass, PassResult

_Packed = dict[tuple[Operand, LoopNest], Operand]


@dataclass(frozen=True)
class PackWeights(Pass):
    """Pack the static weights of matrix products and convolutions.

    Attributes:
        least_filled: share of a panel that the output channels of a group must fill.
    """

    tier: ClassVar[int] = 1
    after: ClassVar[tuple[str, ...]] = ("widen-products", "use-winograd", "lower-to-im2col", "use-dots")
    least_filled: float = 0.5

    def apply(self, net: Network) -> PassResult:
        """Visit every product that is not static itself; equal weights are packed once."""
        outcome = PassResult.of(net)
        ready = net.preparable()
        static = net.static_containers(ready)
        packed: _Packed = {}
        wide = {o.data: net.readers(o.data) for op in ready for o in net.outs(op) if net.readers(o.data)}
        for op in net.ops():
            spec = op.spec
            if op in ready or not isinstance(spec, ContractionSpec | ConvolutionSpec) or spec.panel:
                continue
            if spec.dtype not in FLOATS or not any(o.data in static for o in net.ins(op)[:2]):
                continue
            work = self._contraction if isinstance(spec, ContractionSpec) else self._convolution
            done = work(net, op, spec, static, packed)  # type: ignore[arg-type]
            if isinstance(done, Refusal):
                outcome.missed(done, (op,))
            elif done:
                outcome.passed((op,))
        for op in ready:
            outs = {o.data for o in net.outs(op)}
            if outs <= wide.keys() and not any(net.readers(name) for name in outs):
                net.remove_op(op, into={reader for name in outs for reader in wide[name] if reader in net})
                for name in outs:
                    net.remove_container(name)
        return outcome

    def _contraction(
        self, net: Network, op: Op, spec: ContractionSpec, static: set[str], packed: _Packed
    ) -> bool | Refusal:
        ins = net.ins(op)
        if ins[1].data not in static:
            if spec.c[-2] != 1 and spec.n != 1:
                return Refusal("the weights are on the left, and the result does not lie along their rows")
            spec, ins = _transposed(spec), [ins[1], ins[0], *ins[2:]]
        rank = len(spec.batch)
        isa = target_of(net).machine.isa
        if not wants_panels(spec.dtype, spec.n, spec.k, isa):
            return Refusal("too few columns for a panel")
        if not net.allows(self, op):
            return SWITCHED_OFF
        own = [d for d in range(rank) if spec.b[d]]
        source, strides, stored = _as_stored(net, spec, ins[1])
        panel = panel_width(spec.dtype, isa, stored)
        groups, group_strides = tuple(spec.batch[d] for d in own), tuple(strides[d] for d in own)
        dots = spec.dots and stored == "bf16"
        if dots:
            program = pair_program(stored, groups, spec.n, (spec.k,), panel, group_strides, strides[-1], (strides[-2],))
        else:
            program = pack_program(
                stored or spec.dtype, groups, spec.n, (spec.k,), panel, group_strides, strides[-1], (strides[-2],)
            )
        shape = packed_shape(groups, spec.n, spec.k, panel, pairs=dots)
        weights = self._pack(net, op, program, source, packed)
        steps = dict(zip(own, contiguous(shape), strict=False))
        b = (*(steps.get(d, 0) for d in range(rank)), 0, 0)
        made = replace(spec, b=b, panel=panel, types=alike(spec.dtype, stored), dots=dots)
        net.rewire(op, made, [ins[0], weights, *ins[2:]], net.outs(op), made_by=self.name)
        return True

    def _convolution(
        self, net: Network, op: Op, spec: ConvolutionSpec, static: set[str], packed: _Packed
    ) -> bool | Refusal:
        ins = net.ins(op)
        if spec.kind != "forward" or ins[1].data not in static:
            return Refusal("only convolutions read packed weights") if spec.kind != "forward" else False
        kernel, channels = spec.kernel, spec.groups * spec.cout
        if spec.cin == spec.cout == 1 and spec.groups > 1:
            last = (1, channels, *(channels * s for s in contiguous(kernel)))
            if all(n == 1 or a == b for n, a, b in zip(spec.shapes[1], spec.w, last, strict=True)):
                return False
            body = LoopNestBuilder((*kernel, channels))
            value = body.load(body.input(spec.dtype), (*spec.w[2:], spec.w[0]))
            body.store(body.output(spec.dtype), contiguous(body.outer), value)
            made, program = replace(spec, w=last), body.finish()
        else:
            isa = target_of(net).machine.isa
            panel = panel_width(spec.dtype, isa)
            made = replace(spec, panel=panel)
            if isa.dots and channel_pairs_refusal(spec) is None:
                made = replace(made, types=alike(spec.dtype, "bf16"), pairs=True)
            if (
                spec.groups > 1
                and not made.spanned
                and spec.cout < self.least_filled * panel * panels(spec.cout, panel)
            ):
                return Refusal("the channels of a group would leave most of a panel empty")
            program = made.packing()
        if not net.allows(self, op):
            return SWITCHED_OFF
        weights = self._pack(net, op, program, ins[1], packed)
        net.rewire(op, made, [ins[0], weights, *ins[2:]], net.outs(op), made_by=self.name)
        return True

    def _pack(self, net: Network, op: Op, program: LoopNest, source: Operand, packed: _Packed) -> Operand:
        """The packed form of the weights; made before ``op`` if no operator before has made it."""
        key = source, program
        if key not in packed:
            packed[key] = Operand(net.add_container(program.outer, program.outputs[0]))
            net.add_op(program, [source], [packed[key]], came_from=(op,), made_by=self.name, before=op)
        return packed[key]


def _as_stored(net: Network, spec: ContractionSpec, b: Operand) -> tuple[Operand, tuple[int, ...], str]:
    """What B was widened from, its strides there, and its half type; B itself and "" if it is nothing that was widened."""
    shape, writers = spec.shapes[1], net.writers(b.data)
    if spec.dtype == "f32" and len(writers) == 1 and isinstance(writers[0].spec, LoopNest):
        p, (target,) = writers[0].spec, net.outs(writers[0])[:1]
        load, *rounded, store = p.body
        if p.inner or not isinstance(load, Load) or not isinstance(store, Store):
            return b, spec.b, ""
        # Another half type's rounding is no part of the weights as they are stored.
        plain = all(isinstance(s, Narrow) and s.storage == p.inputs[0] for s in rounded)
        if plain and p.inputs[0] in HALVES and p.outputs == ("f32",) and target == b:
            strides = strides_at_source(shape, spec.b, p.outer, load.strides, store.strides)
            if strides is not None:
                (source,) = net.ins(writers[0])
                return source, strides, p.inputs[0]
    return b, spec.b, ""


def _transposed(spec: ContractionSpec) -> ContractionSpec:
    """The same product as C' = B' A', its operands to be exchanged."""

    def swap(s: Sequence[int]) -> tuple[int, ...]:
        return (*s[:-2], s[-1], s[-2])

    epilogue = spec.epilogue
    if epilogue is not None:
        epilogue = reorder_epilogue(epilogue, swap(range(len(epilogue.outer))))
    return replace(spec, m=spec.n, n=spec.m, a=swap(spec.b), b=swap(spec.a), c=swap(spec.c), epilogue=epilogue)
