"""The SDFG of a network whose sizes move: DaCe's symbols in the shapes and strides of its containers, and in its memlets."""

from __future__ import annotations

import copy
import functools
import math
import operator
import uuid
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, cast

import dace
from dace.data import Array
from dace.subsets import Range
from sympy import Integer

from dcir.ir.dace.memlets import OperandMemlet, operand_memlet
from dcir.ir.dace.nodes import Op
from dcir.ir.dace.objects import DACE_TYPES
from dcir.ir.moving_network import MovingContainer, MovingNetwork, fixed, polynomials
from dcir.ir.sizes import Number, Polynomial, value_at


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

    The specs of its library nodes are ``MovingOperator``, which say where operands begin, too. Memlets are those of the constant networks
    at the sizes that were seen: a number of theirs that is one of the network's plus or times a constant is an expression. Where one is
    none, the subset spans that dimension; a volume that is none is dynamic.
    """
    sdfg = copy.deepcopy(net.widest.sdfg)
    for name in net.sizes:
        sdfg.add_symbol(name, dace.int64)
    for name, c in net.containers.items():
        sdfg.arrays[name] = _array(c)
    samples = [dict(values) for values, _ in net.samples]
    state = sdfg.start_state
    for op in state.nodes():
        if not isinstance(op, Op):
            continue
        moving = net.operators[op.label]
        specs = [fixed(moving.spec, values) for values in samples]
        op.spec = cast("Any", moving)  # DaCe reads nothing of it but its JSON
        op.in_offsets, op.out_offsets = [], []
        for edges, writes in ((state.in_edges(op), False), (state.out_edges(op), True)):
            for e in edges:
                number = int((e.dst_conn if e.dst is op else e.src_conn)[1:])
                c = net.containers[e.data.data]
                offset = (moving.out_offsets if writes else moving.in_offsets)[number]
                constant = [
                    operand_memlet(
                        e.data.data, spec, (writes, number), value_at(offset, values), fixed(c.shape, values),
                        fixed(c.strides, values), c.dtype,
                    )
                    for spec, values in zip(specs, samples, strict=True)
                ]  # fmt: skip
                known = dict.fromkeys((*polynomials(c.shape), *polynomials((c.strides, moving))))
                e.data = _memlet(constant, c, _Through(samples, list(known)))
    return sdfg


class _Through:
    """Expressions that have certain values at samples: one of the known polynomials plus, or times, a constant."""

    def __init__(self, samples: Sequence[Mapping[str, int]], known: Sequence[Polynomial]) -> None:
        self._known = [(number, [number.at(values) for values in samples]) for number in known]

    def __call__(self, values: Sequence[int]) -> Any:
        """The expression, None if there is none."""
        if len(set(values)) == 1:
            return Integer(values[0])
        for number, of_samples in self._known:
            apart = {a - b for a, b in zip(values, of_samples, strict=True)}
            if len(apart) == 1:
                return expression(number) + Integer(apart.pop())
            times = {Fraction(a, b) if b else None for a, b in zip(values, of_samples, strict=True)}
            if len(times) == 1 and (factor := times.pop()) is not None:
                return expression(number) * factor.numerator / factor.denominator
        return None


def _array(c: MovingContainer) -> Array:
    # As in a constant network: no extents of 0, and no strides where there is one element.
    shape = tuple(expression(d or 1) if isinstance(d, int) else expression(d) for d in c.shape) or (Integer(1),)
    strides = tuple(map(expression, c.strides)) or (Integer(1),)
    strides = tuple(Integer(1) if d == 1 else s for d, s in zip(shape, strides, strict=True))
    size = expression(c.size or 1) if isinstance(c.size, int) else expression(c.size)
    return Array(DACE_TYPES[c.dtype], list(shape), strides=strides, total_size=size, transient=c.role == "transient")


def _memlet(constant: Sequence[OperandMemlet], c: MovingContainer, through: _Through) -> Any:
    """What the memlets of one operand at the samples are at all sizes."""
    rows = list(zip(*(m.subset.ranges for m in constant), strict=True))  # for each dimension its ranges at the samples
    numbers = [[[int(r[k]) for r in row] for k in range(3)] for row in rows]
    counts = [[(b - a) // step + 1 for a, b, step in zip(*columns, strict=True)] for columns in numbers]
    ranges, sizes = [], []
    for columns, count, extent in zip(numbers, counts, c.shape or (1,), strict=True):
        found = [through(column) for column in columns]
        ranges.append((Integer(0), expression(extent or 1) - 1, Integer(1)) if None in found else tuple(found))
        sizes.append(None if None in found else through(count))
    volumes = [int(m.volume) for m in constant]
    volume = through(volumes)
    if volume is None and None not in sizes and volumes == [math.prod(at) for at in zip(*counts, strict=True)]:
        volume = functools.reduce(operator.mul, sizes, Integer(1))
    memlet = dace.Memlet(data=constant[0].data, subset=Range(ranges), volume=0 if volume is None else volume)
    memlet.dynamic = volume is None or any(m.dynamic for m in constant)
    memlet._guid = str(uuid.uuid4())
    return memlet
