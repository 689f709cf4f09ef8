"""Runs a network with the references of its operators, one after the other, to check what everything else makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dcir.ir.network import Network
from dcir.ir.types import to_numpy

Array = np.ndarray[Any, np.dtype[Any]]


def interpret(
    net: Network,
    buffers: Mapping[str, Array],
    keep: Iterable[str] | None = None,
) -> dict[str, Array]:
    """Run ``net``.

    Args:
        net: the network.
        buffers: for every input and constant container, its elements from the first to the last, 1-D, storage type.
        keep: containers to return; the others' memory is given back after their last use. None: all of them.

    Returns:
        The containers' elements, 1-D, by name.

    Raises:
        IndexOutOfRange: a data-dependent index leaves its tensor.
    """
    kept = set(net.containers if keep is None else keep)
    store: dict[str, Array] = {}

    def elements(name: str) -> Array:
        if name not in store:
            c, old = net.containers[name], buffers.get(net.updates.get(name, ""))
            new = np.zeros(c.size, to_numpy(c.dtype)) if old is None else old.copy()
            store[name] = buffers.get(name, new)
        return store[name]

    operands = [(op, net.ins(op), net.outs(op)) for op in net.ops()]
    last = {o.data: i for i, (_, ins, outs) in enumerate(operands) for o in (*ins, *outs)}
    with np.errstate(all="ignore"):
        for i, (op, ins, outs) in enumerate(operands):
            a, b = [elements(o.data) for o in ins], [elements(o.data) for o in outs]
            op.spec.reference_at(a, b, [o.offset for o in ins], [o.offset for o in outs])
            for o in (*ins, *outs):
                if last[o.data] == i and o.data not in kept:
                    store.pop(o.data, None)
    return {name: elements(name) for name in net.containers if name in kept}
