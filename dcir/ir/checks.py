"""Indices are looked at before inputs are overwritten: an operator that may fail comes before the writers of updates.

    p' = p - lr * g, in place of p;  y = table[i]      -->   y = table[i];  p' = …          a bad i leaves p as it was

Eager PyTorch fails before anything after the failing operator has run. So writers of updates wait for the operators that check indices
(``Operator.index_checks``), except

- those whose indices another operator looks at anyway (a backward scatters to where the forward gathered): they would keep all
  gradients alive until the last of them;
- those that need what some writer writes. A writer that another check waits for (running statistics of a forward) waits for the checks that
  come before any such writer, so that there always is an order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network
from dcir.ir.operator import IndexCheck

Followers = Mapping[Op, Sequence[Op]]
"""Of each operator those that come after it."""


def waits(net: Network, followers: Followers) -> list[tuple[Op, list[Op]]]:
    """Operators that check indices, each with the writers of updates that wait for it.

    Args:
        net: the network.
        followers: what else asks for an order.
    """
    ops = net.ops()
    written = {w for data in net.updates for w in net.writers(data)}
    checking = [op for op in ops if op.spec.index_checks()] if written else []
    if not checking:
        return []
    before: dict[Op, list[Op]] = {op: [] for op in ops}
    for op, then in followers.items():
        for f in then:
            before[f].append(op)
    needed_by_checks = _reached(before, checking)
    late = _reached(followers, [w for w in ops if w in written and w in needed_by_checks])
    found = []
    for op in _looking_first(net, checking, written, late):
        writers = [w for w in ops if w in written and (w not in needed_by_checks or op not in late | written)]
        if op in written:
            writers = [w for w in writers if not w.spec.index_checks()]
        found.append((op, writers))
    return found


def half_done(net: Network, followers: Followers) -> list[str]:
    """Updates whose only writer looks at indices as it writes, which nobody has looked at before; these are to be made elsewhere.

    A writer of a part of an input (a scatter, a window of a cache) stays: torch's writes what it has looked at, too.
    """
    looking = {op for op, _ in waits(net, followers)}
    found = []
    for data in net.updates:
        for w in net.writers(data):
            sizes = zip(net.outs(w), w.spec.footprint()[1], strict=True) if w in looking else ()
            if not w.spec.updates_first_input and any(
                o.data == data and n >= net.containers[data].nbytes for o, n in sizes
            ):
                found.append(data)
    return found


def _looking_first(net: Network, checking: Sequence[Op], written: set[Op], late: set[Op]) -> list[Op]:
    """Those whose indices no other one looks at before; writers come last."""
    seen: set[Any] = set()
    found = []
    for op in sorted(checking, key=lambda op: op in written):
        keys = {_key(net, op, c): c.always for c in op.spec.index_checks() if not _same_in_all_calls(net, op, c)}
        if keys.keys() <= seen:
            continue
        if op not in late:
            seen.update(key for key, always in keys.items() if always)
        found.append(op)
    return found


def _key(net: Network, op: Op, check: IndexCheck) -> Any:
    if not check.known:
        return op, check
    operand = net.ins(op)[check.operand]
    return operand.data, operand.offset, check.walk, check.extent


def _same_in_all_calls(net: Network, op: Op, check: IndexCheck) -> bool:
    """Whether indices are made of nothing (positions of words), so that a forward that gathers by them has made them for itself."""
    writers = net.writers(net.ins(op)[check.operand].data) if check.known else []
    return bool(writers) and not any(net.ins(w) for w in writers)


def _reached(edges: Followers, start: Iterable[Op]) -> set[Op]:
    """The operators that edges lead to from some others."""
    found: set[Op] = set()
    left = list(start)
    while left:
        for op in edges[left.pop()]:
            if op not in found:
                found.add(op)
                left.append(op)
    return found
