"""CUDA kernels of folds over lists of points: a thread has a few columns of a group, and takes the group's points in their order.

acc = base[g, c];  for k in starts[g] .. starts[g + 1]:  acc = acc op value[order[k], c];  finish(acc)
"""

from __future__ import annotations

import math
from dataclasses import replace

from dcir.codegen.cpp.scalar_ops import SCALAR_OPS, cast_expr
from dcir.codegen.cuda.device import ceil_div
from dcir.codegen.cuda.emitters import planner
from dcir.codegen.cuda.kernels.loop_nest import Plan, nest_refusal
from dcir.codegen.cuda.kernels.statements import KernelText
from dcir.codegen.cuda.kernels.text import Places
from dcir.codegen.cuda.kernels.types import CUDA_TYPE, constant
from dcir.codegen.cuda.kernels.visits import Visits
from dcir.codegen.cuda.launch import CudaPlan, Launch
from dcir.cost.machine import Machine
from dcir.ir.loop_nest import LoopNest
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Load, Store
from dcir.ir.types import compute_type, itemsize
from dcir.ops.library.segments import SegmentSpec, group_loops

BLOCK = 128


@planner(SegmentSpec)
def plan_segment(spec: SegmentSpec, machine: Machine | None) -> CudaPlan | Refusal:
    """The kernels of a fold: its values, unless they lie in memory as they are, and the fold with what finishes it."""
    refused = nest_refusal(spec.value) or nest_refusal(spec.finish)
    if refused is not None:
        return refused
    if not spec.groups or not spec.columns:
        return CudaPlan(())
    compute, first = compute_type(spec.dtype), 2 + (spec.base is not None)
    plan = Plan()
    n = len(spec.value.inputs)
    at = str(plan.room(spec.points * spec.columns * itemsize(compute)))
    plan.add(spec.value, Places({"o0": at}, {f"a{k}": f"a{first + k}" for k in range(n)}))
    plan.launches.append(_folded(spec, at, compute, first))
    return plan.made()


def _folded(spec: SegmentSpec, at: str, compute: str, first: int) -> Launch:
    """The kernel that folds values in scratch."""
    n, cut = len(spec.value.inputs), group_loops(spec)
    # The finish's operands keep their numbers, its first being the fold; the fold's own follow.
    own = len(spec.finish.inputs)
    finish = replace(
        LoopNest(spec.finish.dims, (), spec.finish.inputs, spec.finish.outputs, spec.finish.body),
        inputs=(*spec.finish.inputs, "i32", "i32", compute, spec.dtype),
    )
    starts, order, values, base = (f"a{own + k}" for k in range(4))
    names = {starts: "a0", order: "a1", base: "a2"}
    names |= {f"a{k}": f"a{first + n + k - 1}" for k in range(1, own)}
    dims = finish.outer
    last = len(dims) - 1
    points = math.prod(dims)
    text = KernelText(finish, Places({values: at}, names), last, 1, max(points, spec.points * spec.columns) + BLOCK)
    columns, groups = dims[cut:], dims[:cut]
    text.given = {
        i: cast_expr("acc", compute, spec.finish.inputs[0])
        for i, s in enumerate(finish.body)
        if isinstance(s, Load) and s.operand == 0
    }
    t = CUDA_TYPE[compute]
    start = constant(spec.fill, compute)
    if spec.base is not None:
        stored = f"d_load({base}, {text.address(spec.base, '')})"
        start = cast_expr(stored, spec.dtype, compute)
    name = {"add": "add", "mul": "mul", "min": "min", "max": "max"}[spec.op]
    fold = SCALAR_OPS[name].cpp(["acc", "next"], compute)
    before = [
        f"const {text.index} g = {_number(groups, 0)}, c = {_number(columns, cut)};",
        f"{t} acc = {start};",
        f"const int end = d_load({starts}, g + 1);",
        f"for (int k = d_load({starts}, g); k < end; k++) {{",
        f"  const {t} next = d_load({values}, ({text.index})d_load({order}, k) * {spec.columns} + c);",
        f"  acc = {fold};",
        "}",
    ]
    text.line("constexpr bool whole = true;")
    element = f"({text.index})d_block() * {BLOCK} + d_thread()"
    stores = [i for i, s in enumerate(finish.body) if isinstance(s, Store)]
    text.visit(Visits(1, range(len(dims)), element, f"e < {points}", before=before), stores)
    return text.launch((ceil_div(points, BLOCK), 1, 1), BLOCK)


def _number(extents: tuple[int, ...], first: int) -> str:
    """C++ of the row-major number that some loops count."""
    text = "0"
    for k, extent in enumerate(extents):
        text = f"i{first + k}" if text == "0" else f"({text}) * {extent} + i{first + k}"
    return text
