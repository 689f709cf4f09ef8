"""The SDFG of a network whose sizes move: DaCe's symbols in the shapes and strides of its containers, and in its memlets."""

from __future__ import annotations

import copy
import functools
import math
import uuid
from typing import TYPE_CHECKING, Any, cast

import dace
from dace.data import Array
from dace.subsets import Range
from sympy import Integer

from dcir.ir.dace.nodes import Op
from dcir.ir.dace.objects import DACE_TYPES
from dcir.ir.sizes import Number, Polynomial
from dcir.ir.types import itemsize

if TYPE_CHECKING:
    from dcir.ir.moving_network import MovingContainer, MovingNetwork


@functools.cache
def symbol(name: str) -> Any:
    """A size as DaCe's symbol."""
    return dace.symbolic.symbol(name, dace.int64, positive=True)


def expression(number: Number) -> Any:
    """A number as what DaCe computes with. Nothing is read from text, which DaCe would evaluate."""
    if not isinstance(number, Polynomial):
        return Integer(number)
    return sum(
        (
            Integer(c) * math.prod((symbol(name) ** power for name, power in m), start=Integer(1))
            for m, c in number.terms
        ),
        start=Integer(0),
    )


def symbolic_sdfg(net: MovingNetwork) -> Any:
    """A new SDFG with the sizes as symbols, for people, for DaCe's validation and for tools that read SDFGs.

    The specs of its library nodes are ``MovingOperator``, which say where operands begin, too. The volume of a memlet whose bytes are no
    polynomial of the sizes is dynamic.
    """
    sdfg = copy.deepcopy(net.widest.sdfg)
    for name in net.sizes:
        sdfg.add_symbol(name, dace.int64)
    for name, c in net.containers.items():
        sdfg.arrays[name] = _array(c)
    state = sdfg.start_state
    for op in state.nodes():
        if not isinstance(op, Op):
            continue
        moving = net.operators[op.label]
        op.spec = cast("Any", moving)  # DaCe reads nothing of it but its JSON
        op.in_offsets, op.out_offsets = [], []
        for edges, touched in ((state.in_edges(op), moving.reads), (state.out_edges(op), moving.writes)):
            for e in edges:
                number = int((e.dst_conn if e.dst is op else e.src_conn)[1:])
                e.data = _memlet(e.data.data, net.containers[e.data.data], touched[number])
    return sdfg


def _array(c: MovingContainer) -> Array:
    # As in a constant network: no extents of 0, and no strides where there is one element.
    shape = tuple(expression(d or 1) if isinstance(d, int) else expression(d) for d in c.shape) or (Integer(1),)
    strides = tuple(map(expression, c.strides)) or (Integer(1),)
    strides = tuple(Integer(1) if d == 1 else s for d, s in zip(shape, strides, strict=True))
    size = expression(c.size or 1) if isinstance(c.size, int) else expression(c.size)
    return Array(DACE_TYPES[c.dtype], list(shape), strides=strides, total_size=size, transient=c.role == "transient")


def _memlet(data: str, c: MovingContainer, nbytes: Number | None) -> Any:
    subset = Range([(0, (expression(d) if d != 0 else 1) - 1, 1) for d in c.shape or (1,)])
    memlet = dace.Memlet(
        data=data, subset=subset, volume=0 if nbytes is None else expression(nbytes) / itemsize(c.dtype)
    )
    memlet.dynamic = nbytes is None
    memlet._guid = str(uuid.uuid4())
    return memlet
