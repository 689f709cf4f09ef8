"""Gradients of channels-last convolutions on the matrix unit: specs, operands with NaN between what is read, and float64 references."""

import math

import numpy as np
import torch

from dcir.ir.network import contiguous
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from tests.codegen.cpp.tiles.conv.test_weight_nhwc import last
from tests.codegen.cpp.tiles.conv.test_winograd import window
from tests.codegen.cpp.tiles.tile_harness import compile_plans

BAD_VALUES = [np.inf, np.nan, 3.4e38, 1e-33]  # the last parts of the last are lost


def gradient_spec(kind, shape, gap, w=None):
    """Of (n, cin, cout, in_size, kernel, stride, low padding, high padding, dilation); with a gap the weights are channels-last too."""
    n, cin, cout, size, kernel, stride, low, high, dilation = shape
    out = tuple(
        (i + a + b - d * (k - 1) - 1) // s + 1
        for i, a, b, d, k, s in zip(size, low, high, dilation, kernel, stride, strict=True)
    )
    if w is None:
        w = contiguous((cout, cin, *kernel))
        if gap:
            w = (math.prod(kernel) * cin, 1, *(cin * s for s in contiguous(kernel)))
    return ConvolutionSpec(kind, alike("f32"), n, 1, cin, cout, size, kernel, out, stride, low, dilation,
                           last((n, cin, *size), 1, gap), w, last((n, cout, *out), 1, gap))  # fmt: skip


def square_spec(kind, n, cin, cout, size, k, stride):
    """Of a square image with padding that keeps its size."""
    out = size // stride
    return ConvolutionSpec(
        kind, alike("f32"), n, 1, cin, cout, (size, size), (k, k), (out, out), (stride, stride), (k // 2,) * 2, (1, 1),
        last((n, cin, size, size), 1, 0), contiguous((cout, cin, k, k)), last((n, cout, out, out), 1, 0),
    )  # fmt: skip


class _Kernels(dict):
    """Kernels by case; of other cases than were asked for they are made when they are looked up."""

    def __init__(self, planned, cases):
        self._planned = planned
        self._make(cases)

    def __missing__(self, case):
        self._make([case])
        return self[case]

    def _make(self, cases):
        plans = [self._planned(case) for case in cases]
        assert all("tdpbf16ps" in plan.globals for plan in plans)
        self.update(zip(cases, compile_plans([(plan, "f32", 2) for plan in plans], ["-O1"]), strict=True))


def kernels_of(planned, cases):
    """The cases' kernels, all on the matrix unit."""
    return _Kernels(planned, cases)


def _places(spec):
    """Of x, w and y, by number, what a gradient reads, and the number of what it writes."""
    return ((0, 2), 1) if spec.kind == "backward_weight" else ((2, 1), 0)


def operands(spec, shift=0.0):
    """What the gradient reads; with a ``shift`` numbers from there on, all positive."""
    rng, strides = np.random.default_rng(5), (spec.x, spec.w, spec.y)
    found = [window(rng, spec.shapes[i], strides[i], np.float32) for i in _places(spec)[0]]
    return [(np.abs(v) + shift).astype(np.float32) if shift else v for v in found]


def spoiled(spec, operand, value):
    """Operands of which one has such a value in the middle, where no tap meets the border: there the reference multiplies by zeros."""
    given = operands(spec)
    if abs(value) < 1:
        given[operand] *= np.float32(value)
        return given
    place = _places(spec)[0][operand]
    shape, strides = spec.shapes[place], (spec.x, spec.w, spec.y)[place]
    middle = sum(n // 2 * s for n, s in zip(shape[2:], strides[2:], strict=True)) if place != 1 else 0
    given[operand][middle] = value
    return given


def check(call, spec, given, **near):
    """The kernel's result, where it is to be, is that of the reference; nothing else is written."""
    place = _places(spec)[1]
    strides = (spec.x, spec.w, spec.y)[place]
    size = 1 + sum((n - 1) * s for n, s in zip(spec.shapes[place], strides, strict=True))
    wanted, got = (np.full(size, 2.0, np.float32) for _ in range(2))
    with np.errstate(invalid="ignore", over="ignore"):
        spec.reference(given, [wanted])
    call(*map(torch.from_numpy, given), torch.from_numpy(got))
    np.testing.assert_allclose(got, wanted, **near)
    return got


def check_spoiled(call, spec, operand, value):
    """What is not finite, or too small for parts, reaches only what it should."""
    near = {"rtol": 1e-4, "atol": 1e-37 if abs(value) < 1 else 1e-4}
    check(call, spec, spoiled(spec, operand, value), **near)


def check_random(call, spec):
    """Numbers between -1 and 1."""
    taps = math.prod(spec.kernel)
    summed = spec.n * math.prod(spec.out_size) if spec.kind == "backward_weight" else spec.cout * taps
    small = 1e-6 * (4 + summed**0.5)
    check(call, spec, operands(spec), rtol=small, atol=small)
