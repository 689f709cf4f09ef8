"""A pass that is one rule: what it looks for, whether it may, what it does instead; applied until nothing is left that fits.

A pass is written this way where each of its rewrites begins at one operator and none depends on what others might do later: the reasons
for which it does nothing then stand in one place. Fusion, layouts and memory are searches and have a shape of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.transforms.base import Pass, PassResult

Known = TypeVar("Known")
Match = TypeVar("Match")


@dataclass(frozen=True)
class Rule(Pass, Generic[Known, Match]):
    """One rewrite. ``Known`` is what a run finds out once, or keeps; ``Match`` is what of the graph a rewrite is about."""

    def survey(self, net: Network) -> Known:
        """What all matches of one run ask of the network."""
        raise NotImplementedError

    def pattern(self, net: Network, op: Op, known: Known) -> Match | None:
        """What begins at ``op`` and looks like it; None of all else, which no report counts."""
        raise NotImplementedError

    def place(self, op: Op, match: Match) -> tuple[Op, ...]:
        """The operators that a rewrite is about, for remarks and switches: at least that at which it begins."""
        return (op,)

    def check(self, net: Network, match: Match, known: Known) -> Refusal | int:
        """The bytes of traffic that the rewrite saves, or why it is not done. It changes nothing."""
        raise NotImplementedError

    def rewrite(self, net: Network, match: Match, known: Known) -> Sequence[Op]:
        """Do it; the operators that fit now and may not have before, to be looked at next."""
        raise NotImplementedError

    def apply(self, net: Network) -> PassResult:
        """Look at all operators in order of execution, and again at those that a rewrite names."""
        outcome, known = PassResult.of(net), self.survey(net)
        waiting = net.ops()[::-1]
        while waiting:
            op = waiting.pop()
            match = self.pattern(net, op, known) if op in net else None
            if match is None:
                continue
            verdict, ops = self.check(net, match, known), self.place(op, match)
            if not isinstance(verdict, Refusal) and not net.allows(self, *ops):
                verdict = SWITCHED_OFF
            if isinstance(verdict, Refusal):
                outcome.missed(verdict, ops)
                continue
            waiting += reversed(self.rewrite(net, match, known))
            outcome.passed(ops)
            outcome.saved_bytes += verdict
        return outcome
