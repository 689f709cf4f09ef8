"""A batch with symbolic sizes, for the trace of a training step, and what the trace asks of the sizes of further batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

Shapes = tuple[tuple[int, ...], ...]
"""Of each tensor of a batch."""


class Pattern:
    """What is known of the sizes of batches: which of them move, and which of these are equal in every batch.

    Args:
        shapes: those of the first batch.

    Attributes:
        rows: of each tensor its sizes; one that moves is all that it has been, as a tuple. Equal tuples are taken for one size.
    """

    def __init__(self, shapes: Shapes) -> None:
        self._seen = [shapes]
        self.rows: tuple[tuple[int | tuple[int, ...], ...], ...] = shapes

    def see(self, shapes: Shapes) -> None:
        """Have the pattern be one that these follow, too."""
        if not self._follow(shapes):
            self._seen.append(shapes)
            columns = (tuple(zip(*sizes, strict=True)) for sizes in zip(*self._seen, strict=True))
            self.rows = tuple(tuple(c[0] if len(set(c)) == 1 else c for c in row) for row in columns)

    @property
    def moves(self) -> bool:
        """Whether any size does."""
        return any(isinstance(n, tuple) for row in self.rows for n in row)

    def _follow(self, shapes: Shapes) -> bool:
        found: dict[tuple[int, ...], int] = {}
        pairs = (p for row, sizes in zip(self.rows, shapes, strict=True) for p in zip(row, sizes, strict=True))
        return all(found.setdefault(n, size) == size if isinstance(n, tuple) else n == size for n, size in pairs)


class BatchSizes:
    """A batch some of whose sizes are symbols.

    Args:
        batch: tensors laid out densely in the usual order.
        pattern: which sizes are to move.

    Attributes:
        examples: fake tensors.
    """

    def __init__(self, batch: Sequence[Tensor], pattern: Pattern) -> None:
        # What makes a size of what a tensor holds cannot be captured, as it cannot be with constant sizes. Sizes that are equal in this
        # batch alone are two symbols.
        self._environment = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False, duck_shape=False)
        mode = FakeTensorMode(shape_env=self._environment)
        self.examples: list[Tensor] = []
        known: dict[Any, Any] = {}
        for i, (t, row) in enumerate(zip(batch, pattern.rows, strict=True)):
            kinds = [DimDynamic.DYNAMIC if isinstance(n, tuple) else DimDynamic.STATIC for n in row]
            context: Any = StatelessSymbolicContext(kinds, constraint_sizes=[None] * len(kinds))
            plain = torch.empty(t.shape, dtype=t.dtype)  # a dimension of 1 may have any stride
            made = mode.from_tensor(plain, source=ConstantSource(f"batch{i}"), symbolic_context=context)
            for n, size in zip(row, made.shape, strict=True):
                if known.setdefault(n, size) != size:  # to ask makes them one symbol
                    raise AssertionError("sizes of a pattern that this batch does not follow")
            self.examples.append(made)

    @property
    def conditions(self) -> tuple[Any, ...]:
        """What the trace was made under, over the symbols that are left."""
        found = (self._environment.replace(guard.expr) for guard in self._environment.guards)
        return tuple(dict.fromkeys(c for c in found if c != sympy.true))

    @property
    def names(self) -> dict[str, str]:
        """Where each symbol is, for people."""
        found: dict[str, str] = {}
        for i, t in enumerate(self.examples):
            for d, size in enumerate(t.shape):
                found.setdefault(str(_expression(size)), f"batch[{i}][{d}]")
        return found

    def hold(self, shapes: Shapes) -> bool:
        """Whether the sizes of a batch are what the trace takes for constants, and equal where it takes them for one."""
        pairs = [
            (_expression(e), n)
            for x, sizes in zip(self.examples, shapes, strict=True)
            for e, n in zip(x.shape, sizes, strict=True)
        ]
        values: dict[Any, Any] = {}
        for expression, n in pairs:
            if expression.is_symbol:
                values.setdefault(expression, sympy.Integer(n))
        return all(e.free_symbols <= values.keys() and e.xreplace(values) == n for e, n in pairs)


def _expression(size: Any) -> Any:
    """What a size is by now: symbols that the trace found to be equal are one, or a number."""
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
