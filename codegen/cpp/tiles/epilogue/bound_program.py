"""An epilogue's program at a tile: what of it differs along a vector, and what its values and addresses are called in C++."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from dcir.codegen.cpp.scalar_ops import literal
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Access, Const, Index, Load, Store

CHAINS = {"exp": "exponentials", "erf": "errors"}
"""Long chains of steps, and the functions that take several vectors through one."""


@dataclass(frozen=True)
class BoundProgram:
    """A program over a kernel's loops.

    Attributes:
        program: its input 0 is the accumulated value, whose strides mean nothing here.
        dtype: "f32" or "f64", of the accumulators.
        vector: the dimension that vectors run along.
        row: the dimension along which a tile's rows lie, -1 if they are taken one by one.
    """

    program: LoopNest
    dtype: str
    vector: int
    row: int

    @functools.cached_property
    def varies(self) -> list[bool]:
        """Per statement whether it differs along a vector."""
        varies: list[bool] = []
        for s in self.program.body:
            own = isinstance(s, Access) and s.strides[self.vector] != 0
            own = (
                own
                or isinstance(s, Store)
                or (isinstance(s, Load) and s.operand == 0)
                or (isinstance(s, Index) and s.dim == self.vector)
            )
            varies.append(own or any(varies[a] for a in s.args))
        return varies

    @functools.cached_property
    def chains(self) -> list[int]:
        """Statements that are long chains of steps for vectors."""
        return [i for i, s in enumerate(self.program.body) if s.op in CHAINS and self.varies[i]]

    def name(self, i: int) -> str:
        """A value in C++; of an index, inside the loop over lanes."""
        s = self.program.body[i]
        if isinstance(s, Const):
            return literal(s.value, s.dtype)
        if isinstance(s, Index):
            return f"(i{s.dim} + s + c)" if s.dim == self.vector else f"i{s.dim}"
        return f"v{i}"

    def address(self, s: Access, lane: str = "") -> str:
        """Where a statement reads or writes, as an index; ``lane`` is what the lane adds."""
        terms = [f"i{d}" if t == 1 else f"i{d} * {t}LL" for d, t in enumerate(s.strides) if t]
        return (" + ".join(terms) or "0") + lane
