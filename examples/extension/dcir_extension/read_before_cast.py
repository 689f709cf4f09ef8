"""Counts are taken of a tensor as it lies, not of a copy of it in a wider type.

    t = double(x); c = bin_counts(t)   -->   c = bin_counts(x)

A wider type has every number of the narrower one, and both are counted in double. Saves the copy's write and its wider read, and the
copy itself where nobody else reads it (dcir removes what nobody reads).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Load, Store
from dcir.ir.types import itemsize, keeps_values
from dcir.transforms.rule import Rule
from dcir_extension.bin_counts import BinCountsSpec


@dataclass(frozen=True)
class Converted:
    """Counts of a converted copy.

    Attributes:
        counts: their operator.
        source: what was converted, and where it begins.
        dtype: its element type.
        copy: the loop nest that converts it.
    """

    counts: Op
    source: Operand
    dtype: str
    copy: LoopNest


@dataclass(frozen=True)
class ReadBeforeCast(Rule[None, Converted]):
    """Bin counts read the source of a conversion."""

    tier: ClassVar[int] = 2
    after: ClassVar[tuple[str, ...]] = ("fold-static",)

    def survey(self, net: Network) -> None:
        """There is nothing to find out beforehand."""

    def pattern(self, net: Network, op: Op, known: None) -> Converted | None:
        """Counts whose operand one loop nest alone writes, which loads, converts and stores."""
        if not isinstance(op.spec, BinCountsSpec):
            return None
        writers = net.writers(net.ins(op)[0].data)
        if len(writers) != 1 or not isinstance(writers[0].spec, LoopNest):
            return None
        nest = writers[0].spec
        if [s.op for s in nest.body] != ["load", "cast", "store"]:
            return None
        (source,) = net.ins(writers[0])
        return Converted(op, source, nest.inputs[0], nest)

    def check(self, net: Network, match: Converted, known: None) -> Refusal | int:
        """The same numbers, in the same order, all of them."""
        spec, (counted,) = match.counts.spec, net.ins(match.counts)
        assert isinstance(spec, BinCountsSpec)
        if match.dtype != "f32" or not keeps_values(match.dtype, spec.dtype):
            return Refusal("the conversion loses numbers, or comes from a type that is not counted")
        load, _, store = match.copy.body
        assert isinstance(load, Load) and isinstance(store, Store)
        dense = contiguous(match.copy.outer)
        if load.args or match.copy.inner or load.strides != dense or store.strides != dense:
            return Refusal("the copy reorders what it converts")
        if counted.offset or net.containers[counted.data].size != spec.count:
            return Refusal("a part of the copy is counted")
        return spec.count * (itemsize(spec.dtype) - itemsize(match.dtype))

    def rewrite(self, net: Network, match: Converted, known: None) -> Sequence[Op]:
        """Count the source."""
        op = match.counts
        assert isinstance(op.spec, BinCountsSpec)
        net.rewire(op, replace(op.spec, dtype=match.dtype), [match.source], net.outs(op), made_by=self.name)
        return ()
