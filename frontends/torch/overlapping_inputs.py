"""Calls that a program would be wrong for by where inputs lie in memory, which run in torch.

Inputs that share memory, where a graph writes any:

    def f(x, y): x.mul_(2); y.add_(1)      f(t[:-1], t[1:]) after f(x, y)

AOTAutograd looks at the first call alone, and asks for no guard: a later one whose inputs overlap otherwise got wrong numbers, or the
memory behind an input was written.

Inputs that do not begin where their storage does, where a graph counts from there: programs know tensors alone, and no guard
asks for an offset.

    def f(x): return x.as_strided((2,), (1,), 3)      f(t[1:]) reads t[3], which is x[2]
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
    """Whether inputs of one graph of Dynamo's lie in each other, or where in their storage, if that makes a difference.

    Args:
        gm: Dynamo's graph.
        on_plain: hears of the first call that is left to torch, and may refuse that.

    Attributes:
        matter: whether the graph writes inputs; known once it is traced.
        placed: positions of inputs that the graph knows by places in their storage.
    """

    def __init__(self, gm: fx.GraphModule, on_plain: Callable[..., object] | None) -> None:
        arguments = [node.meta.get("grapharg") for node in gm.graph.find_nodes(op="placeholder")]
        self._on_plain = on_plain
        examples = [getattr(a, "example", None) for a in arguments]
        self._first = overlap(examples)
        self.matter = self._first and _may_write(gm)
        self.placed = _placed(gm)
        self._first_elsewhere = self._elsewhere(examples)

    @property
    def traced(self) -> bool:
        """Whether those that Dynamo traces the graph for do."""
        return (self._first and self.matter) or self._first_elsewhere

    def of(self, args: Sequence[Any]) -> bool:
        """Whether those of a call do, which then is to run in torch."""
        why: tuple[str, ...] = ()
        if self.matter and overlap(args):
            why = ("inputs that share memory, of which some are written",)
        elif self.placed and (self._first_elsewhere or self._elsewhere(args)):
            why = (
                "as_strided with a storage_offset, of inputs that begin elsewhere in their storage",
                "a clone of the input",
            )
        if why and self._on_plain is not None:
            self._on_plain(*why)
            self._on_plain = None
        return bool(why)

    def _elsewhere(self, args: Sequence[Any]) -> bool:
        tensors = (args[i] for i in self.placed)
        return any(_has_memory(t) and t.storage_offset() != 0 for t in tensors)

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
        if not self.matter and not self.placed:
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


def _placed(gm: fx.GraphModule) -> tuple[int, ...]:
    """Positions of the inputs of a graph whose storage is counted in from its beginning, as far as can be told."""
    graphs = [m for m in gm.modules() if isinstance(m, fx.GraphModule)]
    found = {n for m in graphs for n in m.graph.nodes if _counts_in_storage(n)}
    if not found:
        return ()
    known = {_storage(n.all_input_nodes[0]) if n.graph is gm.graph else None for n in found}
    places = enumerate(gm.graph.find_nodes(op="placeholder"))
    return tuple(i for i, place in places if None in known or _storage(place) in known)


def _counts_in_storage(node: fx.Node) -> bool:
    """Whether a node is ``as_strided``, or one of its kind, with an offset of its own."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op not in ("call_method", "call_function") or not name.startswith("as_strided"):
        return False
    at = 4 if "scatter" in name else 3
    given = node.args[at] if len(node.args) > at else node.kwargs.get("storage_offset")
    return given is not None


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
            spans.append((at, at + (a.nbytes if a.is_contiguous() else reach(a))))
    spans.sort()
    return any(begin < end for (_, end), (begin, _) in itertools.pairwise(spans))


def _has_memory(a: Any) -> bool:
    """Whether an argument is a tensor of elements with addresses; those of the device "meta" have null."""
    plain = type(a) in _PLAIN or (isinstance(a, torch.Tensor) and not is_traceable_wrapper_subclass(a))
    return plain and a.layout is torch.strided and not a.is_nested and not isinstance(a, FakeTensor)


def reach(t: torch.Tensor) -> int:
    """Bytes from the first to behind the last element of a tensor."""
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return int((last + 1) * t.itemsize)
