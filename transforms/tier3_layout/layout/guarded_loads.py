"""Guarded loads as digits: where a load with a mask stays inside a window, though its loops run past the window's edges.

    x[i + k - 1] if 0 <= i + k - 1 < 8 else 0,   i < 8, k < 3    -->   digit i + k from -1 on, inside where it is read

The mask of a padded window is a conjunction of comparisons of sums of loops. What a mask says about a sum bounds the digit
that is this sum, so the digits of every address that is read lie inside the window.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Const, Index, Load

_Affine = tuple[int, tuple[int, ...]]
"""A constant, and a coefficient for every loop."""


def guarded_walk(
    dims: Sequence[int], steps: Sequence[int], p: LoopNest, number: int, offset: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]] | None:
    """A masked load's digits in a window.

    Args:
        dims, steps: extents and strides of the window, in any order.
        p, number: the program and the load's number.
        offset: the load's operand, from the window's first element on.

    Returns:
        For every dimension of the window where the load starts (perhaps below 0) and its coefficient of every loop; None
        if the mask does not keep every digit inside.
    """
    load = p.body[number]
    if not isinstance(load, Load) or not load.args or any(s < 0 for s in load.strides):
        return None
    order = sorted((d for d, n in enumerate(dims) if n > 1), key=lambda d: steps[d], reverse=True)
    for high, low in itertools.pairwise(order):
        if steps[high] < steps[low] * dims[low]:
            return None
    rows = [[0] * len(p.dims) for _ in dims]
    for k, (stride, n) in enumerate(zip(load.strides, p.dims, strict=True)):
        rest = stride if n > 1 else 0
        for d in order:
            rows[d][k], rest = divmod(rest, steps[d])
        if rest:
            return None
    inside = _not_negative(p, load.args[0])
    ranges = [_range(row, p.dims, inside) for row in rows]
    # With every digit's lowest value taken off, what is left of the offset are ordinary digits.
    rest = offset + sum(low * step for (low, _), step in zip(ranges, steps, strict=True))
    start = [0] * len(dims)
    for d in order:
        low, high = ranges[d]
        digit, rest = divmod(rest, steps[d])
        if not 0 <= digit < dims[d] - (high - low):
            return None
        start[d] = digit - low
    return None if rest else (tuple(start), tuple(map(tuple, rows)))


def _range(row: Sequence[int], dims: Sequence[int], inside: Sequence[_Affine]) -> tuple[int, int]:
    """Least and greatest value of a sum of loops, where the mask holds."""
    low, high = 0, sum(q * (n - 1) for q, n in zip(row, dims, strict=True))
    same, opposite = tuple(row), tuple(-q for q in row)
    for constant, coefficients in inside:
        if coefficients == same:
            low = max(low, -constant)
        elif coefficients == opposite:
            high = min(high, constant)
    return low, high


def _not_negative(p: LoopNest, mask: int) -> list[_Affine]:
    """Sums of loops that are at least 0 where ``mask`` holds."""
    found: list[_Affine] = []
    stack = [mask]
    while stack:
        s = p.body[stack.pop()]
        if s.op == "and":
            stack += s.args
        elif s.op in ("ge", "gt", "le", "lt"):
            a, b = (_affine(p, i) for i in (s.args if s.op[0] == "g" else s.args[::-1]))
            if a is not None and b is not None:
                slack = a[0] - b[0] - (s.op[1] == "t")
                found.append((slack, tuple(x - y for x, y in zip(a[1], b[1], strict=True))))
    # A loop of extent 1 is 0.
    return [(c, tuple(q if n > 1 else 0 for q, n in zip(row, p.dims, strict=True))) for c, row in found]


def _affine(p: LoopNest, number: int) -> _Affine | None:
    """A value as a sum of loops, if it is one."""
    s = p.body[number]
    if s.dtype != "i64":
        return None
    if isinstance(s, Index):
        return 0, tuple(int(k == s.dim) for k in range(len(p.dims)))
    if isinstance(s, Const):
        return int(s.value), (0,) * len(p.dims)
    if s.op not in ("add", "sub", "mul"):
        return None
    a, b = (_affine(p, i) for i in s.args)
    if a is None or b is None:
        return None
    if s.op == "mul":
        (factor, none), (constant, row) = (a, b) if not any(a[1]) else (b, a)
        return None if any(none) else (factor * constant, tuple(factor * q for q in row))
    sign = 1 if s.op == "add" else -1
    return a[0] + sign * b[0], tuple(x + sign * y for x, y in zip(a[1], b[1], strict=True))
