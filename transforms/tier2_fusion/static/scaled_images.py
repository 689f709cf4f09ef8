"""What an epilogue reads that is the convolution's own image at the result's place, times and plus a static number per channel."""

from __future__ import annotations

from collections.abc import Sequence

from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import Fused
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand
from dcir.ir.statements import Load, Store
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.product import Product, epilogue_of, is_product
from dcir.transforms.tier2_fusion.static.weighted_sums import ChannelNumbers, WeightedSum, weighted_sums


def stored_with(net: Network, op: Op) -> tuple[LoopNest | Product, Fused] | None:
    """What an operator does before it stores, with the operands; None where there is no program of that."""
    if isinstance(op.spec, LoopNest):
        return op.spec, Fused(op.spec, tuple(net.ins(op)), tuple(net.outs(op)))
    return epilogue_of(net, op) if is_product(op.spec) else None


def scaled_images(
    net: Network, op: Op, spec: ConvolutionSpec, f: Fused, static: set[str], numbers: ChannelNumbers
) -> dict[Load, WeightedSum]:
    """What an epilogue reads of the image at the result's own place: itself, or times and plus a number per channel, as the image's
    writer has stored it beside."""
    if spec.cin != spec.cout or spec.in_size != spec.out_size or set(spec.stride) != {1}:
        return {}
    image, found = net.ins(op)[0], dict[Load, WeightedSum]()
    for s in f.program.body:
        if not isinstance(s, Load) or not s.operand or s.args or f.program.inputs[s.operand] != spec.dtype:
            continue
        if not same_walk(s.strides, spec.x, spec.shapes[2]):
            continue
        if f.ins[s.operand] == image:
            found[s] = WeightedSum({s: None}, None)
        elif (made := _scaled_image(net, spec, image, f.ins[s.operand], static, numbers)) is not None:
            found[s] = made
    return found


def _scaled_image(
    net: Network, spec: ConvolutionSpec, image: Operand, other: Operand, static: set[str], numbers: ChannelNumbers
) -> WeightedSum | None:
    """What of the image another operand is: made of it, or stored with it by one operator."""
    writers = net.writers(other.data)
    made = stored_with(net, writers[0]) if len(writers) == 1 else None
    if made is None or net.containers[other.data].role != "transient" or other.data in net.result_containers():
        return None
    f = made[1]
    p, stores = f.program, [s for s in f.program.body if isinstance(s, Store)]
    if p.outer != spec.shapes[0] or p.inner:
        return None
    own: list[Load | Store]
    if net.writers(image.data) == writers:
        own = [s for s in stores if f.outs[s.operand] == image]
    else:
        own = [s for s in p.body if isinstance(s, Load) and not s.args and f.ins[s.operand] == image]
    beside = [s for s in stores if f.outs[s.operand] == other]
    if len(own) != 1 or len(beside) != 1 or p.outputs[beside[0].operand] != spec.dtype:
        return None
    if not all(s.dtype == spec.dtype and same_walk(s.strides, spec.x, p.outer) for s in (*own, *beside)):
        return None
    value = p.body[own[0].args[0]] if isinstance(own[0], Store) else own[0]
    found = weighted_sums(f, static, numbers, {value})[beside[0].args[0]]
    return found if found is not None and list(found.terms) == [value] else None


def same_walk(a: Sequence[int], b: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether two windows of one shape are walked alike."""
    return all(n == 1 or s == t for s, t, n in zip(a, b, shape, strict=True))
