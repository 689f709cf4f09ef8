"""Measures how near convolutions come to the processor's peak: python examples/convolution_peak.py [--threads N] [--only NAME …] [--cold].

Layers of ResNet-50, MobileNetV2, EfficientNet, YOLOv4, ResNeXt-50 and RegNetY run through dcir's own emitter in channels-last, weights
packed, with an epilogue of bias and relu. Operations are counted as if the padding were multiplied, as every library's benchmark does;
so a kernel that leaves it out can be above the peak on small images, and the second share counts only what exists. ``--cold`` takes
other weights in every call, more of them than caches hold, as a network's layers do.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from gemm_peak import best, build

from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.isa import host_isa
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import panel_width

# batch, input channels, output channels, side of the image, kernel, stride, groups
LAYERS = {
    "3x3 64@56": (1, 64, 64, 56, 3, 1, 1), "3x3 128@28": (1, 128, 128, 28, 3, 1, 1),
    "3x3 256@14": (1, 256, 256, 14, 3, 1, 1), "3x3 512@7": (1, 512, 512, 7, 3, 1, 1),
    "3x3 512@7 b8": (8, 512, 512, 7, 3, 1, 1), "3x3s2 128@56": (1, 128, 128, 56, 3, 2, 1),
    "3x3s2 512@14": (1, 512, 512, 14, 3, 2, 1), "1x1 64-256@56": (1, 64, 256, 56, 1, 1, 1),
    "1x1 256-64@56": (1, 256, 64, 56, 1, 1, 1), "1x1 512-128@28": (1, 512, 128, 28, 1, 1, 1),
    "1x1 1024-256@14": (1, 1024, 256, 14, 1, 1, 1), "1x1 256-1024@14": (1, 256, 1024, 14, 1, 1, 1),
    "1x1 2048-512@7": (1, 2048, 512, 7, 1, 1, 1), "1x1s2 256-512@56": (1, 256, 512, 56, 1, 2, 1),
    "7x7s2 3-64@224": (1, 3, 64, 224, 7, 2, 1), "3x3s2 3-32@224": (1, 3, 32, 224, 3, 2, 1),
    "3x3 128@52": (1, 128, 128, 52, 3, 1, 1), "3x3 256@26": (1, 256, 256, 26, 3, 1, 1),
    "3x3 512-1024@13": (1, 512, 1024, 13, 3, 1, 1), "dw3 32@112": (1, 32, 32, 112, 3, 1, 32),
    "dw3 144@56": (1, 144, 144, 56, 3, 1, 144), "dw3 384@14": (1, 384, 384, 14, 3, 1, 384),
    "dw3 960@7": (1, 960, 960, 7, 3, 1, 960), "dw5 672@14": (1, 672, 672, 14, 5, 1, 672),
    "32x4 128@56": (4, 128, 128, 56, 3, 1, 32), "32x8s2 256@56": (4, 256, 256, 56, 3, 2, 32),
    "32x8 256@28": (4, 256, 256, 28, 3, 1, 32), "32x16 512@14": (4, 512, 512, 14, 3, 1, 32),
    "32x32 1024@7": (4, 1024, 1024, 7, 3, 1, 32), "4x16s2 64@112": (4, 64, 64, 112, 3, 2, 4),
    "8x16 128@28": (4, 128, 128, 28, 3, 1, 8), "10x24 240@28": (4, 240, 240, 28, 3, 1, 10),
}  # fmt: skip
COLD_BYTES = 160 << 20


def spec_of(layer: tuple[int, ...]) -> ConvolutionSpec:
    """The layer with padding that keeps the image's size; a picture of three channels comes with its channels apart."""
    n, cin, cout, size, k, stride, groups = layer
    out = (size - 1) // stride + 1

    def last(channels: int, side: int) -> tuple[int, ...]:
        pitch = channels + 16 if channels > 16 else channels
        return (side * side * pitch, 1, side * pitch, pitch)

    shape = (n, cout, out, out)
    body = LoopNestBuilder(shape)
    value = body.load(body.input("f32"), contiguous(shape)) + body.load(body.input("f32"), (0, 1, 0, 0))
    body.store(body.output("f32"), last(cout, out), body.op("max", value, body.const(0, "f32")))
    depthwise = groups == cin
    x = contiguous((n, cin, size, size)) if cin == 3 else last(cin, size)
    w = (1, 1, k * cout, cout) if depthwise else contiguous((cout, cin, k, k))
    return ConvolutionSpec(
        "forward", alike("f32"), n, groups, cin // groups, cout // groups, (size, size), (k, k), (out, out), (stride, stride),
        (k // 2, k // 2), (1, 1), x, w, last(cout, out), False, 0 if depthwise else panel_width("f32", host_isa()), body.finish(),
    )  # fmt: skip


class Operands:
    """Small random numbers for a kernel, and tables of pointers to them, one for each copy of the weights."""

    def __init__(self, spec: ConvolutionSpec, *, cold: bool) -> None:
        def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
            return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))

        weights = math.prod(spec.packed_weights if spec.panel else spec.shapes[1])
        copies = max(1, min(1024, COLD_BYTES // (4 * weights))) if cold else 1
        channels = spec.groups * spec.cout
        x, y = extent(spec.shapes[0], spec.x), extent(spec.shapes[2], spec.y)
        self.weights = [self._numbers(weights) for _ in range(copies)]
        self.others = [self._numbers(n) for n in (x, channels, y)]
        self.others += [np.zeros(128 << 20, np.uint8), np.zeros(64, np.int32)]
        image, *rest = self.others
        self.tables = [
            (ctypes.c_void_p * 6)(*(a.ctypes.data + -a.ctypes.data % 64 for a in (image, w, *rest)))
            for w in self.weights
        ]

    @staticmethod
    def _numbers(count: int) -> Any:
        return np.random.default_rng(count).standard_normal(count + 16, np.float32)


def peak_of(library: Any) -> float:
    """Operations a second of one thread."""
    steps, lanes = 2_000_000, host_isa().vector_bytes // 4
    library.peak.restype = ctypes.c_float
    return 24 * lanes * steps / best(lambda: library.peak(ctypes.c_long(steps)), time.thread_time, 0.5)


def warm(run: Any, operands: Operands, clock: Callable[[], float], budget: float) -> float:
    """Seconds of the fastest call."""
    return best(lambda: run(operands.tables[0]), clock, budget)


def cold(run: Any, operands: Operands, clock: Callable[[], float], budget: float) -> float:
    """Seconds of a middling call with weights that were not used for long."""
    found: list[float] = []
    end = time.perf_counter() + budget
    while not found or time.perf_counter() < end:
        for table in operands.tables:
            begin = clock()
            run(table)
            found.append(clock() - begin)
    return statistics.median(found)


def main() -> None:
    """Print one line a layer: GF/s and the shares of the peak, for one thread and for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="*", default=list(LAYERS))
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--cold", action="store_true")
    given = parser.parse_args()
    specs = {name: spec_of(LAYERS[name]) for name in given.only}
    for threads in sorted({1, given.threads}):
        library = build([(s, threads) for s in specs.values()])  # type: ignore[misc]
        peak = threads * peak_of(library)
        print(f"{threads} thread{'s' * (threads > 1)}, peak {peak / 1e9:.0f} GF/s")
        clock = time.thread_time if threads == 1 else time.perf_counter
        for i, (name, spec) in enumerate(specs.items()):
            operands = Operands(spec, cold=given.cold)
            run = getattr(library, f"run{i}")
            seconds = (cold if given.cold else warm)(run, operands, clock, given.seconds)
            nominal = 2 * math.prod(spec.shapes[2]) * spec.cin * math.prod(spec.kernel)
            exact = spec.operations() - 2 * math.prod(spec.shapes[2])
            print(
                f"{name:18} {nominal / seconds / 1e9:6.0f} GF/s  {nominal / seconds / peak:5.2f} of the peak"
                f" ({exact / seconds / peak:4.2f} of what exists)  {seconds * 1e6:8.0f} us"
            )


if __name__ == "__main__":
    main()
