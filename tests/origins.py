"""What a rewrite must keep of where operators came from, by edges alone: an operator does all that lay between its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dcir.ir.network import Network, sources
from dcir.transforms.runner import carried


class Row(NamedTuple):
    """An operator as it was: its label, what it read and wrote, and what it came from."""

    label: str
    ins: frozenset[str]
    outs: frozenset[str]
    came_from: frozenset[int]


class Before:
    """A network as it was before a rewrite."""

    def __init__(self, net: Network) -> None:
        self.carried, self.imported = carried(net), len(net.origins.places)
        self.containers = set(net.containers)
        self.rows = [Row(op.label, _data(net.ins(op)), _data(net.outs(op)), frozenset(sources(op))) for op in net.ops()]
        self.writers: dict[str, list[Row]] = {}
        for row in self.rows:
            for name in row.outs:
                self.writers.setdefault(name, []).append(row)

    def between(self, ins: frozenset[str], outs: frozenset[str]) -> list[Row] | None:
        """The operators that computed ``outs`` from ``ins``; None where these alone do not tell."""
        found: dict[str, Row] = {}
        left = list(outs)
        while left:
            writers = self.writers.get(left.pop(), [])
            if len(writers) != 1:  # it was given, or has several parts
                return None
            (row,) = writers
            if row.label not in found:
                found[row.label] = row
                left += row.ins - ins
        return list(found.values())

    def check(self, net: Network, *, slices: bool = True) -> int:
        """Hold a network against what it was; of how many operators the edges told what they came from.

        Args:
            net: after the rewrite.
            slices: whether every operator does all that lay between its operands. Who reads an equal value elsewhere, does not.
        """
        lost = self.carried - carried(net) - net.origins.gone
        assert not lost, f"lost: {[net.origins.places[n].label for n in lost]}"
        assert len(net.origins.places) == self.imported, "operators that came from none"
        told = 0
        for op in net.ops() if slices else ():
            ins, outs = _data(net.ins(op)), _data(net.outs(op)) & self.containers
            rows = self.between(ins, outs) if outs and ins <= self.containers else None
            if rows is not None:
                told += 1
                missing = frozenset[int]().union(*(row.came_from for row in rows)) - set(sources(op))
                assert not missing, f"{op.label} lacks {[net.origins.places[n].label for n in missing]}"
        return told


def _data(operands: Sequence[tuple[str, int]]) -> frozenset[str]:
    return frozenset(data for data, _ in operands)


def lines_of(traces: Mapping[str, str] | Sequence[str]) -> set[tuple[str, int]]:
    """File and number of every line in stacks as Python prints them."""
    found = set()
    for trace in traces.values() if isinstance(traces, Mapping) else traces:
        for text in trace.splitlines():
            words = text.strip()
            if words.startswith('File "'):
                file, _, rest = words.removeprefix('File "').partition('", line ')
                found.add((file, int(rest.split(",")[0])))
    return found
