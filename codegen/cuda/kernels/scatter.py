"""CUDA kernels of scatters, without races and with the same bits in every run.

    set   out = base;  winner[address] = the last point that hits it;  the winners store
    fold  out = base;  the points listed by where they go (``grouping.py``);  a thread per place folds its points in their order

Columns, which all go to the place of their row, are no points of the list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dcir.codegen.cpp.scalar_ops import SCALAR_OPS, cast_expr
from dcir.codegen.cuda.device import ceil_div
from dcir.codegen.cuda.emitters import planner
from dcir.codegen.cuda.kernels.grouping import MOST_POINTS, Indices, group_number, grouped
from dcir.codegen.cuda.kernels.loop_nest import Plan
from dcir.codegen.cuda.kernels.text import MOST_SHORT, Lines, Places, finished
from dcir.codegen.cuda.kernels.types import CUDA_TYPE
from dcir.codegen.cuda.launch import CudaPlan
from dcir.cost.machine import Machine
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.refusal import Refusal
from dcir.ir.types import compute_type
from dcir.ops.library.scatter import ScatterSpec, unambiguous

BLOCK = 256


@planner(ScatterSpec)
def plan_scatter(spec: ScatterSpec, machine: Machine | None) -> CudaPlan | Refusal:
    """The kernels of a scatter."""
    reach = _reach(spec.out, spec.shape)
    if max(math.prod(spec.dims), reach + 1) > MOST_POINTS:
        return Refusal("a scatter has more points or places than 32 bits count")
    plan = Plan()
    if not spec.kept:
        plan.add(_base(spec), Places())
    if math.prod(spec.dims):
        (_set if spec.op == "set" else _fold)(spec, plan, reach)
    return plan.made()


def _base(spec: ScatterSpec) -> LoopNest:
    """What makes the result as it is before any point hits it."""
    body = LoopNestBuilder(spec.shape)
    if spec.base is None:
        value = body.const(spec.fill, compute_type(spec.dtype))
    else:
        value = body.load(body.input(spec.dtype), spec.base)
    body.store(body.output(spec.dtype), spec.out, value)
    return body.finish()


def _set(spec: ScatterSpec, plan: Plan, reach: int) -> None:
    """Every point says that it hits its place; the last one stores."""
    first = 0 if spec.base is None else 1
    indices = _indices(spec, range(len(spec.dims)), first + 1)
    winners = reach + 1
    places = Places({"o1": str(plan.room(4 * winners))})
    types = {**indices.operand_types(), f"a{first}": spec.dtype, "o0": spec.dtype, "o1": "i32"}
    points = math.prod(spec.dims)
    number = f"  const long long at = (long long)d_block() * {BLOCK} + d_thread();"
    clear = [number, f"  if (at < {winners}ll) d_store(o1, at, -1);"]
    plan.launches.append(finished(clear, types, places, (ceil_div(winners, BLOCK), 1, 1), BLOCK))
    for storing in (False, True):
        text = Lines("int")
        text.line(f"const int p = d_block() * {BLOCK} + d_thread();")
        text.line("int bad = 0;")
        text.open(f"if (p < {points})")
        indices.find(text)
        text.open("if (listed)")
        text.line(f"const long long to = {_address(spec)};")
        if storing:
            source = " + ".join(f"(long long)i{d} * {s}ll" for d, s in enumerate(spec.source) if s) or "0"
            text.line(f"if (d_load(o1, to) == p) d_store(o0, to, d_load(a{first}, {source}));")
        else:
            text.line("d_most(o1, to, p);")
        text.close()
        text.close()
        if not storing:
            text.line("if (bad) d_report(status);")
        plan.launches.append(finished(text.lines, types, places, (ceil_div(points, BLOCK), 1, 1), BLOCK))


def _fold(spec: ScatterSpec, plan: Plan, reach: int) -> None:
    """Points listed by place; then a thread for every place, or for every column of one, folds what is listed."""
    first = 0 if spec.base is None else 1
    columns = _columns(spec)
    rows = [d for d in range(len(spec.dims)) if d not in columns]
    indices = _indices(spec, rows, first + 1)
    points = math.prod(spec.dims[d] for d in rows)
    by_index = unambiguous(spec) and not any(spec.to[d] and spec.dims[d] > 1 for d in rows)
    groups = math.prod(spec.extents) if by_index else reach + 1
    to_row = _address(spec, rows)
    group = group_number(spec.extents) if by_index else to_row
    places = Places({"o0": str(plan.room(4 * (groups + 1))), "o1": str(plan.room(4 * points))})
    grouped(plan, indices, points, groups, group, places)
    starts, order = (f"a{first + 1 + len(spec.indices) + k}" for k in range(2))
    own = Places({starts: places.scratch["o0"], order: places.scratch["o1"]})
    types = {f"a{first}": spec.dtype, "o0": spec.dtype, starts: "i32", order: "i32"}
    width = math.prod(spec.dims[d] for d in columns)
    text = Lines("int" if groups * width + BLOCK < MOST_SHORT else "long long")
    text.line(f"const {text.index} e = ({text.index})d_block() * {BLOCK} + d_thread();")
    text.open(f"if (e < {groups * width})")
    text.line(f"const {text.index} g = e / {width}, c = e % {width};")
    text.line(f"const int begin = d_load({starts}, g), end = d_load({starts}, g + 1);")
    text.open("if (begin < end)")
    text.decompose("c", columns, spec.dims)
    place = "(long long)g"
    if by_index:
        text.decompose("g", range(len(spec.extents)), spec.extents, "k")
        place = " + ".join(f"(long long)k{n} * {s}ll" for n, s in enumerate(spec.index_steps) if s) or "0"
    across = " + ".join(f"(long long)i{d} * {spec.to[d]}ll" for d in columns) or "0"
    text.line(f"const long long at = {place} + {across};")
    compute = compute_type(spec.dtype)
    t = CUDA_TYPE[compute]
    text.line(f"{t} acc = {cast_expr('d_load(o0, at)', spec.dtype, compute)};")
    text.open("for (int k = begin; k < end; k++)")
    text.line(f"const int p = d_load({order}, k);")
    text.decompose("p", rows, spec.dims)
    source = " + ".join(f"(long long)i{d} * {s}ll" for d, s in enumerate(spec.source) if s) or "0"
    loaded = cast_expr(f"d_load(a{first}, {source})", spec.dtype, compute)
    text.line(f"const {t} next = {loaded};")
    text.line(f"acc = {SCALAR_OPS[spec.op].cpp(['acc', 'next'], compute)};")
    text.close()
    text.line(f"d_store(o0, at, {cast_expr('acc', compute, spec.dtype)});")
    text.close()
    text.close()
    plan.launches.append(finished(text.lines, types, own, (ceil_div(groups * width, BLOCK), 1, 1), BLOCK))


def _columns(spec: ScatterSpec) -> list[int]:
    """Loops that move the place of a point alone, by as much whatever its indices are."""
    if not unambiguous(spec):
        return []
    able = [d for d, to in enumerate(spec.to) if to and spec.dims[d] > 1]
    return [d for d in able if not any(st[d] for st in spec.indices)]


def _indices(spec: ScatterSpec, loops: Sequence[int], first: int) -> Indices:
    dims = tuple(spec.dims[d] for d in loops)
    strides = tuple(tuple(st[d] for d in loops) for st in spec.indices)
    return Indices(dims, strides, spec.index_types, spec.extents, first, spec.wrap, spec.skip)


def _address(spec: ScatterSpec, loops: Sequence[int] | None = None) -> str:
    """C++ of where a point goes, from its indices and loop variables, which are numbered among ``loops``."""
    loops = range(len(spec.dims)) if loops is None else loops
    terms = [f"(long long)i{k} * {spec.to[d]}ll" for k, d in enumerate(loops) if spec.to[d]]
    terms += [f"k{n} * {s}ll" for n, s in enumerate(spec.index_steps) if s]
    return " + ".join(terms) or "0"


def _reach(strides: Sequence[int], dims: Sequence[int]) -> int:
    return sum(s * (n - 1) for s, n in zip(strides, dims, strict=True) if n > 1)
