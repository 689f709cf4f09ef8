"""Dimensions of a tensor dealt to the loops of a reduction: kept ones outside, reduced ones inside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dcir.ir.types import TYPES
from dcir.ops.lowering import Kernel, Lowering, NotNative, Ref


def refuse_complex(ctx: Lowering, *refs: Ref | None) -> None:
    """Loop nests know real numbers only.

    Raises:
        NotNative: an operand or a result is complex.
    """
    types = [r.dtype for r in refs if r is not None] + [m.dtype for m in ctx.outs if m is not None]
    if any(TYPES[t].kind == "complex" for t in types):
        raise NotNative("complex numbers")


def axes(dims: int | Iterable[int] | None, rank: int) -> tuple[int, ...]:
    """The dimensions a ``dim`` argument names, counted from the front; None or nothing names all."""
    if dims is None:
        return tuple(range(rank))
    named = (dims,) if isinstance(dims, int) else tuple(dims)
    if not rank:
        return ()
    return tuple(sorted({d % rank for d in named})) or tuple(range(rank))


@dataclass(frozen=True)
class ReducedDims:
    """The loops of a reduction of tensors of one shape.

    Attributes:
        shape: the shape.
        reduced: the dimensions that vanish, ascending.
    """

    shape: tuple[int, ...]
    reduced: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """The dimensions that stay."""
        return tuple(d for d in range(len(self.shape)) if d not in self.reduced)

    @property
    def count(self) -> int:
        """Elements that go into one result."""
        n = 1
        for d in self.reduced:
            n *= self.shape[d]
        return n

    def kernel(self, ctx: Lowering) -> Kernel:
        """A builder over the kept dimensions outside and the reduced ones inside."""
        return ctx.kernel([self.shape[d] for d in self.kept], [self.shape[d] for d in self.reduced])

    def strides(self, ref: Ref) -> tuple[int, ...]:
        """Strides over the loops of a tensor that broadcasts to the shape."""
        st = ref.expand_to(self.shape)
        return tuple(st[d] for d in (*self.kept, *self.reduced))

    def of_result(self, ref: Ref) -> tuple[int, ...]:
        """Strides over the loops of a result, whether its reduced dimensions stayed as ones or went."""
        whole = len(ref.shape) == len(self.shape)
        outer = tuple(ref.strides[d] for d in self.kept) if whole else ref.strides
        return outer + (0,) * len(self.reduced)
