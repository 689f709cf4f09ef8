"""Products of halves on the matrix units: in one kernel, or with kernels behind it that join sums of columns, or of parts of a product.

    C = tail(prologue(A) B)          -->   a block a tile of C (``matrix_tile.py``)
    s[n] = sum_m C[m, n]             -->   t[b, n] = sum over the rows of block b;   s[n] = sum_b t[b, n]
    few tiles, and many steps of k   -->   t[p] = A[:, steps of p] B[steps of p];   C = tail(sum_p t[p])

Parts are joined in the same order every time, without atomic operations.
"""

from __future__ import annotations

from dataclasses import replace

from dcir.codegen.cuda.device import MULTIPROCESSORS, ceil_div
from dcir.codegen.cuda.emitters import planner
from dcir.codegen.cuda.kernels.loop_nest import Plan
from dcir.codegen.cuda.kernels.matrix_tile import MatrixTile, sum_bytes, tile_of
from dcir.codegen.cuda.kernels.text import Places
from dcir.codegen.cuda.launch import CudaPlan
from dcir.cost.cuda import CudaMachine
from dcir.cost.machine import Machine
from dcir.cost.own_products import parts_of
from dcir.ir.loop_nest import LoopNest
from dcir.ir.partial_results import last_step
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Load, Narrow, Reduce, Statement, Store
from dcir.ir.types import compute_type, itemsize
from dcir.ops.library.fused_product import (
    FusedProduct,
    along,
    refused_as_product,
    refused_as_prologue,
    refused_as_tail,
)


@planner(FusedProduct)
def plan_matrix_product(spec: FusedProduct, machine: Machine | None) -> CudaPlan | Refusal:
    """The kernels of a product with its prologue and tail."""
    refused = refused_as_product(spec.product) or refused_as_tail(spec.tail)
    if refused is None and spec.prologue is not None:
        refused = refused_as_prologue(spec.prologue, along(spec.product))
    if refused is not None:
        return refused
    plan, s = Plan(), spec.product
    tail, first, beside = spec.tail, spec.heads, spec.beside
    # The operator's inputs, and behind them the product's value.
    heads = (s.types.a,) if spec.prologue is None else spec.prologue.inputs
    inputs = (*heads, s.types.b, *tail.inputs[1:], s.types.c)
    outputs = (*(() if spec.prologue is None else spec.prologue.outputs[1:]), *tail.outputs)

    def moved(x: Statement) -> Statement:
        if isinstance(x, Load):
            return x.with_operand(len(inputs) - 1 if x.operand == 0 else x.operand + first)
        return x.with_operand(x.operand + beside) if isinstance(x, Store) else x

    tail = replace(tail, inputs=inputs, outputs=outputs, body=tuple(map(moved, tail.body)))
    tile = tile_of(s.n, sum_bytes(tail), short=spec.prologue is not None)
    tiles, before, after = ceil_div(s.m, tile.rows), {}, {}
    across = ceil_div(s.n, tile.columns)
    reduces = [x for x in tail.body if isinstance(x, Reduce)]
    for k, r in enumerate(reduces):
        size = s.n * itemsize(r.dtype)
        start = plan.room(tiles * size)
        before[f"o{len(tail.outputs) + k}"] = f"{start} + {size}ll * (d_block() / {across})"
        after[f"a{len(inputs) + k}"] = str(start)
    parts = shared_by(spec, machine)
    if parts > 1:
        size, name = 4 * s.m * s.n, f"o{len(tail.outputs)}"
        start = plan.room(parts * size)
        plan.launches.append(MatrixTile(spec, tail, Places({name: f"{start} + {size}ll * d_part()"}), parts).launched())
        plan.add(_joined(tail, parts), Places({f"a{len(inputs)}": str(start)}))
        return plan.made()
    plan.launches.append(MatrixTile(spec, tail, Places(before)).launched())
    if reduces:
        plan.add(last_step(tail, (tiles,), (1, s.n)), Places(after))
    return plan.made()


def shared_by(spec: FusedProduct, machine: Machine | None) -> int:
    """Blocks that share the steps of a tile, where tiles are few and steps many."""
    if not spec.in_parts:
        return 1
    many = machine.multiprocessors if isinstance(machine, CudaMachine) else MULTIPROCESSORS
    return parts_of(spec.product.m, spec.product.n, spec.product.k, many)


def _joined(tail: LoopNest, parts: int) -> LoopNest:
    """The tail over rows and columns, of the product's value as a sum of parts, which lie behind its inputs."""
    (n,), (m,) = tail.outer, tail.inner
    value, half = len(tail.inputs) - 1, tail.inputs[-1]
    body: list[Statement] = [
        Load(value + 1, (n, 1, m * n), "f32"), Reduce("sum", "f32", (0,)), Narrow(half, compute_type(half), (1,)),
    ]  # fmt: skip
    where: dict[int, int] = {}
    for i, x in enumerate(tail.body):
        if isinstance(x, Load) and x.operand == value:
            where[i] = 2
            continue
        body.append(x.renumbered(where).over_loops(lambda st: (st[1], st[0], 0), lambda d: 1 - d))
        where[i] = len(body) - 1
    return replace(tail, outer=(m, n), inner=(parts,), inputs=(*tail.inputs, "f32"), body=tuple(body))
