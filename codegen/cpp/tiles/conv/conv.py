"""Convolutions: from a spec to problems, the choice of method for each, and one plan for all.

Methods: a product of matrices (1x1 kernels), depthwise planes, tiles of several groups, direct tiles (everything else), weight gradient
tiles, and zeros where no tap falls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dcir.codegen.choices import decide
from dcir.codegen.cpp.tiles.conv.data_strided import data_strided_draft, data_strided_suits
from dcir.codegen.cpp.tiles.conv.depthwise import depthwise_draft, depthwise_suits, depthwise_weight_draft
from dcir.codegen.cpp.tiles.conv.depthwise_data import depthwise_data_draft, depthwise_data_suits
from dcir.codegen.cpp.tiles.conv.depthwise_nhwc import channels_suit
from dcir.codegen.cpp.tiles.conv.depthwise_weight import channels_weight_draft
from dcir.codegen.cpp.tiles.conv.direct import direct_draft
from dcir.codegen.cpp.tiles.conv.grouped import grouped_draft, grouped_suits
from dcir.codegen.cpp.tiles.conv.nhwc import last_draft, last_suits
from dcir.codegen.cpp.tiles.conv.problem import (
    ConvolutionProblem,
    data_problems,
    families,
    flat,
    forward_problem,
    is_pointwise,
)
from dcir.codegen.cpp.tiles.conv.weight import weight_draft
from dcir.codegen.cpp.tiles.conv.weight_matrix import weight_matrix_draft, weight_matrix_suits
from dcir.codegen.cpp.tiles.conv.weight_nhwc import weight_last_draft, weight_last_suits
from dcir.codegen.cpp.tiles.conv.weight_pointwise import weight_pointwise_draft, weight_pointwise_suits
from dcir.codegen.cpp.tiles.conv.weight_product import (
    weight_panels_draft,
    weight_panels_suits,
    weight_product_draft,
    weight_product_suits,
)
from dcir.codegen.cpp.tiles.conv.winograd import winograd_draft
from dcir.codegen.cpp.tiles.conv.winograd_weight import winograd_weight_draft
from dcir.codegen.cpp.tiles.emit import (
    HALF,
    Draft,
    TileOperand,
    TileStep,
    assemble,
    assemble_half,
    lanes,
    render,
    round_up,
    unravel,
)  # fmt: skip
from dcir.codegen.cpp.tiles.epilogue.epilogue import epilogue_suits
from dcir.codegen.cpp.tiles.gemm.gemm import gemm_draft
from dcir.codegen.plan import KernelPlan
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.statements import Load, Read
from dcir.ir.types import FLOATS
from dcir.isa import Isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.convolution_statistics import ConvolutionStatisticsSpec
from dcir.ops.library.epilogue import identity_epilogue
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import panels

# Pixels; of fewer, tiles of convolutions with packed weights are faster than products row by row: data gradients of 1x1 kernels with
# strides on Zen 3, 1024 -> 2048 at 14 x 14 52 -> 24 ms (8 images, one core), 256 -> 512 at 56 x 56 30 -> 20.
SHORT_ROWS = 32


def convolution_suits(spec: ConvolutionSpec) -> bool:
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
    return spec.epilogue is None or epilogue_suits(spec.epilogue, spec.dtype)


def plan_convolution(spec: ConvolutionSpec, isa: Isa, threads: int) -> KernelPlan:
    """The kernel of a convolution that ``convolution_suits``; inputs and outputs by kind as in `ConvolutionSpec`."""
    last = spec.x[1] == spec.y[1] == 1 and spec.dtype not in HALF
    if spec.bias and (
        spec.epilogue is not None or spec.winograd or (last and convolution_suits(replace(spec, panel=1)))
    ):
        spec = _bias_first(spec)
    elif last and _stores_from_tiles(spec):
        spec = replace(spec, epilogue=identity_epilogue(spec.shapes[2], spec.dtype, spec.y))
    elif last and _gradient_of_groups(spec):
        spec = replace(spec, epilogue=identity_epilogue(spec.shapes[0], spec.dtype, spec.x))
    inputs = {"forward": 3 if spec.bias else 2}.get(spec.kind, 2)
    if spec.dtype not in HALF:
        return assemble(_draft(spec, isa, threads), isa, inputs)
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
    if not convolution_suits(product):
        return None
    draft = _draft(product, isa, threads)
    # Sums are added vector by vector: a statement without that form (a sigmoid) leaves them to a kernel of their own.
    return draft if draft.sums and draft.epilogue is not None and draft.epilogue.simple else None


def _stores_from_tiles(spec: ConvolutionSpec) -> bool:
    """Whether a channels-last convolution without epilogue runs on the tiles that store through one."""
    if spec.kind != "forward" or spec.epilogue is not None or spec.bias or spec.cin == 1 or spec.cout == 1:
        return False
    return convolution_suits(replace(spec, panel=1)) and not is_pointwise(forward_problem(spec))


def _gradient_of_groups(spec: ConvolutionSpec) -> bool:
    """Whether a data gradient is a grouped convolution itself, and so stores through an epilogue, too."""
    grouped = spec.groups > 1 and spec.cin > 1 and spec.cout > 1
    return grouped and spec.kind == "backward_data" and all(s == 1 for s in spec.stride) and spec.epilogue is None


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
    drafts: list[Draft] = []
    name = f"conv_{spec.kind}_{spec.cin}_{spec.cout}_" + "x".join(map(str, spec.kernel))
    if spec.winograd:
        make = winograd_draft if spec.kind == "forward" else winograd_weight_draft
        return make(name, forward_problem(spec), spec.winograd, isa, threads)
    if spec.kind == "forward":
        problems = [forward_problem(spec)]
    elif spec.kind == "backward_data":
        whole = forward_problem(replace(spec, bias=False))
        draft = depthwise_data_draft(name, whole, isa, threads) if depthwise_data_suits(whole) else None
        if draft is not None and whole.n * math.prod(whole.inp) * math.prod(whole.out) * whole.taps:
            return draft
        problems = list(data_problems(spec))
        if data_strided_suits(problems, isa) and decide("unit", ["matrix", "vector"]) == "matrix":
            return data_strided_draft(name, problems, threads)
        if any(p.taps == 0 for p in problems):
            # Whole rows of zeros first: cheaper than to write every other element.
            f = forward_problem(replace(spec, bias=False))
            whole = replace(f, co=f.ci, out=f.inp, ys=f.xs)
            drafts = [_constant(name, whole, first=True)] if whole.n * whole.groups * math.prod(whole.out) else []
            problems = [p for p in problems if p.taps]
        if len(problems) > 4 or not all(map(depthwise_suits, problems)):
            problems = families(problems)
    else:
        return _weight(name, forward_problem(spec), isa, threads)
    drafts += [_problem(name, p, isa, threads) for p in problems if p.n * p.groups * p.co * math.prod(p.out)]
    return combine(name, spec.dtype, drafts, isa)


def _problem(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    if p.taps * p.ci * math.prod(p.inp) == 0:
        return _constant(name, p)
    if p.family:
        return direct_draft(name, p, isa, threads)
    if grouped_suits(p, isa):
        return grouped_draft(name, p, isa, threads)
    if is_pointwise(p) and p.xs[2] == p.ys[2] == 1 and not (p.bias or p.y0 or p.w0):
        if isa.vectors != "avx512" and _short_rows(p):
            return last_draft(name, p, isa, threads)
        return _rows_of_pixels(name, p, isa, threads)
    if is_pointwise(p) and not p.panel and p.epilogue is None:
        p = flat(p)
        draft = _product(name, p, isa, threads)
        if draft is not None:
            return draft
    if depthwise_suits(p) and not p.panel:
        return depthwise_draft(name, p, isa, threads)
    if last_suits(p, isa):
        return last_draft(name, p, isa, threads)
    return direct_draft(name, p, isa, threads)


def _short_rows(p: ConvolutionProblem) -> bool:
    """Whether results are stored in short rows apart from each other, as the data gradient of a strided convolution is.

    As products of so few rows they would each pack B again.
    """
    apart = p.out[1] > 1 and p.ys[4] != p.out[2] * p.ys[5]
    return apart and p.out[2] <= SHORT_ROWS and p.epilogue is None and not p.panel and min(p.ci, p.co) > 1


def _weight(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    if p.groups * p.co * p.ci * p.taps == 0:
        return Draft(name, p.dtype, "", ())
    if p.n * math.prod(p.out) * math.prod(p.inp) == 0:
        return _fill_weights(name, p)
    if depthwise_suits(p) and channels_suit(p):
        return channels_weight_draft(name, p, isa, threads)
    if depthwise_suits(p):
        return depthwise_weight_draft(name, p, isa, threads)
    p = flat(p) if is_pointwise(p) else p
    product, pointwise = weight_product_suits(p, isa), weight_pointwise_suits(p, isa, threads)
    on_unit = product or pointwise or weight_matrix_suits(p, isa)
    if on_unit and decide("unit", ["matrix", "vector"]) == "matrix":
        if product:
            return weight_product_draft(name, p, isa, threads)
        return (weight_pointwise_draft if pointwise else weight_matrix_draft)(name, p, threads)
    if weight_panels_suits(p, isa) and decide("method", ["panels", "in place"]) == "panels":
        return weight_panels_draft(name, p, isa, threads)
    draft = weight_last_draft if weight_last_suits(p, isa) else weight_draft
    return draft(name, p, isa, threads)


def _rows_of_pixels(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """A pointwise problem in channels-last as Y[n,g,d,h] = X[n,g,d,h] W[g]: rows are pixels, columns are channels."""
    *outer, w = p.out
    group = p.ws[0] if not p.panel else panels(p.co, p.panel) * p.ci * p.panel
    b = (0, group if p.groups > 1 else 0, 0, 0, *((0, 0) if p.panel else (p.ws[2], p.ws[1])))
    epilogue = p.epilogue
    if epilogue is not None:
        epilogue = epilogue.reorder((0, 1, 3, 4, 5, 2), ())
    spec = ContractionSpec(
        alike(p.dtype), (p.n, p.groups, *outer), w, p.co, p.ci, (*p.xs[:2], *p.xs[3:], p.xs[2]), b,
        (*p.ys[:2], *p.ys[3:], p.ys[2]), p.panel, epilogue,
    )  # fmt: skip
    return replace(gemm_draft(spec, isa, threads), name=name)


def _product(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft | None:
    """A pointwise problem as Y[n,g] = W[g] X[n,g], if its positions are one dimension that fills vectors well."""
    if p.inp[0] * p.inp[1] != 1 or p.ys[5] != 1 or p.y0 or p.w0:
        return None
    width, pixels = lanes(isa, p.dtype), p.out[2]
    if pixels / round_up(pixels, width) < 0.85:
        return None
    spec = ContractionSpec(
        alike(p.dtype), (p.n, p.groups), p.co, pixels, p.ci, (0, *p.ws[:3]), (*p.xs[:3], p.xs[5]), (*p.ys[:3], 1)
    )
    draft = gemm_draft(spec, isa, threads, (0, p.co) if p.bias else None)
    # The product's left operand is the weight, the convolution's is the image.
    return replace(draft, name=name, swapped=not draft.swapped)


_CONSTANT = """
$noinline void constant(L j, const T *, const T *, const T *a2, T *o0, unsigned char *) {
    $offset
    for (L h = 0; h < $h; h++)
        for (L w = 0; w < $w; w++) o0[p + h * ${sh}LL + w * ${sw}LL] = $value;
}
"""


def _constant(name: str, p: ConvolutionProblem, *, first: bool = False) -> Draft:
    """The bias alone, or zeros; ``first``, if others write to the same result after."""
    if p.ys[2] == 1 and p.ys[5] != 1 and p.co > 1:  # channels last: they are the innermost loop
        extents = (p.n, p.groups, p.out[0], p.out[1])
        sums = {"p": (p.y0, (*p.ys[:2], *p.ys[3:5])), "channel": (0, (0, p.co, 0, 0))}
        loops = {"h": p.out[2], "w": p.co, "sh": p.ys[5], "sw": 1, "value": "a2[channel + w]" if p.bias else "0"}
    else:
        extents = (p.n, p.groups, p.co, p.out[0])
        sums = {"p": (p.y0, p.ys[:4]), "channel": (0, (0, p.co, 1, 0))}
        loops = {"h": p.out[1], "w": p.out[2], "sh": p.ys[4], "sw": p.ys[5], "value": "a2[channel]" if p.bias else "0"}
    text = render(_CONSTANT, offset=unravel("j", extents, sums), **loops)
    step = TileStep(math.prod(extents), "constant")
    return Draft(name, p.dtype, text, (step, TileStep(0, "")) if first else (TileStep(0, ""), step))


def _fill_weights(name: str, p: ConvolutionProblem) -> Draft:
    extents = (p.groups, p.co, p.ci, p.ker[0])
    text = render(
        _CONSTANT, offset=unravel("j", extents, {"p": (0, p.ws[:4])}), h=p.ker[1], w=p.ker[2], sh=p.ws[4], sw=p.ws[5],
        value="0",
    )  # fmt: skip
    return Draft(name, p.dtype, text, (TileStep(math.prod(extents), "constant"),))


def combine(name: str, dtype: str, drafts: Sequence[Draft], isa: Isa) -> Draft:
    """Independent drafts as one: their last steps together, their other steps together before."""
    if len(drafts) <= 1:
        return drafts[0] if drafts else Draft(name, dtype, "", ())
    texts: list[str] = []
    made: list[TileStep] = []
    at = 0
    first: list[tuple[int, str]] = []
    last: list[tuple[int, str]] = []
    for i, d in enumerate(drafts):
        texts.append(f"namespace part{i} {{{d.epilogue.text(isa) if d.epilogue else ''}{d.text}}}\n")
        left, right = ("a1", "a0") if d.swapped else ("a0", "a1")
        result = "o0" if d.epilogue is None else "nullptr"
        more = "" if d.epilogue is None else f", {d.epilogue.operands().replace('dcir_tile::', f'part{i}::')}"
        for steps, into in ((d.steps[:-1], first), (d.steps[-1:], last)):
            into += [
                (s.jobs, f"part{i}::{s.function}($, {left}, {right}, a2, {result}, scratch + {at}LL{more});")
                for s in steps
                if s.jobs
            ]
        at += round_up(d.scratch, 64)
    for title, calls in (("prepare", first), ("compute", last)):
        if not calls:
            continue
        start, lines = 0, []
        for jobs, call in calls:
            lines.append(f"    if (j < {start + jobs}) return {call.replace('$', f'j - {start}')}")
            start += jobs
        head = f"void {title}(L j, const T *a0, const T *a1, const T *a2, T *o0, unsigned char *scratch)"
        texts.append(render("$noinline $head {\n$lines\n}\n", head=head, lines="\n".join(lines)))
        made.append(TileStep(start, title))
    return Draft(name, dtype, "".join(texts), tuple(made), at)
