"""Pages of the comparisons, of logic and of bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ops.lowering import BOOL, Lowering, NotNative, Ref
from dcir.ops.pages.pointwise import Fn, result_type, rounded, scalar
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand, specials


def _comparisons() -> Iterable[Sample]:
    a, b = rand(3, 7, low=-2, high=2), rand(3, 7, low=-2, high=2, seed=1)
    yield Sample((a, torch.where(b > 0, a, b)))
    yield Sample((a, b[:, :1]), name="broadcast")
    yield Sample((specials(), specials().flip(0)), name="special values")
    yield Sample((rand(9, dtype=torch.int64, low=-2, high=3), 1), name="int64 and number")
    yield Sample((rand(9, dtype=torch.int32, low=-2, high=3), 0.5), name="int32 and fraction")
    # The number is rounded to the tensor's type before it is compared.
    yield Sample((torch.full((3,), 0.1, dtype=torch.bfloat16), 0.1), name="bf16 and number")
    yield Sample((rand(5, dtype=torch.bool), rand(5, dtype=torch.bool, seed=1)), name="bool")
    yield Sample((a.double(), b), name="double and float")


def _compare(name: str) -> Callable[..., Ref]:
    def page(ctx: Lowering, a: Any, b: Any) -> Ref:
        """Elementwise comparison; operands of other types are rounded to the common one first."""
        common = result_type(a, b)

        def ready(v: Expr, source: Any) -> Expr:
            return v if isinstance(source, Ref) and source.dtype == common else rounded(v, common)

        return ctx.pointwise(lambda x, y: x.body.op(name, ready(x, a), ready(y, b), dtype="bool"), a, b, kind=BOOL)

    return page


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    operator(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar", samples=_comparisons)(_compare(_name))


def _logical_samples() -> Iterable[Sample]:
    yield Sample((rand(3, 4, dtype=torch.bool), rand(4, dtype=torch.bool, seed=1)))
    yield Sample((rand(9, dtype=torch.int64, low=-1, high=2), rand(9, low=-1, high=1, seed=1)), name="mixed")
    yield Sample((specials(), specials().flip(0)), name="special values")


def _logical(name: str) -> Callable[..., Ref]:
    def page(ctx: Lowering, a: Ref, b: Ref) -> Ref:
        """Logic on what is not zero."""
        return ctx.pointwise(lambda x, y: x.body.op(name, _true(x), _true(y)), a, b, kind=BOOL)

    return page


def _true(x: Expr) -> Expr:
    return x if x.dtype == "bool" else x.ne(0)


for _name in ("and", "or", "xor"):
    operator(f"aten.logical_{_name}.default", samples=_logical_samples)(_logical(_name))


@operator("aten.logical_not.default", samples=lambda: [
    Sample((rand(3, 4, dtype=torch.bool),)), Sample((rand(9, dtype=torch.int32, low=-1, high=2),)),
    Sample((specials(),)),
])  # fmt: skip
def logical_not(ctx: Lowering, x: Ref) -> Ref:
    """Whether it is zero."""
    return ctx.pointwise(lambda v: ~_true(v), x, kind=BOOL)


def _bits() -> Iterable[Sample]:
    a, b = rand(3, 5, dtype=torch.int64, low=-99, high=99), rand(3, 5, dtype=torch.int64, low=-99, high=99, seed=1)
    yield Sample((a, b))
    yield Sample((a.int(), b[:, :1]), name="int32 and int64")
    yield Sample((a.to(torch.uint8), b.to(torch.uint8)), name="u8")
    yield Sample((a > 0, b > 0), name="bool")
    yield Sample((a, 13), name="number")
    yield Sample((13, a), name="number first")


def _shifts() -> Iterable[Sample]:
    a = rand(3, 5, dtype=torch.int64, low=-99, high=99)
    yield Sample((a, rand(3, 5, dtype=torch.int64, low=0, high=9, seed=1)))
    yield Sample((a.int(), rand(5, dtype=torch.int32, low=0, high=9, seed=1)), name="int32")
    yield Sample((a, 3), name="number")
    yield Sample((13, rand(4, dtype=torch.int64, low=0, high=9)), name="number first")


def _bitwise(fn: Fn) -> Callable[..., Ref]:
    def page(ctx: Lowering, a: Any, b: Any) -> Ref:
        """Bit by bit, in the common type."""
        if result_type(a, b)[0] not in "iub":
            raise NotNative("bits of floats")
        return ctx.pointwise(fn, a, b)

    return page


for _name in ("and", "or", "xor"):
    operator(
        f"aten.bitwise_{_name}.Tensor", f"aten.bitwise_{_name}.Scalar", f"aten.bitwise_{_name}.Scalar_Tensor",
        samples=_bits,
    )(_bitwise(scalar(f"bit{_name}")))  # fmt: skip
for _name, _op in (("left", "shl"), ("right", "shr")):
    operator(
        f"aten.bitwise_{_name}_shift.Tensor", f"aten.bitwise_{_name}_shift.Tensor_Scalar",
        f"aten.bitwise_{_name}_shift.Scalar_Tensor", f"aten.__{_name[0]}shift__.Tensor",
        f"aten.__{_name[0]}shift__.Scalar", samples=_shifts,
    )(_bitwise(scalar(_op)))  # fmt: skip


@operator("aten.bitwise_not.default", samples=lambda: [
    Sample((rand(9, dtype=torch.int64, low=-9, high=9),)), Sample((rand(9, dtype=torch.uint8, low=0, high=9),)),
    Sample((rand(9, dtype=torch.bool),)),
])  # fmt: skip
def bitwise_not(ctx: Lowering, x: Ref) -> Ref:
    """Every bit turned; logical not for bools."""
    return ctx.pointwise(lambda v: ~v, x)
