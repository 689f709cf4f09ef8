"""Convolutions without taps: results are the bias, or zeros."""

from __future__ import annotations

import math

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.emit import Draft, TileStep, unravel
from dcir.codegen.cpp.tiles.method import Method
from dcir.ir.refusal import Refusal
from dcir.isa import Isa

text_of = templates("conv/constant")


def constant_draft(name: str, p: ConvolutionProblem, *, first: bool = False) -> Draft:
    """The bias alone, or zeros; ``first``, if others write to the same result after."""
    if p.ys[2] == 1 and p.ys[5] != 1 and p.co > 1:  # channels last: they are the innermost loop
        extents = (p.n, p.groups, p.out[0], p.out[1])
        sums = {"p": (p.y0, (*p.ys[:2], *p.ys[3:5])), "channel": (0, (0, p.co, 0, 0))}
        loops = {"h": p.out[2], "w": p.co, "sh": p.ys[5], "sw": 1, "value": "a2[channel + w]" if p.bias else "0"}
    else:
        extents = (p.n, p.groups, p.co, p.out[0])
        sums = {"p": (p.y0, p.ys[:4]), "channel": (0, (0, p.co, 1, 0))}
        loops = {"h": p.out[1], "w": p.out[2], "sh": p.ys[4], "sw": p.ys[5], "value": "a2[channel]" if p.bias else "0"}
    text = text_of.constant(loops, offset=unravel("j", extents, sums))
    step = TileStep(math.prod(extents), "constant")
    return Draft(name, p.dtype, text, (step, TileStep(0, "")) if first else (TileStep(0, ""), step))


def _zeros_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    extents = (p.groups, p.co, p.ci, p.ker[0])
    text = text_of.constant(
        offset=unravel("j", extents, {"p": (0, p.ws[:4])}), h=p.ker[1], w=p.ker[2], sh=p.ws[4], sw=p.ws[5],
        value="0",
    )  # fmt: skip
    return Draft(name, p.dtype, text, (TileStep(math.prod(extents), "constant"),))


# ---------------------------------------------------------------------- methods
def _refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    return Refusal("taps meet the image") if p.taps * p.ci * math.prod(p.inp) else None


def _draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    return constant_draft(name, p)


def _weight_refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    return Refusal("taps meet the image") if p.n * math.prod(p.out) * math.prod(p.inp) else None


def _nothing_refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    return Refusal("there are weights") if p.groups * p.co * p.ci * p.taps else None


def _nothing_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    return Draft(name, p.dtype, "", ())


CONSTANT = Method("constant", _draft, refusal=_refusal)
NO_WEIGHTS = Method("nothing", _nothing_draft, refusal=_nothing_refusal)
ZERO_WEIGHTS = Method("zeros", _zeros_draft, refusal=_weight_refusal)
