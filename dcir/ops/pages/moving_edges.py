"""Numbers of a graph for many sizes that no rule is to decide by: what is so at one sample is not at another."""

from __future__ import annotations

from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder

_FAR = 1 << 20  # farther than other numbers of a graph, with which one may be merged


def hidden(b: LoopNestBuilder, number: int) -> Expr:
    """A number, counted from afar and rounded from its double.

    No rule that knows the sizes at hand finds a mask with it always true, nothing to subtract, or a power of two.
    """
    return b.op("idiv_floor", b.const(2 * (number + _FAR) + 1, "i64"), b.const(2, "i64")) - _FAR
