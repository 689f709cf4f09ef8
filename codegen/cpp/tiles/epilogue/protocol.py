"""What tiles and sums know of an epilogue; ``epilogue.py`` has the one there is."""

from __future__ import annotations

from typing import Protocol, Self

from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Store
from dcir.isa import Isa


class TileEpilogue(Protocol):
    """An epilogue bound to a kernel; see ``Epilogue``."""

    @property
    def program(self) -> LoopNest:
        """The epilogue over the kernel's loops."""

    @property
    def dtype(self) -> str:
        """Element type of the accumulators."""

    @property
    def vector(self) -> int:
        """The dimension that vectors run along."""

    @property
    def row(self) -> int:
        """The dimension along which a tile's rows lie."""

    @property
    def sums(self) -> int:
        """Elements of a job's sums."""

    @property
    def simple(self) -> bool:
        """Whether every statement that varies has a form for vectors, or is a sum's."""

    @property
    def chained(self) -> bool:
        """Whether a vector takes long chains of steps."""

    def with_program(self, program: LoopNest) -> Self:
        """It with another program over the same loops."""

    def text(self, isa: Isa) -> str:
        """C++ that stands before a tile's."""

    def operands(self, sums: int = 0) -> str:
        """A C++ expression of the operands' pointers."""

    def vector_varies(self) -> list[bool]:
        """Per statement whether it differs along a vector."""

    def vector_lines(self) -> list[list[str]]:
        """C++ of every statement."""

    def as_vector(self, i: int, varies: list[bool]) -> str:
        """A value as a vector."""

    def stored(self, store: Store) -> str:
        """A C++ expression of what was stored."""
