"""What a pass is, what it answers, and what it knows of the pipeline around it.

The graph is valid before and after; ``apply`` says honestly what it changed.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dcir.errors import DcirError, InvalidGraph
from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network
from dcir.ir.refusal import SWITCHED_OFF, Refusal


@dataclass
class PassResult:
    """What one run of a pass did. Where somebody wants to know more than numbers, ``of`` a network also makes remarks in its log.

    Attributes:
        changed: number of rewrites applied.
        refused: rewrites that were possible by pattern but not done, counted by reason.
        saved_bytes: bytes of traffic the rewrites save, as the pass claims (the runner measures it again).
        net: the network, if it has a log.
    """

    changed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    saved_bytes: int = 0
    net: Network | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, net: Network) -> PassResult:
        """An empty one, of a pass that says where it does what it does."""
        return cls(net=net if net.rewrites is not None else None)

    def passed(self, ops: Sequence[Op] = (), *, count: int = 1, reason: str = "", **figures: float) -> None:
        """Count a rewrite that was made.

        Args:
            ops: the operators that were rewritten, as ``Network.allows`` was asked about them.
            count: how many rewrites that is.
            reason: what was done, where the pass does several things.
            figures: what is known of it; ``bytes_saved`` is found out unless given.
        """
        self.changed += count
        if count and self.net is not None and self.net.rewrites is not None:
            self.net.rewrites.passed(self.net, tuple(ops), count, reason, figures)

    def missed(self, why: Refusal | str, ops: Sequence[Op] = (), *, count: int = 1, **figures: float) -> None:
        """Count a rewrite of ``ops`` that was not made (or ``count`` equal ones), by its refusal or the reason alone."""
        reason = why.reason if isinstance(why, Refusal) else why
        self.refused[reason] += count
        if self.net is not None and self.net.rewrites is not None:
            self.net.rewrites.missed(self.net, tuple(ops), reason, figures, count)

    def allowed(self, by: Pass, net: Network, *ops: Op) -> bool:
        """Whether a pass may rewrite here, as ``Network.allows`` says; if not, it is counted as missed."""
        if net.allows(by, *ops):
            return True
        self.missed(SWITCHED_OFF, ops)
        return False

    def analysis(self, what: str, ops: Sequence[Op] = (), **figures: float) -> None:
        """Tell what was found out of ``ops`` or, without any, of the network; it counts as nothing."""
        if self.net is not None and self.net.rewrites is not None:
            self.net.rewrites.analysis(self.net, tuple(ops), what, figures)


@dataclass(frozen=True)
class Pass:
    """Base of all passes: a frozen dataclass whose fields are its options.

    The name is the class name in kebab-case.

    Attributes:
        tier: 0 (tidy) to 4, by what it does; the level from which it runs. Where it runs among others is the pipeline's matter.
        after: names of passes that must not come later for the first time than this one, where a pipeline has both.
        before: names of passes that must not have run when this one does.
        final: whether it decides when operators run and where values lie. What others rewrite afterwards would make that void.
        in_bodies: whether it also runs on the bodies of loops and branches; not one that uses memory or time outside of them.
    """

    tier: ClassVar[int] = 0
    after: ClassVar[tuple[str, ...]] = ()
    before: ClassVar[tuple[str, ...]] = ()
    final: ClassVar[bool] = False
    in_bodies: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Kebab-case name, the same on the command line, in reports and in file names."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(self).__name__).lower()

    @property
    def summary(self) -> str:
        """First line of the pass's module docstring."""
        doc = sys.modules[type(self).__module__].__doc__ or ""
        return doc.strip().splitlines()[0] if doc.strip() else ""

    def apply(self, net: Network) -> PassResult:
        """Rewrite ``net`` in place."""
        raise NotImplementedError

    def apply_at(self, net: Network, place: Place) -> PassResult:
        """The same in a pipeline. Only a pass that leaves something to later ones asks where it stands."""
        return self.apply(net)

    def reserves(self, net: Network, op: Op) -> Refusal | None:
        """Why passes that come earlier should leave ``op`` as it is for this one; None of what it does not want."""
        return None


@dataclass(frozen=True)
class Place:
    """Where a pass stands in a pipeline, as far as that has to do with reservations; made by ``Place.of``.

    Attributes:
        later: passes after it that reserve something.
        since: passes that reserve something and stand between the pass's run before this one and this one.
    """

    later: tuple[Pass, ...] = ()
    since: tuple[Pass, ...] = ()

    @classmethod
    def of(cls, number: int, passes: Sequence[Pass]) -> Place:
        """The place of ``passes[number]``."""
        runs = [i for i, p in enumerate(passes[:number]) if type(p) is type(passes[number])]
        between = passes[runs[-1] + 1 : number] if runs else ()
        return cls(_reserving(passes[number + 1 :]), _reserving(between))

    def reserved(self, net: Network, op: Op) -> Refusal | None:
        """Why ``op`` is left to a later pass; None if no pass wants it."""
        return next((r for p in self.later if (r := p.reserves(net, op)) is not None), None)

    def released(self, net: Network, op: Op) -> bool:
        """Whether ``op`` is one that the run before had to leave to a pass that is through with it now."""
        return any(p.reserves(net, op) is not None for p in self.since)


def applied(p: Pass, net: Network, place: Place) -> PassResult:
    """What a pass answers.

    Raises:
        InvalidGraph: it fails with an error that is none of dcir's, or answers something else than a ``PassResult``.
    """
    where = f"{type(p).__module__}.{type(p).__qualname__}"
    try:
        outcome: object = p.apply_at(net, place)
    except (DcirError, MemoryError):
        raise
    except Exception as error:  # passes are written by others, too: whatever it raises
        if type(p).apply is Pass.apply and type(p).apply_at is Pass.apply_at:
            raise InvalidGraph(
                f"pass {p.name} has no apply", where=where, hint="def apply(self, net: Network) -> PassResult"
            ) from error
        raise InvalidGraph(
            f"pass {p.name} fails: {type(error).__name__}: {error}",
            where=where,
            hint="leave it out of the pipeline, or repair it",
        ) from error
    if not isinstance(outcome, PassResult):
        raise InvalidGraph(
            f"pass {p.name} returns {outcome!r}",
            where=where,
            hint="a dcir.transforms.base.PassResult, with the number of its rewrites",
        )
    return outcome


def _reserving(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    return tuple(p for p in passes if type(p).reserves is not Pass.reserves)
