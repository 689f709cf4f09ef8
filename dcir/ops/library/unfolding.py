"""Unfolded images: for every position of a convolution's result the inputs that its taps meet, side by side.

A convolution over an unfolded image is a matrix product; folding adds every element back to where it came from, which is
what turns the product's gradient into the image's (im2col and col2im, [Chellapilla et al. 2006]).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import contiguous
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.convolution_loops import Loops


def depth(spec: ConvolutionSpec) -> int:
    """Elements of the unfolded image per position: taps times input channels."""
    return spec.cin * math.prod(spec.kernel)


def positions(spec: ConvolutionSpec) -> int:
    """Positions of the result, over all samples."""
    return spec.n * math.prod(spec.out_size)


def unfold(spec: ConvolutionSpec, order: Sequence[int]) -> LoopNest:
    """The image of a convolution without groups, unfolded.

    ``order`` is the strides of an unfolded row over (channel, *taps); rows lie one after the other, in the order of (n, *positions).
    """
    loops = Loops(spec, "nyik", "")
    b = loops.body
    value = loops.read_x(b.input(spec.dtype))
    sample, *steps = _rows(spec)
    b.store(b.output(spec.dtype), loops.strides(n=sample, y=steps, i=order[0], k=order[1:]), value)
    return b.finish()


def fold(spec: ConvolutionSpec, order: Sequence[int]) -> LoopNest:
    """Sums over an unfolded image (as ``unfold`` lays it out) for every element of the image."""
    loops = Loops(spec, "nix", "k")
    b = loops.body
    sample, *steps = _rows(spec)
    value = loops.read_result(b.input(spec.dtype), loops.strides(n=sample, i=order[0], k=order[1:]), steps)
    x = spec.x
    b.store(b.output(spec.dtype), loops.strides(n=x[0], i=x[1], x=x[2:]), b.reduce("sum", value))
    return b.finish()


def _rows(spec: ConvolutionSpec) -> list[int]:
    """Strides of an unfolded image over (n, *positions)."""
    return [depth(spec) * s for s in contiguous((spec.n, *spec.out_size))]
