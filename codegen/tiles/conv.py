"""Convolutions: from a spec to problems, the choice of method for each, and one plan for all.

Methods: a product of matrices (1x1 kernels), depthwise planes, direct tiles (everything else), weight gradient tiles, and
zeros where no tap falls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dcir.codegen.plan import KernelPlan
from dcir.codegen.tiles.conv_depthwise import depthwise_draft, depthwise_suits, depthwise_weight_draft
from dcir.codegen.tiles.conv_direct import direct_draft
from dcir.codegen.tiles.conv_problem import Problem, data_problems, families, flat, forward_problem, is_pointwise
from dcir.codegen.tiles.conv_weight import weight_draft
from dcir.codegen.tiles.emit import (
    HALF,
    Draft,
    Operand,
    Step,
    assemble,
    assemble_half,
    lanes,
    render,
    round_up,
    unravel,
)  # fmt: skip
from dcir.codegen.tiles.gemm import gemm_draft
from dcir.codegen.tiles.isa import Isa
from dcir.ops.contraction import ContractionSpec
from dcir.ops.convolution import ConvolutionSpec


def plan_convolution(spec: ConvolutionSpec, isa: Isa, threads: int) -> KernelPlan:
    """The kernel of a convolution; inputs and output by kind as in `ConvolutionSpec`."""
    inputs = {"forward": 3 if spec.bias else 2}.get(spec.kind, 2)
    if spec.dtype not in HALF:
        return assemble(_draft(spec, isa, threads), isa, inputs)
    x = Operand((spec.n, spec.groups * spec.cin, *spec.in_size), spec.x)
    w = Operand((spec.groups * spec.cout, spec.cin, *spec.kernel), spec.w)
    y = Operand((spec.n, spec.groups * spec.cout, *spec.out_size), spec.y)
    bias = Operand((spec.groups * spec.cout,), (1,))
    taken = {"forward": [x, w, bias][:inputs], "backward_data": [y, w], "backward_weight": [x, y]}[spec.kind]
    result = {"forward": y, "backward_data": x, "backward_weight": w}[spec.kind]
    dense = replace(spec, dtype="f32", x=x.dense().strides, w=w.dense().strides, y=y.dense().strides)
    return assemble_half(_draft(dense, isa, threads), isa, spec.dtype, taken, result, threads)


def _draft(spec: ConvolutionSpec, isa: Isa, threads: int) -> Draft:
    drafts: list[Draft] = []
    name = f"conv_{spec.kind}_{spec.cin}_{spec.cout}_" + "x".join(map(str, spec.kernel))
    if spec.kind == "forward":
        problems = [forward_problem(spec)]
    elif spec.kind == "backward_data":
        problems = list(data_problems(spec))
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
    return combine(name, spec.dtype, drafts)


def _problem(name: str, p: Problem, isa: Isa, threads: int) -> Draft:
    if p.taps * p.ci * math.prod(p.inp) == 0:
        return _constant(name, p)
    if p.family:
        return direct_draft(name, p, isa, threads)
    if is_pointwise(p):
        p = flat(p)
        draft = _product(name, p, isa, threads)
        if draft is not None:
            return draft
    if depthwise_suits(p):
        return depthwise_draft(name, p, isa, threads)
    return direct_draft(name, p, isa, threads)


def _weight(name: str, p: Problem, isa: Isa, threads: int) -> Draft:
    if p.groups * p.co * p.ci * p.taps == 0:
        return Draft(name, p.dtype, "", ())
    if p.n * math.prod(p.out) * math.prod(p.inp) == 0:
        return _fill_weights(name, p)
    if depthwise_suits(p):
        return depthwise_weight_draft(name, p, isa, threads)
    return weight_draft(name, flat(p) if is_pointwise(p) else p, isa, threads)


def _product(name: str, p: Problem, isa: Isa, threads: int) -> Draft | None:
    """A pointwise problem as Y[n,g] = W[g] X[n,g], if its positions are one dimension that fills vectors well."""
    if p.inp[0] * p.inp[1] != 1 or p.ys[5] != 1 or p.y0 or p.w0:
        return None
    width, pixels = lanes(isa, p.dtype), p.out[2]
    if pixels / round_up(pixels, width) < 0.85:
        return None
    spec = ContractionSpec(
        p.dtype, (p.n, p.groups), p.co, pixels, p.ci, (0, *p.ws[:3]), (*p.xs[:3], p.xs[5]), (*p.ys[:3], 1)
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


def _constant(name: str, p: Problem, *, first: bool = False) -> Draft:
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
    step = Step(math.prod(extents), "constant")
    return Draft(name, p.dtype, text, (step, Step(0, "")) if first else (Step(0, ""), step))


def _fill_weights(name: str, p: Problem) -> Draft:
    extents = (p.groups, p.co, p.ci, p.ker[0])
    text = render(
        _CONSTANT, offset=unravel("j", extents, {"p": (0, p.ws[:4])}), h=p.ker[1], w=p.ker[2], sh=p.ws[4], sw=p.ws[5],
        value="0",
    )  # fmt: skip
    return Draft(name, p.dtype, text, (Step(math.prod(extents), "constant"),))


def combine(name: str, dtype: str, drafts: Sequence[Draft]) -> Draft:
    """Independent drafts as one: their last steps together, their other steps together before."""
    if len(drafts) <= 1:
        return drafts[0] if drafts else Draft(name, dtype, "", ())
    texts: list[str] = []
    made: list[Step] = []
    at = 0
    first: list[tuple[int, str]] = []
    last: list[tuple[int, str]] = []
    for i, d in enumerate(drafts):
        texts.append(f"namespace part{i} {{{d.text}}}\n")
        left, right = ("a1", "a0") if d.swapped else ("a0", "a1")
        for steps, into in ((d.steps[:-1], first), (d.steps[-1:], last)):
            into += [
                (s.jobs, f"part{i}::{s.function}($, {left}, {right}, a2, o0, scratch + {at}LL);")
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
        made.append(Step(start, title))
    return Draft(name, dtype, "".join(texts), tuple(made), at)
