"""Data gradients of strided convolutions in channels-last on a matrix unit: a product for every residue of a position.

The taps that meet positions of one residue make a kernel of stride 1 over the result's gradient (``conv_problem.data_problems``), whose
results lie as far apart as the stride says. Each is a product whose rows are gathered as in ``conv/matrix.py``, and stored where they
belong; all of a job's products follow each other in one step. Positions that no tap meets are zeros.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.matrix import matrix_last_refusal, pixel_rows
from dcir.codegen.cpp.tiles.conv.nhwc import pack_text
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem, DataGradient
from dcir.codegen.cpp.tiles.emit import Draft, TileStep, round_up
from dcir.codegen.cpp.tiles.gemm.form import ProductForm
from dcir.codegen.cpp.tiles.gemm.matrix import product_draft
from dcir.codegen.cpp.tiles.method import ON_UNIT, Method
from dcir.cost.matrix_unit import COLUMNS
from dcir.ir.refusal import Refusal
from dcir.isa import Isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.epilogue import identity_epilogue
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import panels

text_of = templates("conv/data_strided")


def _refusal(gradient: DataGradient, isa: Isa, threads: int) -> Refusal | None:
    if len(gradient.residues) == 1:
        return Refusal("a gradient without strides is a forward problem")
    if not gradient.met:
        return Refusal("no tap meets a position")
    return next((reason for p in gradient.met if (reason := _refused(p, isa)) is not None), None)


def _refused(p: ConvolutionProblem, isa: Isa) -> Refusal | None:
    if p.dtype != "f32":
        return Refusal(f"numbers of {p.dtype}")
    if p.moves:
        return Refusal("images of any size")
    if p.groups != 1 or p.ys[2] != 1 or p.bias or math.prod(p.inp) == 0:
        return Refusal("several groups, or results that are not in channels-last")
    p = replace(p, panel=COLUMNS, ys=_dense(p))
    return matrix_last_refusal(p, identity_epilogue((p.n, 1, p.co, *p.out), p.dtype, p.ys), isa)


def _dense(p: ConvolutionProblem) -> tuple[int, ...]:
    """Strides of a result whose pixels lie side by side: a product's cost does not depend on where its rows are stored."""
    d, h, w = p.out
    return (d * h * w * p.co, 0, 1, h * w * p.co, w * p.co, p.co)


def data_strided_draft(name: str, gradient: DataGradient, isa: Isa, threads: int) -> Draft:
    """The gradient of x: a0 = gradient of y, a1 = w. Scratch holds all panels, then what a job's products use one after the other."""
    problems = gradient.residues
    texts: list[str] = []
    before: list[str] = []
    after: list[str] = []
    packed, packing, jobs = 0, 0, max(1, threads)
    made = {p: _product(name, p, threads) for p in gradient.met}
    job_bytes = max(d.scratch // d.steps[0].jobs for d in made.values())
    at = sum(map(_packed_bytes, made))
    for i, p in enumerate(p for p in problems if math.prod(p.out)):
        if p.taps == 0:
            after.append(f"    part{i}::zero(j, o0 + {p.y0}LL);")
            text = text_of.zero(
                rows=p.n * p.out[0] * p.out[1], jobs=jobs, planes=p.out[0] * p.out[1], od=p.out[0], oh=p.out[1],
                ow=p.out[2], channels=p.co, yn=p.ys[0], yd=p.ys[3], yh=p.ys[4], yw=p.ys[5],
            )  # fmt: skip
        else:
            draft, (step,) = made[p], made[p].steps
            # The call says where the weights begin.
            text = pack_text(replace(p, panel=COLUMNS, w0=0), packed, operands=False) + draft.text
            count = panels(p.co, COLUMNS)
            call = f"part{i}::pack(j - {packing}, a0, a1 + {p.w0}LL, nullptr, o0, scratch);"
            before.append(f"    if (j < {packing + count}) return {call}")
            mine = f"scratch + {at}LL + j * {job_bytes - draft.scratch // step.jobs}LL"
            call = (
                f"part{i}::{step.function}(j, a0, (const T *)(scratch + {packed}LL), nullptr, o0 + {p.y0}LL, {mine});"
            )
            after.append(f"    if (j < {step.jobs}) {call}")
            packed, packing = packed + _packed_bytes(p), packing + count
        texts.append(f"namespace part{i} {{{text}}}\n")
    texts.append(text_of.step(name="prepare", calls="\n".join(before)))
    texts.append(text_of.step(name="compute", calls="\n".join(after)))
    steps = (TileStep(packing, "prepare"), TileStep(jobs, "compute"))
    return Draft(name, problems[0].dtype, "".join(texts), steps, at + jobs * job_bytes)


def _packed_bytes(p: ConvolutionProblem) -> int:
    return round_up(panels(p.co, COLUMNS) * p.taps * p.ci * COLUMNS * 4, 64)


def _product(name: str, p: ConvolutionProblem, threads: int) -> Draft:
    """One residue's product over all its pixels, B in panels at a1."""
    d, h, w = p.out
    spec = ContractionSpec(
        alike(p.dtype), (), p.n * d * h * w, p.co, p.taps * p.ci, (1, 0), (0, 0), (0, 1), COLUMNS, halves=p.halves
    )
    form = ProductForm(spec, None, ())
    rows = pixel_rows(replace(p, panel=COLUMNS), form)
    text = text_of.result(
        image=d * h * w, plane=h * w, od=d, oh=h, ow=w, yn=p.ys[0], yd=p.ys[3], yh=p.ys[4], yw=p.ys[5]
    )
    rows = replace(rows, text=rows.text + text, result="result_row")
    return product_draft(name, form, rows, threads, source="a1 + pb")


DATA_STRIDED = Method("strided", data_strided_draft, refusal=_refusal, asked=ON_UNIT)
