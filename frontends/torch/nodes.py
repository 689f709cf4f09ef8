"""What an ATen graph's nodes say of themselves: their place in the user's model, and the shape, strides and type of their values."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import fx

from dcir.errors import Unsupported
from dcir.ops.lowering import Meta
from dcir.ops.reach import elsewhere, of_unknown_type, otherwise_stored
from dcir.ops.torch_types import TORCH_TYPES
from dcir.user_code import is_users


def describe(node: fx.Node) -> str:
    """Place of a node in the user's model: module path and source line where known."""
    stack = node.meta.get("nn_module_stack")
    path = ""
    if stack:
        path = str(list(stack.values())[-1][0])
        path = re.sub(r"L\['(\w+)'\]", r"\1", path).replace("._modules[", ".").replace("['", "").replace("']", "")
        path = re.sub(r"^(self|fn\.__self__)\b", "model", path)
    trace = node.meta.get("stack_trace") or ""
    frames = re.findall(r'File "([^"]+)", line (\d+)', trace)
    users = [frame for frame in frames if is_users(frame[0])] or frames
    line = f"{users[-1][0].rsplit('/', 1)[-1]}:{users[-1][1]}" if users else ""
    return " ".join(p for p in (path, f"({line})" if line else "") if p)


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
