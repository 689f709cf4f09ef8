"""What a forward and its backward tell each other: how saved tensors lie, and which of them nobody reads afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext

from dcir.ir.memory_plan import BufferPart


def donated(metadata: Any, parts: Mapping[int, BufferPart]) -> dict[int, BufferPart]:
    """Arguments of a backward that nobody reads once it runs, with where the forward's call puts them.

    Args:
        metadata: AOTAutograd's, of the forward.
        parts: how the results of the forward share memory.
    """
    # AOTAutograd's own part in this would be to refuse a second backward through the same graph.
    found, metadata.bw_donated_idxs = metadata.bw_donated_idxs or [], []
    first = first_read(metadata)
    # Nobody reads a buffer that shows in such results alone.
    shared = {part.buffer for number, part in parts.items() if number - first not in found}
    owned = {i: parts[first + i] for i in found if first + i in parts}
    return {i: part for i, part in owned.items() if part.buffer not in shared}


def first_read(metadata: Any) -> int:
    """How much greater the number of a saved result of a forward is than that of the same argument of its backward."""
    saved = metadata.tensors_saved_for_backwards_slice.start
    return int(len(metadata.tokens) + saved - metadata.num_symints_saved_for_bw)


def lay_out(graph: fx.GraphModule, examples: Sequence[Any]) -> None:
    """Tell a backward graph how the tensors lie that it will get."""
    places = (n for n in graph.graph.nodes if n.op == "placeholder")
    for node, example in zip(places, examples, strict=True):
        if isinstance(example, torch.Tensor) and example.stride() != node.meta["val"].stride():
            node.meta["val"] = example


def report_strides(strides: Sequence[tuple[int, ...] | None]) -> None:
    """Tell AOTAutograd how the forward lays out what the backward will read."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None and any(s is not None for s in strides):
        tokens = len(context.fw_metadata.tokens) if context.fw_metadata is not None else 0
        context.output_strides.extend(strides[tokens:])  # those that order effects come before the results it counts
