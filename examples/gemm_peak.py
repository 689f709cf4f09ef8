"""Measures how near matrix products come to the processor's peak: python examples/gemm_peak.py [--threads N] [--only MxNxK …].

The peak is that of a loop of independent multiply-adds, measured in the same minute. Every product runs through dcir's own emitter
with weights packed in panels, in place as nn.Linear stores them, and with an epilogue of bias and relu; one thread by processor time,
all threads by the clock.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dcir.cache import Cache
from dcir.codegen.cpp.emitters import plan
from dcir.codegen.cpp.print_kernel import argument_names, kernel_text
from dcir.codegen.cpp.toolchain import Toolchain, Unit, compile_objects, default_flags, link_shared
from dcir.cost.machine import Machine
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.isa import host_isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import packed_shape, panel_width

SQUARE = tuple((n, n, n) for n in (512, 1024, 2048))
TRANSFORMER = ((512, 768, 768), (512, 3072, 768), (512, 768, 3072), (128, 3072, 768), (128, 768, 3072), (788, 768, 768))
POINTWISE = ((49, 512, 2048), (196, 256, 1024), (784, 128, 512), (3136, 64, 256), (3136, 256, 64))  # 1x1 convolutions
FEW_ROWS = (*((m, 3072, 768) for m in (16, 8, 4, 1)), (1, 4096, 4096))
SHAPES = ["x".join(map(str, shape)) for shape in (*SQUARE, *TRANSFORMER, *POINTWISE, *FEW_ROWS)]
FORMS = ("packed", "packed+", "linear", "linear+", "plain")
_PEAK = """
typedef float V __attribute__((vector_size({bytes})));
extern "C" float peak(long n) {{
    V a[12], x = {{0.5f}}, y = {{0.25f}};
#pragma GCC unroll 12
    for (int j = 0; j < 12; j++) a[j] = x * (float)(j + n);
    for (long i = 0; i < n; i++)
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++) a[j] = a[j] * x + y;
    V s = {{}};
    for (int j = 0; j < 12; j++) s += a[j];
    return s[0];
}}
"""


def spec_of(form: str, m: int, n: int, k: int) -> ContractionSpec:
    """The product in one of the forms; ``+`` adds bias and relu."""
    panel, b = 0, (1, k) if form.startswith("linear") else (n, 1)
    if form.startswith("packed"):
        panel, b = panel_width("f32", host_isa()), (0, 0)
    if not form.endswith("+"):
        return ContractionSpec(alike("f32"), (), m, n, k, (k, 1), b, (n, 1), panel)
    body = LoopNestBuilder((m, n))
    value = body.load(body.input("f32"), contiguous((m, n))) + body.load(body.input("f32"), (0, 1))
    body.store(body.output("f32"), (n, 1), body.op("max", value, body.const(0, "f32")))
    return ContractionSpec(alike("f32"), (), m, n, k, (k, 1), b, (n, 1), panel, body.finish())


def build(specs: list[tuple[ContractionSpec, int]]) -> Any:
    """A library with one function ``run<i>`` over a table of pointers for each (spec, threads)."""
    cache, toolchain = Cache.default(), Toolchain.find()
    units = [Unit("peak", _PEAK.format(bytes=host_isa().vector_bytes))]
    for i, (spec, threads) in enumerate(specs):
        kernel = plan(spec, Machine(host_isa(), threads))
        ins = ("f32",) * (3 if spec.epilogue is not None else 2)
        names = argument_names(len(ins), 1)
        text = kernel_text(kernel, ins, ("f32",), f"product{i}")
        arguments = ", ".join(f"(float *)p[{a}]" for a in range(len(names) - 2))
        call = f"__program_product{i}((product{i}_state_t *)0, {arguments}, (uint8_t *)p[{len(names) - 2}], (int *)p[{len(names) - 1}])"
        run = f"void run{i}(void **p) {{\n#pragma omp parallel num_threads({threads})\n{{ {call}; }}\n}}"
        units.append(Unit("", f'{text}\nextern "C" __attribute__((visibility("default"))) {run}\n'))
    flags = (*default_flags(host_isa()), "-fvisibility=default")
    begin = time.perf_counter()
    objects = compile_objects(units, toolchain, flags, cache)
    print(f"{len(units)} kernels in {(time.perf_counter() - begin) * 1e3:.0f} ms of compiling")
    return ctypes.CDLL(str(link_shared(objects, "", toolchain, cache)))


def best(call: Callable[[], object], clock: Callable[[], float], budget: float) -> float:
    """Seconds of the fastest call."""
    call()
    least, end, count = math.inf, time.perf_counter() + budget, 0
    while count < 3 or time.perf_counter() < end:
        begin = clock()
        call()
        least = min(least, clock() - begin)
        count += 1
    return least


def arguments_of(spec: ContractionSpec) -> tuple[Any, list[Any]]:
    """A table of pointers to operands of small random numbers, and the arrays behind it."""
    m, n, k = spec.m, spec.n, spec.k
    sizes = [m * k, math.prod(packed_shape((), n, k, spec.panel)) if spec.panel else k * n]
    sizes += [n] if spec.epilogue is not None else []
    arrays = [np.random.default_rng(i).standard_normal(s + 16, np.float32) for i, s in enumerate(sizes)]
    arrays += [np.zeros(m * n + 16, np.float32), np.zeros(64 << 20, np.uint8), np.zeros(1, np.int32)]
    starts = [a.ctypes.data + -a.ctypes.data % 64 if a.nbytes > 64 else a.ctypes.data for a in arrays]
    return (ctypes.c_void_p * len(starts))(*starts), arrays


def main() -> None:
    """Print one line a shape: GF/s and the share of the peak, for each form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="*", default=SHAPES)
    parser.add_argument("--forms", nargs="*", default=FORMS)
    parser.add_argument("--seconds", type=float, default=0.1)
    given = parser.parse_args()
    teams = sorted({1, given.threads})
    shapes = [tuple(map(int, s.split("x"))) for s in given.only]
    jobs = [(spec_of(f, *s), t) for t in teams for s in shapes for f in given.forms]
    library = build(jobs)
    width = host_isa().vector_bytes // 4
    steps = 2_000_000
    library.peak.restype = ctypes.c_float
    peak = 24 * width * steps / best(lambda: library.peak(ctypes.c_long(steps)), time.thread_time, 0.5)
    print(f"peak of one thread {peak / 1e9:.0f} GF/s")
    index = 0
    for team in teams:
        print(
            f"{team} thread{'s' * (team > 1)}: GF/s (share of the peak)".ljust(22)
            + "".join(f"{f:>14}" for f in given.forms)
        )
        clock = time.thread_time if team == 1 else time.perf_counter
        for shape in shapes:
            line = "x".join(map(str, shape)).ljust(22)
            for _ in given.forms:
                table, arrays = arguments_of(jobs[index][0])
                run = getattr(library, f"run{index}")
                speed = 2 * math.prod(shape) / best(lambda r=run, t=table: r(t), clock, given.seconds)  # type: ignore[misc]
                line += f"{speed / 1e9:7.0f} ({speed / peak / team:4.2f})"
                del arrays
                index += 1
            print(line, flush=True)


if __name__ == "__main__":
    main()
