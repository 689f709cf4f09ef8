"""Counts the distinct bytes that operators touch when their references run: what the memlets' volumes are held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dcir.driver.verify.locate import flat_buffer
from dcir.errors import DcirError
from dcir.frontends.torch.importer import Imported
from dcir.ir.dace.nodes import Op
from dcir.ir.interpret import interpret
from dcir.ir.network import Network
from dcir.ir.run_nest import Array
from dcir.ir.types import itemsize, to_numpy
from dcir.ir.verify_memlets import counting_takes, touched_by_running

# What NumPy runs in about a second.
_MOST_POINTS = 1 << 23
_MOST_OPERATIONS = 1 << 28
_MOST_ELEMENTS = 1 << 26


def counted(
    done: Imported, numbers: Sequence[int], args: Sequence[Any], known: dict[Any, int | None] | None = None
) -> list[int | None]:
    """Distinct bytes that each of some operators reads, plus those that it writes.

    What several operands read counts once; ``Network.moved_by`` knows that of operands that read the same elements.

    Args:
        done: a graph.
        numbers: of its operators.
        args: of a call; looked at where addresses depend on data, and left as they are.
        known: what was found for operators of other graphs, by the caller; it is added to.

    Returns:
        Bytes; None of what has no loop nests (calls into torch, sorts, loops), of what takes long to count, and of what
        depends on data in a network that takes long to run by its references.
    """
    net = done.network
    ops = net.ops()
    takes = [counting_takes(ops[n].spec) for n in numbers]
    possible = [
        None if t is None or t.points > _MOST_POINTS or _elements(net, ops[n]) > _MOST_ELEMENTS else t
        for n, t in zip(numbers, takes, strict=True)
    ]
    wanted = {o.data for n, t in zip(numbers, possible, strict=True) if t and t.of_data for o in net.ins(ops[n])}
    values = _values(done, args, wanted) if wanted else {}
    store = _Store(net, values or {})
    known = {} if known is None else known
    found: list[int | None] = []
    for number, t in zip(numbers, possible, strict=True):
        op = ops[number]
        if t is None or (t.of_data and values is None):
            found.append(None)
        elif t.of_data:
            found.append(_bytes(net, op, store))
        else:
            key = op.spec, *_places(net, op)
            if key not in known:
                known[key] = _bytes(net, op, store)
            found.append(known[key])
    return found


class _Store(dict[str, Array]):
    """The values that are known; of other containers zeros, whose pages nobody asks the system for."""

    def __init__(self, net: Network, values: dict[str, Array]) -> None:
        super().__init__(values)
        self.net = net

    def __missing__(self, name: str) -> Array:
        c = self.net.containers[name]
        self[name] = np.zeros(c.size, to_numpy(c.dtype))
        return self[name]


def _values(done: Imported, args: Sequence[Any], wanted: set[str]) -> dict[str, Array] | None:
    """What containers hold in a call; None where finding it takes long, or torch does not do it again."""
    net = done.network
    if sum(op.spec.operations() for op in net.ops()) > _MOST_OPERATIONS:
        return None
    if sum(c.size for c in net.containers.values()) > _MOST_ELEMENTS:
        return None
    buffers = {n: flat_buffer(t) for n, t in zip(net.inputs, args, strict=True) if n}
    buffers |= {n: flat_buffer(t) for n, t in done.constants.items()}
    try:
        with torch.random.fork_rng(devices=[]):  # random operators draw what the call is to draw
            return interpret(net, buffers, keep=wanted)
    except DcirError:
        return None


def _elements(net: Network, op: Op) -> int:
    """Of the containers that an operator reads and writes, each of which is marked element by element."""
    return sum(net.containers[o.data].size for o in (*net.ins(op), *net.outs(op)))


def _places(net: Network, op: Op) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
    """Operands with numbers in place of names: equal operators touch as much where the same of them share containers."""
    numbers: dict[str, int] = {}
    # The element where an operand begins matters where another begins in the same container.
    rows = [
        tuple((str(numbers.setdefault(o.data, len(numbers))), o.offset) for o in operands)
        for operands in (net.ins(op), net.outs(op))
    ]
    return rows[0], rows[1]


def _bytes(net: Network, op: Op, store: _Store) -> int | None:
    ins, outs = net.ins(op), net.outs(op)
    for o in (*ins, *outs):
        store[o.data]  # asks for zeros where nothing is known
    marks = touched_by_running(op.spec, ins, outs, store)
    if marks is None:
        return None
    total = 0
    for operands, of_operands in zip((ins, outs), marks, strict=True):
        together: dict[str, Array] = {}
        for o, mark in zip(operands, of_operands, strict=True):
            together[o.data] = together[o.data] | mark if o.data in together else mark
        total += sum(int(np.count_nonzero(m)) * itemsize(net.containers[n].dtype) for n, m in together.items())
    return total
