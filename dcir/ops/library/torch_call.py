"""The operator without a native lowering: called through the loaded torch, one node with its shapes and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch._higher_order_ops.effects import has_effects as torch_has_effects
from torch.utils import _pytree as pytree

from dcir.errors import FallbackFailed
from dcir.ir.operator import OperandWindow, Operator, Windows
from dcir.ir.serialize import register
from dcir.ir.types import itemsize
from dcir.ops.library.subgraphs import Subgraph, graph_of
from dcir.ops.reach import otherwise_stored
from dcir.ops.registry import HIGHER_ORDER, overload
from dcir.ops.torch_types import FROM_NAME

_COLLECTIVES = "_c10d_functional."
"""Operators that give a tensor before it is written, which is safe to read only when somebody has waited for it."""

Window = tuple[tuple[int, ...], tuple[int, ...], str]


@register
@dataclass(frozen=True)
class TorchCall(Operator):
    """One call of a torch operator.

    Attributes:
        name: overload name ("aten.linalg_inv_ex.default").
        args, kwargs: the call; ("t", i) stands for tensor i, ("g", token) for a graph, ("o", name) for an operator, other
            pairs for dtypes and the like (``pack``).
        ins, outs: (shape, strides, dtype) of each tensor operand and result.
        places: which of the operator's results ``outs`` are; None: all that are tensors. Torch leaves results undefined
            that nobody reads (a workspace for a backward pass that will not come), so those are not asked for.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    ins: tuple[Window, ...]
    outs: tuple[Window, ...]
    places: tuple[int, ...] | None = None

    kind = "torch"

    @property
    def calls_out(self) -> str:
        """The operator."""
        return self.name

    @property
    def has_effects(self) -> bool:
        """Whether it moves a random generator's state, prints, or talks to other processes; it may do what is in graphs that it calls."""
        if calls_graphs(self) or self.name.startswith((_COLLECTIVES, "_dtensor.")):
            return True
        op = overload(self.name)
        return op is None or torch.Tag.nondeterministic_seeded in op.tags or torch_has_effects(op)

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bytes of each operand, once."""
        size = (
            [math.prod(s) * itemsize(d) for s, _, d in self.ins],
            [math.prod(s) * itemsize(d) for s, _, d in self.outs],
        )
        return tuple(size[0]), tuple(size[1])

    def operations(self) -> int:
        """Unknown work counts as one operation per result element."""
        return sum(math.prod(s) for s, _, _ in self.outs)

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it over NumPy buffers."""
        self.call([window_tensor(b, w) for b, w in zip(ins, self.ins, strict=True)],
                  [window_tensor(b, w) for b, w in zip(outs, self.outs, strict=True)])  # fmt: skip

    def windows(self) -> Windows:
        """As torch sees its operands."""
        ins, outs = (
            [OperandWindow(shape, strides, field, i) for i, (shape, strides, _) in enumerate(side)]
            for field, side in (("ins", self.ins), ("outs", self.outs))
        )
        return [*ins], [*outs]

    def with_strides(self, window: OperandWindow, strides: tuple[int, ...]) -> TorchCall:
        """A window holds its strides between its shape and its type."""
        assert window.place is not None
        side = list(self.ins if window.field == "ins" else self.outs)
        side[window.place] = (window.shape, strides, side[window.place][2])
        return replace(self, ins=tuple(side)) if window.field == "ins" else replace(self, outs=tuple(side))

    def describe(self) -> str:
        """The operator's name."""
        return f"torch {self.name}"

    def call(self, ins: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> None:
        """Run it: read ``ins``, write ``outs``.

        Raises:
            FallbackFailed: torch raised, or its results have other shapes than when the network was captured.
        """
        op = overload(self.name)
        if op is None:
            raise FallbackFailed(f"this torch has no operator {self.name}", hint="compile the model again")
        try:
            with torch.no_grad():
                result = op(*_unpack(self.args, ins), **{k: _unpack(v, ins) for k, v in self.kwargs})
        except (IndexError, ValueError):
            raise
        except Exception as e:
            raise FallbackFailed(f"{self.name} failed in torch: {e}") from e
        if self.name.startswith(_COLLECTIVES):
            result = pytree.tree_map_only(torch.Tensor, torch.ops._c10d_functional.wait_tensor, result)
        for t, o in zip(self._chosen(result), outs, strict=True):
            if t.shape != o.shape:
                raise FallbackFailed(f"{self.name} returned shape {tuple(t.shape)} instead of {tuple(o.shape)}")
            what = f"on device {t.device}" if t.device.type not in (o.device.type, "cpu") else otherwise_stored(t)
            if what is not None:
                raise FallbackFailed(f"{self.name} returned a tensor {what}")
            o.copy_(t)

    def _chosen(self, result: Any) -> list[torch.Tensor]:
        """The results that ``outs`` are."""
        every = list(result) if isinstance(result, tuple | list) else [result]
        places = self.places
        if places is None:
            places = tuple(i for i, t in enumerate(every) if isinstance(t, torch.Tensor))
        if len(places) != len(self.outs):
            raise FallbackFailed(f"{self.name} returned {len(places)} tensors instead of {len(self.outs)}")
        for i in places:
            if not 0 <= i < len(every) or not isinstance(every[i], torch.Tensor):
                raise FallbackFailed(f"{self.name} returned no tensor as result {i}, which is read")
        return [every[i] for i in places]


def window_tensor(buffer: Any, window: Window) -> torch.Tensor:
    """A NumPy buffer seen as a torch tensor of the window's shape, strides and type."""
    shape, strides, dtype = window
    t = torch.from_numpy(np.asarray(buffer))
    return torch.as_strided(t.view(FROM_NAME[dtype]), shape, strides)


def pack(value: Any, tensor: Callable[[Any], int | None]) -> Any:
    """An argument as plain data; ``tensor`` numbers the tensors among the values (None: not a tensor).

    Raises:
        TypeError: a value that has no plain form.
    """
    n = tensor(value)
    if n is not None:
        return ("t", n)
    if isinstance(value, tuple | list):
        return ("u" if isinstance(value, tuple) else "l", tuple(pack(v, tensor) for v in value))
    if value is None or isinstance(value, bool | int | float | str):
        return ("v", value)
    if isinstance(value, complex):
        return ("c", (value.real, value.imag))
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return ("a", str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return ("d", str(value))
    if isinstance(value, torch._ops.OpOverload):
        return ("o", str(value))
    if isinstance(value, torch._ops.HigherOrderOperator):
        return ("o", f"{HIGHER_ORDER}.{value.name()}")
    if isinstance(value, Subgraph):
        return ("g", value.token)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return ("m", tuple((key, pack(v, tensor)) for key, v in value.items()))
    raise TypeError(f"an argument of type {type(value).__name__}")


def _unpack(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        tag, v = value
        if tag == "t":
            return tensors[v]
        if tag in ("l", "u"):
            return (list if tag == "l" else tuple)(_unpack(x, tensors) for x in v)
        if tag == "a":
            return getattr(torch, v)
        if tag == "c":
            return complex(*v)
        if tag == "m":
            return {key: _unpack(x, tensors) for key, x in v}
        if tag == "g":
            return graph_of(v)
        if tag == "o":
            return overload(v)
        return torch.device(v) if tag == "d" else v
    return tuple(_unpack(v, tensors) for v in value)


def calls_graphs(spec: TorchCall) -> bool:
    """Whether an operator calls graphs, which belong to this process."""
    return spec.name.partition(".")[0] == HIGHER_ORDER
