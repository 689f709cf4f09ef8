"""What a draft knows of its epilogue; ``epilogue.py`` has the one there is."""

from __future__ import annotations

from typing import Protocol

from dcir.ir.loop_nest import LoopNest
from dcir.isa import Isa


class TileEpilogue(Protocol):
    """An epilogue bound to a kernel; see ``Epilogue``."""

    @property
    def program(self) -> LoopNest:
        """The epilogue over the kernel's loops."""

    @property
    def sums(self) -> int:
        """Elements of a job's sums."""

    @property
    def adds_vectors(self) -> bool:
        """Whether every sum takes a vector to neighbours, from every row to the same ones."""

    @property
    def simple(self) -> bool:
        """Whether every statement that varies has a form for vectors, or is a sum's."""

    def text(self, isa: Isa) -> str:
        """C++ that stands before a tile's."""

    def operands(self, sums: int = 0) -> str:
        """A C++ expression of the operands' pointers."""
