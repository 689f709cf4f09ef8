"""Types of a product's operands, of its sums and of its result, and what integers among them stand for."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from dcir.ir.serialize import register
from dcir.ir.types import HALVES, compute_type


@register
@dataclass(frozen=True)
class OperandTypes:
    """Element types of C = sum A B, in memory but for the accumulator; of a convolution A is x, B is w and C is y.

    Attributes:
        a, b: of the operands; numbers are converted to the accumulator's type before they are multiplied.
        accumulator: of products and sums.
        c: of the result, converted once.
    """

    a: str
    b: str
    accumulator: str
    c: str

    @functools.cached_property
    def common(self) -> str:
        """The type of A and C, whose compute type sums have and to which a half-typed B is widened; empty if they are not alike."""
        alike = self.a == self.c and self.accumulator == compute_type(self.a)
        return self.a if alike and (self.b == self.a or (self.b in HALVES and self.a == self.accumulator)) else ""


@functools.cache
def alike(dtype: str, b: str = "") -> OperandTypes:
    """Operands and result of one type, or with B in a type of its own, and sums in the compute type."""
    return OperandTypes(dtype, b or dtype, compute_type(dtype), dtype)


@register
@dataclass(frozen=True)
class Scales:
    """What the numbers of integer operands stand for: scale * (number - zero point).

    The inputs behind A and B hold A's scales and B's (of C's compute type), then A's zero points and B's, each of its operand's type,
    where they are given. Then C = scale of A * scale of B * sum of (A - zero of A) (B - zero of B), the sum in the accumulator's type.

    Attributes:
        a: strides of A's scales over the batch dimensions and m; of a convolution over n. 0: the same for all.
        b: strides of B's scales over the batch dimensions and n; of a convolution over the output channels of all groups.
        a_zero, b_zero: whether there are zero points, with the strides of the scales.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    a_zero: bool = False
    b_zero: bool = False

    @property
    def inputs(self) -> int:
        """How many inputs they take."""
        return 2 + self.a_zero + self.b_zero
