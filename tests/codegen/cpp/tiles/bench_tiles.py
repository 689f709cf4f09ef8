"""Prints GF/s of the tiles, next to torch's and the measured peak: python -m tests.codegen.cpp.tiles.bench_tiles [filter] [threads].

Start with OMP_NUM_THREADS set to the number of threads.
"""

import ctypes
import subprocess
import sys
import tempfile
import time

import torch

from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.codegen.cpp.tiles.gemm.gemm import plan_gemm
from dcir.isa import host_isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from tests.codegen.cpp.tiles.tile_harness import compile_plans

# m, n, k, batch, layout: n row-major, t nn.Linear weights, w weight gradient
GEMMS = [
    (512, 512, 512, 1, "n"), (1024, 1024, 1024, 1, "n"), (512, 768, 768, 1, "t"), (512, 3072, 768, 1, "t"),
    (512, 768, 3072, 1, "t"), (128, 3072, 768, 1, "t"), (128, 768, 3072, 1, "t"), (4096, 768, 768, 1, "t"),
    (512, 768, 3072, 1, "n"), (768, 3072, 512, 1, "w"), (1, 3072, 768, 1, "t"), (4, 3072, 768, 1, "t"),
    (8, 3072, 768, 1, "t"), (16, 3072, 768, 1, "t"), (32, 3072, 768, 1, "t"), (1, 4096, 4096, 1, "t"),
    (8, 4096, 4096, 1, "t"), (1, 3072, 768, 1, "n"), (128, 128, 64, 48, "t"), (128, 64, 128, 48, "n"),
    (512, 64, 512, 24, "n"), (197, 197, 64, 24, "t"), (64, 1000, 2048, 1, "t"), (64, 64, 64, 12, "n"),
]  # fmt: skip
# name, n, ci, co, size, kernel, stride, padding, groups
CONVS = [
    ("resnet stem", 1, 3, 64, 224, 7, 2, 3, 1), ("3x3 64@56", 1, 64, 64, 56, 3, 1, 1, 1),
    ("3x3 128@28", 1, 128, 128, 28, 3, 1, 1, 1), ("3x3 256@14", 1, 256, 256, 14, 3, 1, 1, 1),
    ("3x3 512@7", 1, 512, 512, 7, 3, 1, 1, 1), ("3x3 512@7 n8", 8, 512, 512, 7, 3, 1, 1, 1),
    ("3x3s2 128@56", 1, 128, 128, 56, 3, 2, 1, 1), ("3x3s2 512@14", 1, 512, 512, 14, 3, 2, 1, 1),
    ("1x1 64-256@56", 1, 64, 256, 56, 1, 1, 0, 1), ("1x1 256-64@56", 1, 256, 64, 56, 1, 1, 0, 1),
    ("1x1 512-128@28", 1, 512, 128, 28, 1, 1, 0, 1), ("1x1 1024-256@14", 1, 1024, 256, 14, 1, 1, 0, 1),
    ("1x1 256-1024@14", 1, 256, 1024, 14, 1, 1, 0, 1), ("1x1 2048-512@7", 1, 2048, 512, 7, 1, 1, 0, 1),
    ("1x1s2 256-512@56", 1, 256, 512, 56, 1, 2, 0, 1), ("patch 3-768@224", 1, 3, 768, 224, 16, 16, 0, 1),
    ("yolo 32-64@304s2", 1, 32, 64, 304, 3, 2, 1, 1), ("yolo 256-512@38", 1, 256, 512, 38, 3, 1, 1, 1),
    ("yolo 512-1024@19", 1, 512, 1024, 19, 3, 1, 1, 1), ("mobile 24-144@56", 1, 24, 144, 56, 1, 1, 0, 1),
    ("mobile 384-64@14", 1, 384, 64, 14, 1, 1, 0, 1), ("dw3 144@56", 1, 144, 144, 56, 3, 1, 1, 144),
    ("dw3 384@14", 1, 384, 384, 14, 3, 1, 1, 384), ("dw3 960@7", 1, 960, 960, 7, 3, 1, 1, 960),
    ("dw3s2 144@56", 1, 144, 144, 56, 3, 2, 1, 144), ("dw5 672@14", 1, 672, 672, 14, 5, 1, 2, 672),
    ("dw5s2 672@14", 1, 672, 672, 14, 5, 2, 2, 672), ("dw3 32@112", 1, 32, 32, 112, 3, 1, 1, 32),
]  # fmt: skip
_PEAK = """
typedef float V __attribute__((vector_size(%d)));
extern "C" float peak(long n) {
    V a[12], x = {0.5f}, y = {0.25f};
#pragma GCC unroll 12
    for (int j = 0; j < 12; j++) a[j] = x * (float)(j + n);
    for (long i = 0; i < n; i++)
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++) a[j] = a[j] * x + y;
    V s = {};
    for (int j = 0; j < 12; j++) s += a[j];
    return s[0];
}
"""


