"""Pages of special functions: derivatives of the digamma function, and orthogonal polynomials by degree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ops.lowering import INT_TO_FLOAT, Lowering, NotNative, Ref
from dcir.ops.pages.pointwise import Fn, call, const
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand

_HIGHEST_ORDER = 150
"""Of a derivative: the factorial of a higher one leaves double precision."""


def _polygamma() -> Iterable[Sample]:
    for n in range(5):
        yield Sample((n, rand(3, 37, low=0.05, high=6)), name=f"order {n}")
    yield Sample((1, rand(2, 5, 7, low=0.3, high=4).permute(2, 0, 1)), name="permuted")
    yield Sample((2, rand(4, 6, low=0.3, high=40)[:, ::2]), name="strided")
    yield Sample((3, rand(130, low=0.1, high=20, dtype=torch.float64)), name="double")
    yield Sample((1, rand(33, low=0.3, high=6, dtype=torch.bfloat16)), name="bf16")
    yield Sample((2, rand(9, dtype=torch.int64, low=1, high=9)), name="int64")
    yield Sample((1, rand(0, 4)), name="empty")
    yield Sample((1, torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-3, 1e6])), name="special values")
    yield Sample(
        (2, torch.tensor([0.0, -3.0, math.inf, -math.inf, math.nan, 1e-3, 1e6])), name="special values, order 2"
    )


@operator("aten.polygamma.default", samples=_polygamma)
def polygamma(ctx: Lowering, n: int, x: Ref) -> Ref:
    """The derivative of order ``n`` of digamma."""
    if not 0 <= n <= _HIGHEST_ORDER:
        raise NotNative(f"a derivative of order {n}")
    if n == 0:
        return ctx.pointwise(lambda v: call("digamma", v), x, kind=INT_TO_FLOAT)
    return ctx.pointwise(lambda v: call("polygamma", const(v, n), v), x, kind=INT_TO_FLOAT)


def _polynomials() -> Iterable[Sample]:
    degrees = torch.arange(37) % 13 - 1.0
    yield Sample((rand(3, 37, low=-1.5, high=1.5), degrees))
    yield Sample((rand(3, 37, low=0, high=1), degrees), name="between 0 and 1")
    yield Sample((rand(37, 3, low=-2, high=3).t(), torch.arange(3.0).reshape(3, 1) + 2), name="transposed")
    yield Sample((torch.tensor([1.0, -1.0, 0.0, 2.0]).reshape(4, 1), torch.arange(6.0)), name="ends")
    yield Sample(
        (rand(33, low=-1, high=1, dtype=torch.float64), 20.0 * rand(33, low=0, high=2).double()), name="double"
    )
    yield Sample((rand(9, low=-1, high=1), rand(9, dtype=torch.int64, low=0, high=9)), name="float and int")
    yield Sample((rand(0, 4), rand(4)), name="empty")
    yield Sample((rand(3, 5, low=-1, high=1), 5), name="number")


def _page(fn: Fn) -> Callable[..., Ref]:
    def page(ctx: Lowering, x: Any, n: Any) -> Ref:
        """The polynomial of degree ``n``, cut to a whole number, at ``x``; zero for a negative degree."""
        return ctx.pointwise(fn, x, n, kind=INT_TO_FLOAT)

    return page


def _at(name: str) -> Fn:
    return lambda x, n: call(name, x, n)


def _shifted(name: str) -> Fn:
    def fn(x: Expr, n: Expr) -> Expr:
        return call(name, x + x - 1.0, n)

    return fn


for _family in (
    "chebyshev_t",
    "chebyshev_u",
    "chebyshev_v",
    "chebyshev_w",
    "hermite_h",
    "hermite_he",
    "laguerre_l",
    "legendre_p",
):
    _first, _, _last = _family.partition("_")
    for _prefix, _make in (("", _at), ("shifted_", _shifted)) if _first == "chebyshev" else (("", _at),):
        _name = f"aten.special_{_prefix}{_first}_polynomial_{_last}"
        operator(f"{_name}.default", f"{_name}.n_scalar", f"{_name}.x_scalar", samples=_polynomials)(
            _page(_make(_family))
        )
