"""Epilogues: what happens to a product's value before it is stored, as a pointwise loop nest over the product's results.

The program's outer loops are the product's result space, (*batch, m, n) or (n, channel, *spatial). Its input 0 is the product's
value in the compute type, "loaded" with row-major strides over that space, which name the element and no address; its further
inputs are operands that follow the product's own, its outputs are the node's outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dcir.ir.describe import words_of
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.ir.statements import Access, Load, Store
from dcir.ir.types import compute_type


def identity_epilogue(shape: Sequence[int], dtype: str, strides: Sequence[int]) -> LoopNest:
    """The epilogue that stores the product's value as it is."""
    body = LoopNestBuilder(shape)
    body.store(body.output(dtype), strides, body.load(body.input(compute_type(dtype)), contiguous(shape)))
    return body.finish()


def first_store(epilogue: LoopNest) -> Store:
    """The store that decides the layout of the product's result."""
    return next(s for s in epilogue.body if isinstance(s, Store))


def epilogue_footprint(epilogue: LoopNest) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of its operands other than the product's value, and of its outputs."""
    reads, writes = epilogue.footprint()
    return reads[1:], writes


def epilogue_text(epilogue: LoopNest | None) -> str:
    """What a product's description says of its epilogue."""
    return "" if epilogue is None else f" + {words_of(epilogue.body)}"


def run_epilogue(epilogue: LoopNest, product: Any, ins: Sequence[Any], outs: Sequence[Any]) -> None:
    """Apply it to a product (a NumPy array of the result's shape) over 1-D buffers of its other operands."""
    value = np.ascontiguousarray(product).reshape(-1)
    run_program(epilogue, [value, *ins], outs, reference)


def reorder_epilogue(epilogue: LoopNest, order: Sequence[int]) -> LoopNest:
    """The epilogue of a product whose dimensions are numbered anew: loop ``order[d]`` becomes loop ``d``."""
    made = epilogue.reorder(tuple(order), ())
    value = contiguous(made.outer)
    strides = tuple(s if n != 1 else 0 for s, n in zip(value, made.outer, strict=True))
    body = tuple(s.with_strides(strides) if isinstance(s, Load) and s.operand == 0 else s for s in made.body)
    return replace(made, body=body)


def attach_epilogue(product: LoopNest, epilogue: LoopNest) -> LoopNest:
    """``product`` (one store, the same outer loops as the epilogue) with the epilogue in place of its store."""
    n_in, rank = len(product.inputs), len(product.inner)
    if product.outer != epilogue.outer:
        raise ValueError(f"an epilogue over {epilogue.outer} for a product over {product.outer}")
    (stored,) = (s for s in product.body if isinstance(s, Store))
    place = {i: k for k, i in enumerate(i for i, s in enumerate(product.body) if not isinstance(s, Store))}
    body = [product.body[i].renumbered(place) for i in place]
    where: dict[int, int] = {}
    for i, s in enumerate(epilogue.body):
        if isinstance(s, Load) and s.operand == 0:
            where[i] = place[stored.args[0]]
            continue
        new = s.renumbered(where)
        if isinstance(new, Access):
            number = new.operand if isinstance(new, Store) else new.operand - 1 + n_in
            new = new.at(number, (*new.strides, *(0,) * rank))
        body.append(new)
        where[i] = len(body) - 1
    return simplify(
        replace(product, inputs=product.inputs + epilogue.inputs[1:], outputs=epilogue.outputs, body=tuple(body))
    )
