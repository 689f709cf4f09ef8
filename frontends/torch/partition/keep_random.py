"""Random numbers under activation checkpointing: kept for the backward, where eager mode sets the generator back and draws them again.

    y, mask = native_dropout(x, p)   to be computed again   -->   mask kept, a byte an element; y and what follows computed again

A compiled backward that draws would have to put the generator's state back and forth; what was drawn is the same numbers.
"""

from __future__ import annotations

from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from dcir.frontends.torch.partition.expose_dropout import expose_dropout
from dcir.frontends.torch.partition.joint_graph import is_random, keep


def keep_random(joint: fx.GraphModule) -> int:
    """Have what random operators draw kept where it was to be drawn again; returns how many of them."""
    if not _drawn_again(joint):
        return 0
    expose_dropout(joint)
    found = _drawn_again(joint)
    for node in found:
        keep(node)
    return len(found)


def _drawn_again(joint: fx.GraphModule) -> list[fx.Node]:
    settled = (None, CheckpointPolicy.MUST_SAVE)
    return [n for n in joint.graph.nodes if is_random(n) and n.meta.get("recompute") not in settled]
