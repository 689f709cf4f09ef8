"""Inputs that the forward writes to: the backward finds other contents in them than the forward read.

PyTorch's minimum cut takes every input for something that the backward can read at no cost, and computes again from it what was
computed from its old contents; autograd then refuses the saved input, whose version has changed.
"""

from __future__ import annotations

from torch import fx
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch.utils.checkpoint import CheckpointPolicy

from dcir.frontends.torch.partition_model import is_view


def written_to(joint: fx.Graph) -> list[fx.Node]:
    """Inputs whose contents the caller replaces once the forward has run."""
    (output,) = joint.find_nodes(op="output")
    written = [d.mutated_input for d in output.meta.get("desc", ()) if isinstance(d, InputMutationAOTOutput)]
    return [n for n in joint.find_nodes(op="placeholder") if n.meta.get("desc") in written]


def keep_what_reads_them(joint: fx.GraphModule) -> None:
    """Have the partition store, or leave in the forward, what is computed from such inputs."""
    pending = written_to(joint.graph)
    while pending:
        for reader in pending.pop().users:
            if is_view(reader):
                pending.append(reader)
            elif reader.op == "call_function":
                reader.meta["recompute"] = CheckpointPolicy.MUST_SAVE
