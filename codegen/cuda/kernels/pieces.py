"""What a loop nest does at eight neighbouring points of a row that one thread holds, as lines inside of a product's kernel."""

from __future__ import annotations

from collections.abc import Sequence

from dcir.codegen.cpp.scalar_ops import cast_expr
from dcir.codegen.cuda.kernels.statements import KernelText
from dcir.codegen.cuda.kernels.text import Places
from dcir.codegen.cuda.kernels.types import CUDA_TYPE
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Access, Load, Reduce, Store
from dcir.ir.types import compute_type

LANES = 8
"""Halves of a vector of 16 bytes."""


class Pieces(KernelText):
    """Lines for a nest whose loop ``along`` has neighbours in memory; the thread's piece begins at C++'s ``i<along>``, of whose points
    ``count`` are there.

    Args:
        p: the nest.
        along: the loop.
        index: C++ type of loop variables and addresses.
    """

    def __init__(self, p: LoopNest, along: int, index: str) -> None:
        super().__init__(p, Places(), along, LANES, 0)
        self.index = index
        self.columns = True

    def whole(self, name: str, strides: Sequence[int]) -> str:
        """C++ of whether an operand's pieces are whole vectors."""
        apart = any(st % LANES for d, st in enumerate(strides) if d != self.along)
        return "false" if apart else f"d_aligned({name})"

    def piece_type(self, i: int) -> str:
        """C++ type of what a load has of a piece."""
        s = self._load(i)
        t = CUDA_TYPE[self.p.inputs[s.operand]]
        return f"d_vector<{t}, {LANES}>" if s.strides[self._along] else t

    def fetch(self, i: int, slot: str) -> None:
        """Load what a load has of the piece; beyond ``count`` nothing is touched."""
        s = self._load(i)
        name, at = f"a{s.operand}", self.address(s.strides, "")
        if s.strides[self._along]:
            self.line(f"{slot} = d_fetch<{LANES}>({name}, {at}, count, {self.whole(name, s.strides)});")
        else:
            self.line(f"if (count > 0) {slot} = d_load({name}, {at});")

    def lanes(self, wanted: Sequence[int], stores: Sequence[int], *, partly: bool) -> None:
        """Statements for all points of the piece; what is stored is ``r<number>``, what is reduced joins ``p<number>``.

        Args:
            wanted: numbers of the statements, in order; loads are ``given``.
            stores: numbers of the stores.
            partly: whether some points may not be there.
        """
        for i in stores:
            self.line(f"d_vector<{CUDA_TYPE[self.p.body[i].dtype]}, {LANES}> r{i} = {{}};")
        self.unrolled("l", LANES)
        if partly:
            self.open("if (l < count)")
        for i in wanted:
            s = self.p.body[i]
            if isinstance(s, Reduce):
                self._accumulate(i)
            elif isinstance(s, Store):
                value = cast_expr(self.value(s.args[0], "l"), compute_type(s.dtype), s.dtype)
                self.line(f"r{i}.of[l] = {value};")
            else:
                self._in_lane(i, "l", keep=False)
        if partly:
            self.close()
        self.close()

    def put(self, i: int, operand: int | None = None) -> None:
        """Store ``r<i>`` where it belongs, or to another operand."""
        s = self.p.body[i]
        assert isinstance(s, Store)
        name = f"o{s.operand if operand is None else operand}"
        if s.strides[self._along] == 1:
            at = self.address(s.strides, "")
            self.line(f"d_put<{LANES}>({name}, {at}, r{i}, count, {self.whole(name, s.strides)});")
            return
        self.unrolled("l", LANES)
        self.line(f"if (l < count) d_store({name}, {self.address(s.strides, 'l')}, r{i}.of[l]);")
        self.close()

    def walks(self, i: int, loop: int) -> bool:
        """Whether an access moves with a loop."""
        s = self.p.body[i]
        return isinstance(s, Access) and s.strides[loop] != 0

    @property
    def _along(self) -> int:
        assert self.along is not None
        return self.along

    def _load(self, i: int) -> Load:
        s = self.p.body[i]
        assert isinstance(s, Load)
        return s