def peak():
    """Measured multiply-add GF/s of one thread."""
    folder = tempfile.mkdtemp()
    vector = host_isa().vector_bytes
    with open(f"{folder}/peak.cpp", "w") as f:
        f.write(_PEAK % vector)
    subprocess.run(
        ["g++", "-O3", "-march=native", "-shared", "-fPIC", f"{folder}/peak.cpp", "-o", f"{folder}/p.so"], check=True
    )
    f = ctypes.CDLL(f"{folder}/p.so").peak
    n = 2_000_000
    seconds = best(lambda: f(ctypes.c_long(n)), 0.3)
    return 12 * 2 * (vector // 4) * n / seconds / 1e9


def clock():
    """Seconds of this thread with one thread, else of the wall: what other programs take shall not count."""
    return time.perf_counter() if torch.get_num_threads() > 1 else time.thread_time()


def best(call, budget=0.12):
    """The shortest of the calls that fit the budget (at least two)."""
    call()
    least, end, count = 1e9, time.perf_counter() + budget, 0
    while count < 2 or time.perf_counter() < end:
        t = clock()
        call()
        least = min(least, clock() - t)
        count += 1
    return least


def gemm_rows(threads):
    for m, n, k, batch, layout in GEMMS:
        a = torch.randn(batch, k, m).transpose(1, 2) if layout == "w" else torch.randn(batch, m, k)
        b = torch.randn(batch, n, k).transpose(1, 2) if layout == "t" else torch.randn(batch, k, n)
        c = torch.empty(batch, m, n)
        spec = ContractionSpec(alike("f32"), (batch,), m, n, k, a.stride(), b.stride(), c.stride())
        plan = plan_gemm(spec, host_isa(), threads)
        eager = lambda a=a, b=b, c=c: torch.matmul(a, b, out=c)  # noqa: E731
        yield f"gemm {layout} {batch}x{m}x{n}x{k}", plan, (a, b, c), 2 * batch * m * n * k, eager


def conv_rows(threads):
    f = torch.ops.aten.convolution_backward
    for name, n, ci, co, size, k, s, p, g in CONVS:
        x, w = torch.randn(n, ci, size, size), torch.randn(co, ci // g, k, k)
        y = torch.nn.functional.conv2d(x, w, None, s, p, 1, g)
        out = tuple(y.shape[2:])
        flops = 2 * y.numel() * (ci // g) * k * k
        for kind in ("forward", "backward_data", "backward_weight"):
            spec = ConvolutionSpec(
                kind, alike("f32"), n, g, ci // g, co // g, (size, size), (k, k), out, (s, s), (p, p), (1, 1), x.stride(),
                w.stride(), y.stride(),
            )  # fmt: skip
            mask = [kind == "backward_data", kind == "backward_weight", False]
            eager = {
                "forward": lambda x=x, w=w, s=s, p=p, g=g: torch.nn.functional.conv2d(x, w, None, s, p, 1, g)
            }.get(
                kind,
                lambda x=x, w=w, y=y, s=s, p=p, g=g, m=mask: f(
                    y, x, w, None, [s, s], [p, p], [1, 1], False, [0, 0], g, m
                ),
            )  # fmt: skip
            tensors = {"forward": (x, w, y), "backward_data": (y, w, x), "backward_weight": (x, y, w)}[kind]
            yield (
                f"{name} {kind}",
                plan_convolution(spec, host_isa(), threads),
                tuple(map(torch.clone, tensors)),
                flops,
                eager,
            )


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    torch.set_num_threads(threads)
    rows = [r for source in (gemm_rows, conv_rows) for r in source(threads) if wanted in r[0]]
    start = time.time()
    calls = compile_plans([(plan, "f32", len(tensors) - 1) for _, plan, tensors, *_ in rows])
    print(f"compiled {len(rows)} plans, {(time.time() - start) / len(rows) * 2e3:.0f} ms each on two cores")
    print(f"peak {peak():.0f} GF/s a thread, {threads} thread(s)")
    for (name, _, tensors, flops, eager), call in zip(rows, calls, strict=True):
        ours, theirs = best(lambda c=call, t=tensors: c(*t)), best(eager)
        print(
            f"{name:40s} {flops / ours / 1e9:6.0f} GF/s {ours * 1e3:8.3f} ms   torch {flops / theirs / 1e9:6.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
