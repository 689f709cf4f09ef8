"""The scalar statements of loop nests: one frozen class per kind, and what passes ask of all of them alike.

A statement's position in the body is its value number; ``args`` are the numbers of the values it needs. Where a kind has
more to say, it says so in fields:

    Const      value                              a number
    Index      dim                                the loop variable, i64
    Load       operand, strides                   args: () or (mask, other)
    Gather     operand, strides, extents, steps,  args: indices [+ (mask, other)]
               checked
    Store      operand, strides, added            args: (value,)
    Reduce     kind                               over all inner loops
    Cast                                          conversion to the statement's dtype
    Narrow     storage                            the value as it would be after a store to a half type and a load
    Compute    op                                 any name of the scalar table (``scalars.py``)

Strides run over (*outer, *inner), in elements; operand offsets live on the network's node, so that equal kernels at
different places are the same loop nest. A pass that rewrites loop nests needs no ladder over the kinds: ``renumbered``
gives a statement other values, ``Access.with_operand`` another operand, ``over_loops`` other loops.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")

Values = tuple[int, ...]
"""Value numbers: positions in the body."""
Strides = tuple[int, ...]
"""Elements from one step of each loop to the next, outer loops first."""


class Statement:
    """One scalar statement. Immutable and hashable; statements of different kinds are never equal.

    Attributes:
        op: the kind's name, in reports and names of kernels; of a ``Compute``, the scalar operator's.
        args: the numbers of the values it needs.
        dtype: the compute type of its value; of a ``Store``, the storage type.
    """

    __slots__ = ()

    op: str
    args: Values
    dtype: str

    @abstractmethod
    def with_args(self, args: Values) -> Self:
        """The same statement of other values."""

    def renumbered(self, where: Mapping[int, int] | Sequence[int]) -> Self:
        """The same statement after its values have moved: value ``a`` is number ``where[a]`` now."""
        args = self.args
        return self.with_args(tuple([where[a] for a in args])) if args else self

    def over_loops(self, strides: Callable[[Strides], Strides], dim: Callable[[int], int]) -> Self:
        """The same statement in another nest.

        Args:
            strides: the strides over the new loops, from those over the old ones.
            dim: the number of the loop that was loop ``d``.
        """
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Const(Statement):
    """The number ``value``. Numbers are compared by their text: 0.0 == -0.0 and 1 == True, but NaN != NaN."""

    value: bool | int | float
    dtype: str
    args: Values = ()
    op = "const"

    def __eq__(self, other: object) -> bool:
        return type(other) is Const and repr(self.value) == repr(other.value) and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype))

    def with_args(self, args: Values) -> Const:
        return self


@dataclass(frozen=True, slots=True)
class Index(Statement):
    """The variable of loop ``dim``, counted over outer and inner loops."""

    dim: int
    dtype: str = "i64"
    args: Values = ()
    op = "index"

    def with_args(self, args: Values) -> Index:
        return self

    def over_loops(self, strides: Callable[[Strides], Strides], dim: Callable[[int], int]) -> Index:
        return Index(dim(self.dim))


class Access(Statement):
    """A statement that touches an element of an operand: a load, a gather or a store.

    Attributes:
        operand: the number of the input it reads, or of the output it writes.
        strides: how its address walks with the loops.
    """

    __slots__ = ()

    operand: int
    strides: Strides

    @abstractmethod
    def at(self, operand: int, strides: Strides) -> Self:
        """The same access of another operand, along other strides."""

    def with_operand(self, operand: int) -> Self:
        """The same access of operand number ``operand``."""
        return self if operand == self.operand else self.at(operand, self.strides)

    def with_strides(self, strides: Strides) -> Self:
        """The same access along other strides."""
        return self.at(self.operand, strides)

    def over_loops(self, strides: Callable[[Strides], Strides], dim: Callable[[int], int]) -> Self:
        return self.at(self.operand, strides(self.strides))


class Read(Access):
    """A load or a gather."""

    __slots__ = ()

    @property
    @abstractmethod
    def indices(self) -> Values:
        """The values that are part of the address."""

    @property
    def guard(self) -> Values:
        """(mask, other) if it reads only where the mask is true and gives ``other`` elsewhere; else ()."""
        return self.args[len(self.indices) :]


@dataclass(frozen=True, slots=True)
class Load(Read):
    """The element of an input at the loops' address, in its compute type; where a mask is false, another value."""

    operand: int
    strides: Strides
    dtype: str
    args: Values = ()
    op = "load"

    @property
    def indices(self) -> Values:
        return ()

    def with_args(self, args: Values) -> Load:
        return Load(self.operand, self.strides, self.dtype, args)

    def at(self, operand: int, strides: Strides) -> Load:
        return Load(operand, strides, self.dtype, self.args)


@dataclass(frozen=True, slots=True)
class Gather(Read):
    """The element of an input at the loops' address plus, for every index, index times step; 0 outside if nothing else is said.

    Attributes:
        extents, steps: of each index: it lies in range(extent), and moves the address by ``step`` elements.
        checked: whether an index that lies outside is an error, told at run time.
    """

    operand: int
    strides: Strides
    extents: Values
    steps: Strides
    checked: bool
    dtype: str
    args: Values = ()
    op = "gather"

    @property
    def indices(self) -> Values:
        return self.args[: len(self.extents)]

    def with_args(self, args: Values) -> Gather:
        return Gather(self.operand, self.strides, self.extents, self.steps, self.checked, self.dtype, args)

    def at(self, operand: int, strides: Strides) -> Gather:
        return Gather(operand, strides, self.extents, self.steps, self.checked, self.dtype, self.args)


@dataclass(frozen=True, slots=True)
class Store(Access):
    """A value written to an output, converted to its storage type.

    Attributes:
        added: whether it is added up instead, over all points that share the address, in float64.
    """

    operand: int
    strides: Strides
    dtype: str
    args: Values
    added: bool = False
    op = "store"

    def with_args(self, args: Values) -> Store:
        return Store(self.operand, self.strides, self.dtype, args, self.added)

    def at(self, operand: int, strides: Strides) -> Store:
        return Store(operand, strides, self.dtype, self.args, self.added)


@dataclass(frozen=True, slots=True)
class Reduce(Statement):
    """A value reduced over all inner loops, by one of ``REDUCTIONS``."""

    kind: str
    dtype: str
    args: Values
    op = "reduce"

    @property
    def is_place(self) -> bool:
        """Whether it gives a position (argmax, argmin), not a value."""
        return self.kind.startswith("arg")

    def with_args(self, args: Values) -> Reduce:
        return Reduce(self.kind, self.dtype, args)


@dataclass(frozen=True, slots=True)
class Cast(Statement):
    """A value converted to ``dtype``."""

    dtype: str
    args: Values
    op = "cast"

    def with_args(self, args: Values) -> Cast:
        return Cast(self.dtype, args)


@dataclass(frozen=True, slots=True)
class Narrow(Statement):
    """A value rounded to the half type ``storage``, and back in ``dtype``."""

    storage: str
    dtype: str
    args: Values
    op = "narrow"

    def with_args(self, args: Values) -> Narrow:
        return Narrow(self.storage, self.dtype, args)


@dataclass(frozen=True, slots=True)
class Compute(Statement):
    """The scalar operator ``op`` of the table, of any number of values."""

    op: str
    dtype: str
    args: Values

    def with_args(self, args: Values) -> Compute:
        return Compute(self.op, self.dtype, args)


KINDS: tuple[type[Statement], ...] = (Const, Index, Load, Gather, Store, Reduce, Cast, Narrow, Compute)
"""Every kind of statement."""
