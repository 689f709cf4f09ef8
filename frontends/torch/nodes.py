"""What an ATen graph's nodes say of themselves: their place in the user's model, and the shape, strides and type of their values."""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
from torch import fx

from dcir.errors import Unsupported
from dcir.ir.origins import ANNOTATION, Frame, Place, frames_of, innermost, noted
from dcir.ops.lowering import Meta
from dcir.ops.reach import elsewhere, of_unknown_type, otherwise_stored
from dcir.ops.torch_types import TORCH_TYPES


def describe(node: fx.Node) -> str:
    """Place of a node in the user's model: module path and source line where known, or the node of a file.

    A derivative's is that of what it is the derivative of.
    """
    if (note := _note(node)) is not None:
        return note[0]
    path = _module(node)
    if path:
        path = re.sub(r"L\['(\w+)'\]", r"\1", path).replace("._modules[", ".").replace("['", "").replace("']", "")
        path = re.sub(r"^(self|fn\.__self__)\b", "model", path)
    line = _line(node.meta.get("stack_trace") or "")
    return " ".join(p for p in (path, f"({line})" if line else "") if p)


def _note(node: fx.Node) -> tuple[str, str, tuple[Frame, ...]] | None:
    """What a frontend has said of the place; AOTAutograd hands it on to derivatives."""
    note = (node.meta.get("custom") or {}).get(ANNOTATION)
    return noted(note) if isinstance(note, str) else None


@functools.lru_cache(maxsize=4096)
def _line(trace: str) -> str:
    """The innermost line of the user's code in a stack, file without folders."""
    at = innermost(frames_of(trace))
    return f"{at.file.rsplit('/', 1)[-1]}:{at.line}" if at is not None else ""


def origin_of(node: fx.Node, prefix: str = "") -> Place:
    """A node as an imported operator: a derivative has the place of what it is the derivative of, as far as PyTorch tells it.

    Args:
        node: the node.
        prefix: what its label begins with.
    """
    if (note := _note(node)) is not None:
        title, module, frames = note
        return Place(prefix + node.name, str(node.target), module, frames, title)
    module = _module_path(_module(node))
    return Place(prefix + node.name, str(node.target), module, frames_of(node.meta.get("stack_trace") or ""))


def _module(node: fx.Node) -> str:
    """The expression by which PyTorch reached the module of a node, or of what it is the derivative of; "" outside of modules."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    return str(list(stack.values())[-1][0]) if stack else ""


@functools.lru_cache(maxsize=4096)
def _module_path(text: str) -> str:
    """A module's path as ``named_modules`` has it, of the expression that TorchDynamo or an exported program reaches it by."""
    path = re.sub(r"^(L\['\w+'\]|L__\w+?__|self\b)(\.__self__\b)?", "", text)
    path = re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", path.replace("._modules", ""))
    return path.lstrip(".")


def meta_of(value: Any, node: fx.Node | None = None) -> Meta | None:
    """Shape, strides and type of a fake tensor (None for anything else).

    Raises:
        Unsupported: it is no tensor that compiled code can read; ``node`` is the place to name.
    """
    if not isinstance(value, torch.Tensor):
        return None
    what = elsewhere(value) or otherwise_stored(value) or of_unknown_type(value)
    if what is not None:
        raise Unsupported(
            f"a tensor {what} cannot be in a compiled graph", where=place_of(node), hint="compiled code reads strided tensors on the CPU"
        )  # fmt: skip
    return Meta(tuple(int(d) for d in value.shape), tuple(int(s) for s in value.stride()), TORCH_TYPES[value.dtype])


def place_of(node: fx.Node | None) -> str | None:
    if node is None:
        return None
    what = f"input {node.target}" if node.op == "placeholder" else str(node.target)
    return " ".join(filter(None, (what, describe(node))))
