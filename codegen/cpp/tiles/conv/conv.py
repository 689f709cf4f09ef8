"""Convolutions: which have kernels on tiles, and one plan for each; ``methods.py`` says how they are computed."""

from __future__ import annotations

import math
from dataclasses import replace

from dcir.codegen.cpp.tiles.conv.depthwise_nhwc import channels_refusal
from dcir.codegen.cpp.tiles.conv.methods import data_draft, forward_draft, weight_gradient_draft
from dcir.codegen.cpp.tiles.conv.nhwc import one_channel
from dcir.codegen.cpp.tiles.conv.problem import data_gradient, forward_problem, is_pointwise
from dcir.codegen.cpp.tiles.emit import HALF, Draft, TileOperand, assemble, assemble_half
from dcir.codegen.cpp.tiles.epilogue.epilogue import supports_epilogue
from dcir.codegen.plan import KernelPlan
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.statements import Load, Read
from dcir.ir.types import FLOATS
from dcir.isa import Isa
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.convolution_statistics import ConvolutionStatisticsSpec
from dcir.ops.library.epilogue import identity_epilogue
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import panel_width


def supports_convolution(spec: ConvolutionSpec) -> bool:
    """Whether there is a kernel for the convolution; else it is a loop nest."""
    if spec.dtype not in (*FLOATS, *HALF) or spec.scales is not None:
        return False
    if not spec.panel and not spec.winograd and spec.epilogue is None:
        return True
    if spec.kind == "backward_weight":
        return spec.dtype == "f32" and spec.x[1] == spec.y[1] == 1 and spec.cin % 16 == spec.cout % 16 == 0
    if spec.dtype in HALF or spec.groups * spec.cin * math.prod(spec.kernel) * math.prod(spec.in_size) == 0:
        return False
    if spec.winograd and (spec.x[1] != 1 or spec.cin % 16):
        return False
    return spec.epilogue is None or supports_epilogue(spec.epilogue, spec.dtype)


def plan_convolution(spec: ConvolutionSpec, isa: Isa, threads: int) -> KernelPlan:
    """The kernel of a convolution that ``supports_convolution``; inputs and outputs by kind as in `ConvolutionSpec`."""
    last = spec.x[1] == spec.y[1] == 1 and spec.dtype not in HALF
    # Panels that run on from one group to the next are read by a kernel that has a bias only as an epilogue.
    spanned = bool(spec.panel) and spec.spanned
    if spec.bias and (
        spec.epilogue is not None or spec.winograd or spanned or (last and supports_convolution(replace(spec, panel=1)))
    ):
        spec = _bias_first(spec)
    elif last and _stores_from_tiles(spec, isa):
        spec = replace(spec, epilogue=identity_epilogue(spec.shapes[2], spec.dtype, spec.y))
    elif last and (_gradient_of_groups(spec, isa) or _gradient_of_halves(spec)):
        spec = replace(spec, epilogue=identity_epilogue(spec.shapes[0], spec.dtype, spec.x))
    inputs = {"forward": 3 if spec.bias else 2}.get(spec.kind, 2)
    if spec.dtype not in HALF:
        return assemble(_draft(spec, isa, threads), isa, inputs, casts=spec.pairs)
    x = TileOperand((spec.n, spec.groups * spec.cin, *spec.in_size), spec.x)
    w = TileOperand((spec.groups * spec.cout, spec.cin, *spec.kernel), spec.w)
    y = TileOperand((spec.n, spec.groups * spec.cout, *spec.out_size), spec.y)
    bias = TileOperand((spec.groups * spec.cout,), (1,))
    taken = {"forward": [x, w, bias][:inputs], "backward_data": [y, w], "backward_weight": [x, y]}[spec.kind]
    result = {"forward": y, "backward_data": x, "backward_weight": w}[spec.kind]
    dense = replace(spec, types=alike("f32"), x=x.dense().strides, w=w.dense().strides, y=y.dense().strides)
    return assemble_half(_draft(dense, isa, threads), isa, spec.dtype, taken, result, threads)


