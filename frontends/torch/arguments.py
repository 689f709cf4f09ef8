"""Arguments as compiled code reads them: PyTorch's lazy conjugates and negatives written out, its subclasses without their class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)


def lazy_places(graph: fx.GraphModule) -> tuple[int, ...]:
    """Arguments of an ATen graph whose numbers may be another function of what is in memory.

    It is seen of tensors that are given when the graph is traced (and guarded); what gradients a backward gets is not known then.
    """
    places = []
    for i, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        if "tangents" in str(node.target) or value.is_conj() or value.is_neg():
            places.append(i)
    return tuple(places)


def write_out(args: list[Any], places: Sequence[int]) -> None:
    """Replace lazy conjugates and negatives among the arguments at ``places`` by what they stand for, in the same strides."""
    for i in places:
        if isinstance(args[i], torch.Tensor):
            args[i] = written_out(args[i])


def written_out(t: torch.Tensor) -> torch.Tensor:
    """A tensor whose memory holds its numbers: ``t``, or a copy in the same strides."""
    lazy = t.is_conj() or t.is_neg()
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) if lazy else t


def without_classes(call: Callable[..., Any], gm: fx.GraphModule) -> Callable[..., Any]:
    """``call``, given plain tensors for those of subclasses that Dynamo has traced through.

    AOTAutograd passes them on as they are, and what they override is none of its own operators' business.
    """
    places = []
    for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value: Any = getattr(node.meta.get("grapharg"), "example", None)
        taken_apart = is_traceable_wrapper_subclass(value)
        if isinstance(value, torch.Tensor) and type(value) not in _PLAIN and not taken_apart:
            places.append(i)
    if not places:
        return call

    def plain(*args: Any) -> Any:
        given = list(args)
        for i in places:
            if type(given[i]) not in _PLAIN:
                given[i] = given[i].as_subclass(torch.Tensor)
        return call(*given)

    return plain
