"""C++ for scans: rows in parallel; where rows lie side by side in memory, a block of them advances together.

job = a block of rows:   acc[lane] = start;  for i in 0 .. n:  for lane:  y = acc[lane] = acc[lane] op x
"""

from __future__ import annotations

import math

from dcir.codegen.cpp.emitters import planner
from dcir.codegen.cpp.scalar_ops import CPP_TYPE, SCALAR_OPS, cast_expr, literal
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.symbolic import moves, usual
from dcir.cost.machine import Machine
from dcir.ir.types import FLOATS, compute_type
from dcir.ops.library.scan import ScanSpec

# Below this many elements a second thread costs more than it brings.
SERIAL_POINTS = 8192
# Neighbouring rows that advance together: accumulators in a few vector registers.
BLOCK = 64


@planner(ScanSpec, any_size=True)
def plan_scan(spec: ScanSpec, machine: Machine) -> KernelPlan:
    """The kernel of a scan."""
    rank = len(spec.rows)
    order = sorted(range(rank), key=lambda d: usual(spec.y[d]), reverse=True)
    lane = order[-1] if rank else None
    # Rows whose own elements are neighbours are walked one by one: lanes would jump.
    if lane is not None and (usual(spec.y[lane]) >= usual(spec.y[-1]) or usual(spec.rows[lane]) < 4):
        lane = None
    outer = [d for d in order if d != lane]
    serial = usual(math.prod(spec.rows) * spec.n) < SERIAL_POINTS or machine.threads < 2
    blocks = (spec.rows[lane] + BLOCK - 1) // BLOCK if lane is not None else 1
    lines = [] if serial else [f"const long long block = j % {blocks}, row = j / {blocks};"]
    rows = math.prod(spec.rows[d] for d in outer)
    if serial:
        lines += [
            f"for (long long row = 0; row < {rows}; row++)",
            f"for (long long block = 0; block < {blocks}; block++) {{",
        ]
    rest = "row"
    for d in reversed(outer):
        lines.append(f"const long long i{d} = {rest} % {spec.rows[d]}, q{d} = {rest} / {spec.rows[d]};")
        rest = f"q{d}"
    lines += _sweep(spec, lane)
    if serial:
        lines.append("}")
    return KernelPlan(f"scan_{spec.op}", "", (Phase(1 if serial else rows * blocks, "\n".join(lines)),))


def _sweep(spec: ScanSpec, lane: int | None) -> list[str]:
    compute = compute_type(spec.result)
    if compute == "f32" and spec.op not in ("max", "min"):
        compute = "f64"  # the error of a long row would grow with its length
    t = CPP_TYPE[compute]
    source = cast_expr(f"a0[{row_address(spec.x)}]", spec.source, compute_type(spec.source))
    value = cast_expr(source, compute_type(spec.source), compute)
    at = "[l]" if lane is not None else "[0]"
    extreme = spec.op in ("max", "min")
    size = BLOCK if lane is not None else 1
    start = {"prod": 1, "logsumexp": -math.inf}.get(spec.op, 0)
    lines = [f"{t} acc[{size}];", f"for (int l = 0; l < {size}; l++) acc[l] = {literal(start, compute)};"]
    if extreme:
        lines += [f"long long where[{size}];", f"for (int l = 0; l < {size}; l++) where[l] = 0;"]
    if lane is not None:
        lines.append(f"const long long low = block * {BLOCK};")
        lines.append(f"const long long width = low + {BLOCK} < {spec.rows[lane]} ? {BLOCK} : {spec.rows[lane]} - low;")
    lines.append(f"for (long long i = 0; i < {spec.n}; i++) {{")
    if lane is not None:
        lines += ["#pragma omp simd", "for (long long l = 0; l < width; l++) {", f"const long long i{lane} = low + l;"]
    lines.append(f"const {t} v = {value};")
    lines += scan_step(spec.op, f"acc{at}", f"where{at}", compute)
    lines.append(f"o0[{row_address(spec.y)}] = {cast_expr(f'acc{at}', compute, spec.result)};")
    if spec.positions is not None:
        lines.append(f"o1[{row_address(spec.positions)}] = where{at};")
    lines += ["}"] if lane is None else ["}", "}"]
    return lines


def scan_step(op: str, acc: str, where: str, compute: str) -> list[str]:
    """Lines that join element ``v``, at place ``i``, to what came before it."""
    if op == "logsumexp":
        # An accumulator of -inf, or an equal infinite value, would give inf - inf.
        top, low = SCALAR_OPS["max"].cpp([acc, "v"], compute), SCALAR_OPS["min"].cpp([acc, "v"], compute)
        grown = SCALAR_OPS["log1p"].cpp([SCALAR_OPS["exp"].cpp(["low - top"], compute)], compute)
        t = CPP_TYPE[compute]
        return [f"const {t} top = {top}, low = {low};",
                f"{acc} = low == top && d_isinf(top) ? top : low == -{t}(D_INF) ? top : top + {grown};"]  # fmt: skip
    if op in ("sum", "prod"):
        return [f"{acc} = {SCALAR_OPS['add' if op == 'sum' else 'mul'].cpp([acc, 'v'], compute)};"]
    better = f"v {'>=' if op == 'max' else '<='} {acc}"
    if compute in FLOATS:
        better = f"(v != v) | (({acc} == {acc}) & ({better}))"
    return [
        f"const bool better = (i == 0) | ({better});",
        f"{acc} = better ? v : {acc};",
        f"{where} = better ? i : {where};",
    ]


def row_address(strides: tuple[int, ...]) -> str:
    """The address of element ``i`` of a row; the other loops are ``i0``, ``i1``, …"""
    terms = [f"i{d} * {s}LL" for d, s in enumerate(strides[:-1]) if moves(s) or s] + [f"i * {strides[-1]}LL"]
    return " + ".join(terms)