def summed_draft(spec: ConvolutionStatisticsSpec, isa: Isa, threads: int) -> Draft | None:
    """A channels-last convolution whose last step also adds up its jobs' sums, if there is such a kernel."""
    product = replace(spec.product, epilogue=spec.whole_epilogue())
    if (
        product.x[1] != 1
        or product.y[1] != 1
        or product.dtype != "f32"
        or product.bias
        or product.kind == "backward_weight"
    ):
        return None
    if product.kind == "backward_data" and any(s != 1 for s in product.stride):
        return None
    if not supports_convolution(product):
        return None
    draft = _draft(product, isa, threads)
    # Sums are added vector by vector: a statement without that form (a sigmoid), or vectors along something else than channels, leave
    # them to a kernel of their own.
    adds = draft.sums and draft.epilogue is not None and draft.epilogue.simple and draft.epilogue.adds_vectors
    return draft if adds else None


def _stores_from_tiles(spec: ConvolutionSpec, isa: Isa) -> bool:
    """Whether a channels-last convolution without epilogue runs on the tiles that store through one."""
    if spec.kind != "forward" or spec.epilogue is not None or spec.bias:
        return False
    p, panel = forward_problem(spec), panel_width(spec.dtype, isa)
    if (spec.groups == 1 and one_channel(spec.cin, spec.cout, panel)) or channels_refusal(p) is None:
        return False
    if is_pointwise(p) and not replace(spec, panel=panel).spanned:
        return False
    return supports_convolution(replace(spec, panel=1))


def _gradient_of_groups(spec: ConvolutionSpec, isa: Isa) -> bool:
    """Whether a data gradient is a grouped convolution itself, or one of a single channel, and so stores through an epilogue, too."""
    if spec.kind != "backward_data" or any(s != 1 for s in spec.stride) or spec.epilogue is not None:
        return False
    if spec.groups == 1:
        return spec.cout == 1 and not one_channel(spec.cout, spec.cin, panel_width(spec.dtype, isa))
    return channels_refusal(forward_problem(spec)) is not None


def _gradient_of_halves(spec: ConvolutionSpec) -> bool:
    """Whether a data gradient is a convolution on the matrix unit for its numbers, which stores through an epilogue, too."""
    dense = spec.groups == 1 and spec.cin > 1 and spec.cout > 1
    return (
        dense
        and spec.halves
        and spec.kind == "backward_data"
        and all(s == 1 for s in spec.stride)
        and not spec.epilogue
    )


def _bias_first(spec: ConvolutionSpec) -> ConvolutionSpec:
    """The bias as the epilogue's first operand: it follows the weights either way."""
    shape = spec.shapes[2]
    epilogue = spec.epilogue or identity_epilogue(shape, spec.dtype, spec.y)
    body = LoopNestBuilder(shape)
    value, bias = body.input(spec.dtype), body.input(spec.dtype)
    total = body.load(value, contiguous(shape)) + body.load(bias, [1 if d == 1 else 0 for d in range(len(shape))])
    made, where = list(body.body), {}
    for i, s in enumerate(epilogue.body):
        if isinstance(s, Load) and s.operand == 0:
            where[i] = total.n
            continue
        new = s.renumbered(where)
        made.append(new.with_operand(new.operand + 1) if isinstance(new, Read) else new)
        where[i] = len(made) - 1
    inputs = (spec.dtype, spec.dtype, *epilogue.inputs[1:])
    return replace(spec, bias=False, epilogue=replace(epilogue, inputs=inputs, body=tuple(made)))


def _draft(spec: ConvolutionSpec, isa: Isa, threads: int) -> Draft:
    name = f"conv_{spec.kind}_{spec.cin}_{spec.cout}_" + "x".join(map(str, spec.kernel))
    if spec.kind == "backward_data":
        return data_draft(name, data_gradient(spec), isa, threads)
    problem = forward_problem(spec)
    if spec.kind == "backward_weight":
        return weight_gradient_draft(name, problem, isa, threads)
    empty = problem.n * problem.groups * problem.co * math.prod(problem.out) == 0
    return Draft(name, spec.dtype, "", ()) if empty else forward_draft(name, problem, isa, threads)
