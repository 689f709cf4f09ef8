"""Sizes that come often get programs of their own, made behind the calls; the program for all sizes serves until then, and all others."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping

from dcir.runtime.program import Program

_LOG = logging.getLogger("dcir")
_OFTEN = 500
"""Calls after which a size is worth a compilation: what it gains is a few percent of a call, and it takes as long as hundreds of calls."""
_MOST = 4
"""Sizes of a graph that get one: each holds prepared weights of its own."""


class SizesThatComeOften:
    """Counts the calls of a program for all sizes.

    Attributes:
        made: the sizes that have programs of their own.

    Args:
        values: of all symbols of the graph, from those of a call.
        replace: has calls of some sizes run a program of their own.
        make: that program, from values of all symbols.
        later: has something done behind the calls.
        often, most: after how many calls, and for how many sizes.
    """

    def __init__(
        self,
        values: Callable[[tuple[int, ...]], Mapping[str, int]],
        replace: Callable[[tuple[int, ...], Program], None],
        make: Callable[[Mapping[str, int]], Program],
        later: Callable[[Callable[[], object]], None],
        *,
        often: int = _OFTEN,
        most: int = _MOST,
    ) -> None:
        self._values, self._replace, self._make, self._later = values, replace, make, later
        self._often, self._most = often, most
        self._calls: Counter[tuple[int, ...]] = Counter()
        self._asked: set[tuple[int, ...]] = set()
        self._lock = threading.Lock()
        self.made: list[tuple[int, ...]] = []

    def called(self, key: tuple[int, ...]) -> None:
        """There is a call of these sizes."""
        self._calls[key] += 1
        if self._calls[key] < self._often or key in self._asked or len(self._asked) >= self._most:
            return
        with self._lock:
            if key in self._asked or len(self._asked) >= self._most:
                return
            self._asked.add(key)
        self._later(lambda: self._made(key))

    def _made(self, key: tuple[int, ...]) -> None:
        try:
            program = self._make(self._values(key))
        except Exception as error:  # what serves these sizes goes on
            _LOG.warning("no program of their own for sizes that come often: %s", error)
            return
        self._replace(key, program)
        self.made.append(key)
