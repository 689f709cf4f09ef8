"""Why something is not done: what stands in a result's place where there is none, or where None says that all is well."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rewrite (a match, a plan) that was possible by pattern and is not made.

    It is true like any object, so that ``check(a) or check(b)`` is the first refusal of two checks that answer ``Refusal | None``.
    What answers a result or a refusal is asked with ``isinstance``: a result may be empty or 0, which a false refusal would hide.

    Attributes:
        reason: one line in the user's words, the same for equal reasons: reports count them.
    """

    reason: str

    def __str__(self) -> str:
        return self.reason


SWITCHED_OFF = Refusal("switched off by the user")
"""Of a rewrite that may be made and pays, at a place that the user does not want it at (``Network.allows``)."""
