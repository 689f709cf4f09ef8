"""CUDA kernels of scans: a thread walks a row where rows are many; else a block takes one, tile by tile.

tile:   acc[t] = x[t];  for step in 1, 2, 4 …:  acc[t] = acc[t - step] op acc[t];   y[t] = carry op acc[t];   carry = carry op acc[last]
"""

from __future__ import annotations

import math

from dcir.codegen.cpp.kernels.scan import row_address, scan_step
from dcir.codegen.cpp.scalar_ops import cast_expr
from dcir.codegen.cuda.device import ceil_div
from dcir.codegen.cuda.emitters import planner
from dcir.codegen.cuda.kernels.text import Lines, Places, finished
from dcir.codegen.cuda.kernels.types import CUDA_TYPE, constant
from dcir.codegen.cuda.launch import CudaPlan
from dcir.cost.machine import Machine
from dcir.ir.types import compute_type
from dcir.ops.library.scan import ScanSpec

BLOCK = 256
# Rows from which on all multiprocessors have threads enough; elements below which a block has too little to do.
MANY_ROWS = 8192
SHORT_ROW = 32


@planner(ScanSpec)
def plan_scan(spec: ScanSpec, machine: Machine | None) -> CudaPlan:
    """The kernel of a scan."""
    rows = math.prod(spec.rows)
    if not rows * spec.n:
        return CudaPlan(())
    walked = rows >= MANY_ROWS or spec.n <= SHORT_ROW
    lines = _walk(spec, rows) if walked else _tiles(spec)
    types = {"a0": spec.source, "o0": spec.result, "o1": "i64"}
    return CudaPlan((finished(lines, types, Places(), (ceil_div(rows, BLOCK) if walked else rows, 1, 1), BLOCK),))


def _compute(spec: ScanSpec) -> str:
    """The type to scan in: the error of a long row of f32 would grow with its length."""
    compute = compute_type(spec.result)
    return "f64" if compute == "f32" and spec.op not in ("max", "min") else compute


def _element(spec: ScanSpec, compute: str) -> str:
    source = cast_expr(f"d_load(a0, {row_address(spec.x)})", spec.source, compute_type(spec.source))
    return cast_expr(source, compute_type(spec.source), compute)


def _store(spec: ScanSpec, text: Lines, compute: str) -> None:
    text.line(f"d_store(o0, {row_address(spec.y)}, {cast_expr('acc', compute, spec.result)});")
    if spec.positions is not None:
        text.line(f"d_store(o1, {row_address(spec.positions)}, where);")


def _walk(spec: ScanSpec, rows: int) -> list[str]:
    """A thread a row."""
    compute = _compute(spec)
    t = CUDA_TYPE[compute]
    text = Lines("long long")
    text.line(f"const long long row = (long long)d_block() * {BLOCK} + d_thread();")
    text.open(f"if (row < {rows})")
    text.decompose("row", range(len(spec.rows)), spec.rows)
    start = {"prod": 1, "logsumexp": -math.inf}.get(spec.op, 0)
    text.line(f"{t} acc = {constant(start, compute)};")
    text.line("long long where = 0;")
    text.open(f"for (long long i = 0; i < {spec.n}; i++)")
    text.line(f"const {t} v = {_element(spec, compute)};")
    for line in scan_step(spec.op, "acc", "where", compute):
        text.line(line)
    _store(spec, text, compute)
    text.close()
    text.close()
    return text.lines


def _tiles(spec: ScanSpec) -> list[str]:
    """A block a row."""
    compute = _compute(spec)
    t, places = CUDA_TYPE[compute], spec.op in ("max", "min")
    text = Lines("long long")
    text.line(f"D_SHARED({t}, found, {2 * BLOCK});")
    if places:
        text.line(f"D_SHARED(long long, places, {2 * BLOCK});")
    text.line("const long long row = d_block();")
    text.decompose("row", range(len(spec.rows)), spec.rows)
    text.line(f"{t} carry = {constant(0, compute)};")
    text.line("long long carried = 0;")
    text.open(f"for (long long tile = 0; tile < {spec.n}; tile += {BLOCK})")
    text.line("const long long i = tile + d_thread();")
    text.line(f"{t} acc = {constant(0, compute)};")
    text.line("long long where = i;")
    text.line(f"if (i < {spec.n}) acc = {_element(spec, compute)};")
    text.line("int from = 0;")
    _publish(text, places=places)
    text.open(f"for (int step = 1; step < {BLOCK}; step *= 2)")
    text.open("if (d_thread() >= step)")
    text.line(f"const {t} earlier = found[from + d_thread() - step];")
    if places:
        text.line("const long long place = places[from + d_thread() - step];")
    _join(spec.op, text, compute, "earlier", "place")
    text.close()
    text.line(f"from = {BLOCK} - from;")
    _publish(text, places=places)
    text.close()
    text.line(f"const {t} last = found[from + {BLOCK - 1}];")
    if places:
        text.line(f"const long long last_place = places[from + {BLOCK - 1}];")
    text.open("if (tile > 0)")
    _join(spec.op, text, compute, "carry", "carried")
    text.close()
    text.open(f"if (i < {spec.n})")
    _store(spec, text, compute)
    text.close()
    text.open("")
    text.line(f"{t} acc = last;")
    text.line(f"long long where = {'last_place' if places else '0'};")
    text.open("if (tile > 0)")
    _join(spec.op, text, compute, "carry", "carried")
    text.close()
    text.line("carry = acc;")
    text.line("carried = where;")
    text.close()
    text.line("d_barrier();")
    text.close()
    return text.lines


def _publish(text: Lines, *, places: bool) -> None:
    """Show the other threads how far this one is."""
    text.line("found[from + d_thread()] = acc;")
    if places:
        text.line("places[from + d_thread()] = where;")
    text.line("d_barrier();")


def _join(op: str, text: Lines, compute: str, earlier: str, place: str) -> None:
    """``acc`` and ``where`` behind what came before them."""
    t = CUDA_TYPE[compute]
    text.open("")
    text.line(f"const {t} v = acc;")
    text.line("const long long i = where;")
    text.line(f"acc = {earlier};")
    if op in ("max", "min"):
        text.line(f"where = {place};")
    for line in scan_step(op, "acc", "where", compute):
        # The first element of all has nothing before it; here something always is.
        text.line(line.replace("(i == 0) | ", ""))
    text.close()
