"""A block of memory that several values use one after the other."""

from __future__ import annotations

from dcir.ir.memory_plan import aligned
from dcir.transforms.tier4_movement.memory.lifetimes import Lifetime


class SharedBlock:
    """Memory that is used by one after the other.

    Attributes:
        result: the one that lies at its beginning and keeps it after the call.
        places, aliases: byte offsets of inputs and the result, and of transients.
        size: bytes.
    """

    def __init__(self, alignment: int, result: Lifetime | None = None) -> None:
        self.alignment, self.result = alignment, result
        self.places: dict[str, int] = {}
        self.aliases: dict[str, int] = {}
        self.size = 0
        self._taken: list[tuple[Lifetime, int]] = []
        if result is not None:
            self._put(result, 0, self.places)

    @property
    def shared(self) -> bool:
        """Whether one follows another here."""
        return bool(self.aliases) or (self.result is not None and len(self.places) > 1)

    def place(self, t: Lifetime, most: int | None) -> bool:
        """Give a place to a donated input, in at most so many bytes; says whether there was one."""
        at = self._gap(t, most)
        if at is None:
            return False
        self._put(t, at, self.places)
        return True

    def alias(self, t: Lifetime) -> bool:
        """Give a place to a transient; says whether there was one."""
        at = self._gap(t, self.size)
        if at is None or self._below(at) is None:
            return False
        self._put(t, at, self.aliases)
        return True

    def target(self, name: str) -> str:
        """Who has the slot of the pointer table from which a transient is reached."""
        found = self._below(self.aliases[name])
        assert found is not None
        return found

    def _below(self, at: int) -> str | None:
        """Whoever lies nearest below."""
        below = [(place, o.name) for o, place in self._taken if o.name in self.places and place <= at]
        return max(below)[1] if below else None

    def _gap(self, t: Lifetime, most: int | None) -> int | None:
        """The lowest free place."""
        met = sorted((at, at + o.nbytes) for o, at in self._taken if o.first <= t.last and o.last >= t.first)
        at = 0
        for low, high in met:
            if low - at >= t.nbytes:
                break
            at = max(at, aligned(high, self.alignment))
        return at if most is None or at + t.nbytes <= most else None

    def _put(self, t: Lifetime, at: int, table: dict[str, int]) -> None:
        table[t.name] = at
        self._taken.append((t, at))
        self.size = max(self.size, at + t.nbytes)
