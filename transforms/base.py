"""What a pass is, and what it answers: the graph is valid before and after; ``apply`` says honestly what it changed."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from dcir.ir.network import Network
from dcir.ir.refusal import Refusal


@dataclass
class PassResult:
    """What one run of a pass did.

    Attributes:
        changed: number of rewrites applied.
        refused: rewrites that were possible by pattern but not done, counted by reason.
        saved_bytes: bytes of traffic the rewrites save, as the pass claims (the runner measures it again).
    """

    changed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    saved_bytes: int = 0

    def refuse(self, why: Refusal | str) -> None:
        """Record a rewrite that was not done, by its refusal or the reason alone."""
        self.refused[why.reason if isinstance(why, Refusal) else why] += 1


@dataclass(frozen=True)
class Pass:
    """Base of all passes: a frozen dataclass whose fields are its options.

    ``tier`` is 0 (tidy) to 4. The name is the class name in kebab-case.
    """

    tier: ClassVar[int] = 0

    @property
    def name(self) -> str:
        """Kebab-case name, the same on the command line, in reports and in file names."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(self).__name__).lower()

    @property
    def summary(self) -> str:
        """First line of the pass's module docstring."""
        import sys

        doc = sys.modules[type(self).__module__].__doc__ or ""
        return doc.strip().splitlines()[0] if doc.strip() else ""

    def apply(self, net: Network) -> PassResult:
        """Rewrite ``net`` in place."""
        raise NotImplementedError
