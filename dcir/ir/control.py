"""What an operator with bodies runs, as plain data: for those that may not know what a network is, as the expansion for DaCe."""

from __future__ import annotations

from typing import NamedTuple

from dcir.ir.operator import Operator

Place = tuple[str, int]
"""An array and the first element in it."""


class Block(NamedTuple):
    """A body: its arrays, of which some are given and some are results, and operators in order.

    Attributes:
        arrays: element type and elements of each, by name.
        inputs, results: names.
        operators: each with the places of what it reads and writes.
    """

    arrays: dict[str, tuple[str, int]]
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    operators: tuple[tuple[Operator, tuple[Place, ...], tuple[Place, ...]], ...]


class Repeat(NamedTuple):
    """A block that runs ``trips`` times: the first ``carried`` inputs are the first results of the trip before; the others' places move."""

    block: Block
    trips: int
    carried: int
    in_steps: tuple[int, ...]
    out_steps: tuple[int, ...]


class RepeatWhile(NamedTuple):
    """A block that hands on all its results, for as long as another one, of the same inputs, gives true."""

    condition: Block
    block: Block
    carried: int


class Choose(NamedTuple):
    """One of two blocks: the operator's first input says which, the others are theirs."""

    then: Block
    otherwise: Block


Control = Repeat | RepeatWhile | Choose
