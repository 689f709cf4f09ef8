"""What the scalar table prints, in the words of the prelude: element types, constants, loads, identities and joins of reductions."""

from __future__ import annotations

from dcir.codegen.cpp.kernels.loop_nest_statements import identity
from dcir.codegen.cpp.scalar_ops import CPP_TYPE, literal
from dcir.codegen.cuda.prelude import device_words
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Reduce
from dcir.ir.types import FLOATS

CUDA_TYPE: dict[str, str] = {**CPP_TYPE, "f16": "f16_t", "bf16": "bf16_t"}
"""C++ type of a stored element on the device."""


def constant(value: bool | int | float, dtype: str) -> str:
    """A constant of a compute type."""
    return device_words(literal(value, dtype))


class Join:
    """How a reduce's partial results join.

    Attributes:
        type: C++ type of a partial result.
        start: of nothing.
        function: the prelude's struct that joins two.
        is_place: whether a partial result is a value and its place.
    """

    def __init__(self, p: LoopNest, r: int) -> None:
        s = p.body[r]
        assert isinstance(s, Reduce)
        dtype = p.body[s.args[0]].dtype
        self.is_place = s.is_place
        value = CUDA_TYPE["bool" if s.kind in ("any", "all") else dtype]
        self.type = f"d_place<{value}>" if s.is_place else value
        first = device_words(identity(s.kind[3:] if s.is_place else s.kind, dtype))
        self.start = f"{{{first}, -1}}" if s.is_place else first
        self.function = f"d_{_function(s.kind, dtype)}_of"


def _function(kind: str, dtype: str) -> str:
    if kind in ("any", "all") or kind.startswith("arg"):
        return kind
    if dtype == "bool":
        return "any" if kind in ("sum", "max") else "all"
    return f"wrap_{kind}" if kind in ("sum", "prod") and dtype not in FLOATS else kind
