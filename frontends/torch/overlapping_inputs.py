"""Inputs that share memory, where a graph writes any: such calls run in torch.

    def f(x, y): x.mul_(2); y.add_(1)      f(t[:-1], t[1:]) after f(x, y)

AOTAutograd looks at the first call alone, and asks for no guard: a later one whose inputs overlap otherwise got wrong numbers, or the
memory behind an input was written.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.convert_frame import compile_lock
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dcir.frontends.torch.tape import choosing

_IN_PLACE = {getattr(operator, name) for name in dir(operator) if name[0] == "i" and f"__{name[1:]}__" in dir(operator)}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_WRITING = {operator.setitem, *_IN_PLACE}


class Overlaps:
    """Whether inputs of one graph of Dynamo's lie in each other, where that makes a difference.

    Args:
        gm: Dynamo's graph.
        on_plain: hears of the first call that is left to torch, and may refuse that.

    Attributes:
        matter: whether the graph writes inputs; known once it is traced.
    """

    def __init__(self, gm: fx.GraphModule, on_plain: Callable[[str], object] | None) -> None:
        arguments = [node.meta.get("grapharg") for node in gm.graph.find_nodes(op="placeholder")]
        self._on_plain = on_plain
        self._first = overlap([getattr(a, "example", None) for a in arguments])
        self.matter = self._first and _may_write(gm)

    @property
    def traced(self) -> bool:
        """Whether those that Dynamo traces the graph for do."""
        return self._first and self.matter

    def of(self, args: Sequence[Any]) -> bool:
        """Whether those of a call do, which then is to run in torch."""
        found = self.matter and overlap(args)
        if found and self._on_plain is not None:
            self._on_plain("inputs that share memory, of which some are written")
            self._on_plain = None
        return found

    def chosen(
        self, gm: fx.GraphModule, trace: Callable[[Sequence[Any]], Callable[..., Any]], examples: Sequence[Any]
    ) -> Callable[..., Any]:
        """What runs a graph of constant sizes.

        Args:
            gm: Dynamo's graph.
            trace: makes its program for arguments.
            examples: those that it is traced for.
        """
        made = [] if self.traced else [trace(examples)]
        if not self.matter:
            return made[0]
        if self.traced:
            made.clear()

        def call(*args: Any) -> Any:
            if self.of(args):
                return gm(*args)
            if not made:
                with compile_lock:
                    if not made:
                        made.append(trace(args))
            return made[0](*args)

        return choosing(call)


def _may_write(gm: fx.GraphModule) -> bool:
    """Whether a graph looks as if it wrote to an input."""
    inputs = {_storage(node) for node in gm.graph.find_nodes(op="placeholder")} - {None}
    for node in gm.graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        writes = node.op in ("call_method", "call_function") and (name.endswith("_") or node.target in _WRITING)
        schema = getattr(node.target, "_schema", None)
        if (
            writes
            or node.kwargs.get("inplace")
            or node.kwargs.get("out") is not None
            or getattr(schema, "is_mutable", False)
        ):
            # What is written is among the operands; of one that is not known nothing can be said.
            touched = {_storage(n) for n in node.all_input_nodes}
            if None in touched or touched & inputs:
                return True
    return False


def _storage(node: fx.Node) -> int | None:
    """What tells the memory of a node's value from that of others: views have one memory. None if it is not known."""
    value = node.meta.get("example_value")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def overlap(args: Sequence[Any]) -> bool:
    """Whether some tensors among arguments reach over the same memory, be it that of one storage or of several.

    Arrays of NumPy that lie in each other become tensors with a storage each, so addresses are compared.
    """
    spans = []
    for a in args:
        if _has_memory(a) and (at := a.data_ptr()):
            spans.append((at, at + (a.nbytes if a.is_contiguous() else _reach(a))))
    spans.sort()
    return any(begin < end for (_, end), (begin, _) in itertools.pairwise(spans))


def _has_memory(a: Any) -> bool:
    """Whether an argument is a tensor of elements with addresses; those of the device "meta" have null."""
    plain = type(a) in _PLAIN or (isinstance(a, torch.Tensor) and not is_traceable_wrapper_subclass(a))
    return plain and a.layout is torch.strided and not a.is_nested and not isinstance(a, FakeTensor)


def _reach(t: torch.Tensor) -> int:
    """Bytes from the first to behind the last element of a tensor."""
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return int((last + 1) * t.itemsize)
