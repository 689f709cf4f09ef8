"""A call that runs part by part, so that results can be used before the others are complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class PartByPart:
    """A call under way.

    Args:
        parts: how many there are.
        run: runs one.
        results, ready: what the parts write, and with which part each is complete.
        args: what they read.
        release: called once nothing runs any more.
    """

    def __init__(
        self,
        parts: int,
        run: Callable[[int], None],
        results: Sequence[Any],
        ready: Sequence[int],
        args: list[Any],
        release: Callable[[], None],
    ) -> None:
        self._parts, self._run, self._args, self._release = parts, run, args, release
        # Results that nobody asked for are written, too. A complete one is let go of, so that whoever gets it may keep it without a copy.
        self._held = [[r for r, p in zip(results, ready, strict=True) if p == part] for part in range(parts)]
        self._next = 0
        self._error: BaseException | None = None

    @property
    def ended(self) -> bool:
        """Whether no part is left to run."""
        return self._next == self._parts or self._error is not None

    def advance(self, part: int) -> None:
        """Run what has not run of the parts up to ``part``.

        Raises:
            DcirError: as by a call; once a part has failed, by every later call of this.
        """
        if self._error is not None:
            raise self._error
        try:
            while self._next <= part and self._next < self._parts:
                self._run(self._next)
                self._held[self._next].clear()
                self._next += 1
        except BaseException as e:
            self._error = e
            raise
        finally:
            if self.ended:
                self._end()

    def finish(self) -> None:
        """Run all that has not run."""
        self.advance(self._parts - 1)

    def _end(self) -> None:
        release, self._release = self._release, _nothing
        self._args, self._held = [], []
        release()

    def __del__(self) -> None:
        # Whoever asked for some results alone never comes for the others.
        self._release()


def _nothing() -> None:
    pass
