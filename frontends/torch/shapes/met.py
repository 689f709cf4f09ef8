"""What the calls of a graph so far show of its sizes: which moved, and which were equal in all of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from dcir.ops.analysis.size_axes import MOST_AXES


class Met:
    """What is known of sizes from the calls so far.

    Attributes:
        moved: those that were not the same in all of them.
    """

    def __init__(self) -> None:
        self.moved: set[str] = set()
        self._last: dict[str, int] = {}
        self._kinds: dict[str, int] = {}

    def note(self, values: Mapping[str, int]) -> None:
        """There is a call with these values of all symbols."""
        self.moved.update(n for n, v in values.items() if self._last.get(n, v) != v)
        self._last = dict(values)
        kinds: dict[tuple[int, int], int] = {}
        self._kinds = {n: kinds.setdefault((self._kinds.get(n, 0), v), len(kinds)) for n, v in values.items()}

    def equal(self, values: Mapping[str, int]) -> dict[str, str]:
        """Of each size of a call the first one that it is taken for equal to, where there are too many to move by themselves.

        Dynamo has a symbol for the cache of each layer, though all are of one length. They are equal if they were in all calls, or, where
        that leaves too many, in this one.
        """
        if len(values) <= MOST_AXES:
            return {name: name for name in values}
        # Another thread's call may have been the last one: what is taken for equal is equal in this one.
        by_kind, by_value = _heads({n: (self._kinds[n], v) for n, v in values.items()}), _heads(values)
        return by_kind if len(set(by_kind.values())) <= MOST_AXES else by_value


def _heads(values: Mapping[str, Hashable]) -> dict[str, str]:
    """Of each name the first one that has the same value."""
    heads: dict[Hashable, str] = {}
    return {name: heads.setdefault(value, name) for name, value in values.items()}
