"""What the nodes of a joint graph are: views, pointwise operators, their tensors; and the inputs that the forward writes to."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch.utils.checkpoint import CheckpointPolicy

aten = torch.ops.aten

# Pointwise operators that torch does not tag as such.
UNTAGGED = {
    aten.hardtanh_backward, aten.hardswish_backward, aten.hardsigmoid_backward, aten.leaky_relu_backward,
    aten.softplus_backward, aten.elu_backward, aten.mish_backward, aten._to_copy, aten.hardswish, aten.hardsigmoid,
}  # fmt: skip


def packet(node: fx.Node) -> Any:
    """The operator of a node, whatever its overload; None for what is no operator of torch."""
    return getattr(node.target, "overloadpacket", None)


def tensors(node: fx.Node) -> list[torch.Tensor]:
    """Results of a node that are tensors."""
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return [v for v in values if isinstance(v, torch.Tensor)]


def nbytes(node: fx.Node) -> int:
    """Bytes of a node's tensors; symbolic sizes count as what they are in the call that is traced."""
    return sum(math.prod(map(_hinted, v.shape)) * v.element_size() for v in tensors(node))


def _hinted(size: int | torch.SymInt) -> int:
    if isinstance(size, int):
        return size
    hint = size.node.hint  # without a guard, which ``int`` would leave
    return 0 if hint is None else int(hint)


def is_view(node: fx.Node) -> bool:
    """Whether a node shows its argument's memory; a number, which derivatives ask for the conjugate of, has none."""
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target.is_view) and bool(node.all_input_nodes)


def base(node: fx.Node) -> fx.Node:
    """What a node is a view of."""
    while node.op == "call_function" and is_view(node):
        node = node.all_input_nodes[0]
    return node


def is_random(node: fx.Node) -> bool:
    """Whether a second run would give other numbers."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def is_pointwise(node: fx.Node) -> bool:
    """Whether each element of a node's result follows from elements of its arguments, always in the same way."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable or is_random(node):
        return False
    return torch.Tag.pointwise in op.tags or op.overloadpacket in UNTAGGED


def written_to(joint: fx.Graph) -> list[fx.Node]:
    """Inputs whose contents the caller replaces once the forward has run: the backward finds other contents in them."""
    (output,) = joint.find_nodes(op="output")
    written = [d.mutated_input for d in output.meta.get("desc", ()) if isinstance(d, InputMutationAOTOutput)]
    return [n for n in joint.find_nodes(op="placeholder") if n.meta.get("desc") in written]


def keep_what_reads_written(joint: fx.Graph) -> None:
    """Have the partition store, or leave in the forward, what is computed from inputs that the forward writes to.

    PyTorch's minimum cut takes every input for something that the backward can read at no cost, and computes again from it what
    was computed from its old contents; autograd then refuses the saved input, whose version has changed.
    """
    pending = written_to(joint)
    while pending:
        for reader in pending.pop().users:
            if is_view(reader):
                pending.append(reader)
            elif reader.op == "call_function":
                keep(reader)


def keep(node: fx.Node) -> None:
    """Have the partition store what a node gives: a node of several results is not stored itself, they are."""
    for part in (node, *(u for u in node.users if u.target is operator.getitem)):
        part.meta["recompute"] = CheckpointPolicy.MUST_SAVE
