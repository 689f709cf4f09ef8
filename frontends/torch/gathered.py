"""Inputs of Dynamo's graphs that others write: parameters that ``fully_shard`` gathers for every call, and parts of tensors."""

from __future__ import annotations

from torch import fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def is_gathered(node: fx.Node) -> bool:
    """Whether an input is a parameter of a module that ``fully_shard`` manages: its memory is there for as long as a call takes."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    return source is not None and bool(source.guard_source.is_fsdp_module())


def is_written_uncounted(node: fx.Node) -> bool:
    """Whether nobody counts the writes to an input of Dynamo's graph.

    That is so of what is gathered, and of the parts of tensors that AOTAutograd takes apart: a write to one is counted in the whole.
    """
    example = getattr(node.meta.get("grapharg"), "example", None)
    return is_gathered(node) or is_traceable_wrapper_subclass(example)
