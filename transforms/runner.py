"""Runs a pipeline: verifies the graph around every pass, measures what it saved, stops where asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from dcir.errors import InvalidGraph, OptionError
from dcir.ir.history import IMPORT, History
from dcir.ir.network import Network
from dcir.ir.remarks import Remark, RewriteLog
from dcir.ir.updates import settle
from dcir.ir.verify import verify
from dcir.transforms.base import Pass, Place, applied
from dcir.transforms.bodies import Bodies

_LOG = logging.getLogger(__name__)


@dataclass
class PassRecord:
    """What one pass did to one graph.

    Attributes:
        name, tier: of the pass.
        changed: rewrites applied.
        bytes_before, bytes_after: traffic of all operators, read off the memlets.
        operators_before, operators_after: nodes of the network.
        peak_before, peak_after: bytes of all transients, or of the arena once it is planned.
        seconds: time the pass took, verification not included.
        refused: reasons for rewrites not done, with their number.
        remarks: what the pass says of each place, if they are recorded.
        skipped: sites of it that the user has switched off, as far as they came up.
    """

    name: str
    tier: int
    changed: int
    bytes_before: int
    bytes_after: int
    operators_before: int
    operators_after: int
    peak_before: int
    peak_after: int
    seconds: float
    refused: dict[str, int] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def peak_bytes(net: Network) -> int:
    """Scratch memory of one call: the arena where planned, else every transient in a place of its own.

    Prepared values outlive the call in a block of their own and do not count.
    """
    return net.memory.scratch_bytes({n: c.nbytes for n, c in net.containers.items() if c.role == "transient"})


def check_order(passes: Sequence[Pass]) -> None:
    """Hold a pipeline against what its passes declare.

    Raises:
        OptionError: an entry is no pass, or one stands before a pass it has to come after, or after one it has to come before.
    """
    for entry in cast("Sequence[object]", passes):  # pipelines are written by people
        if not isinstance(entry, Pass):
            hint = (
                f"{entry.__name__}()"
                if isinstance(entry, type)
                else "an instance of a class that inherits from dcir.transforms.base.Pass"
            )
            raise OptionError(f"{entry!r} in a pipeline is no pass", where="pipeline", hint=hint)
    names = [p.name for p in passes]
    for number, p in enumerate(passes):
        for other in (other for other in p.after if other in names and other not in names[:number]):
            raise OptionError(
                f"pass {p.name} has to run after {other}",
                where=f"pipeline: {', '.join(names)}",
                hint=f"put {p.name} behind {other}, or leave one of them out",
            )
        for other in (other for other in p.before if other in names[:number]):
            raise OptionError(
                f"pass {p.name} has to run before {other}",
                where=f"pipeline: {', '.join(names)}",
                hint=f"put {p.name} in front of {other}, or leave one of them out",
            )


def run_passes(
    net: Network,
    passes: Sequence[Pass],
    *,
    until: str | None = None,
    after: Callable[[Pass, Network], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    validate_each: bool = False,
    remarks: bool = False,
    skip: Sequence[str] = (),
    history: History | None = None,
) -> list[PassRecord]:
    """Apply ``passes`` in order.

    Args:
        net: the network, rewritten in place.
        passes: the pipeline.
        until: name of the last pass to run.
        after: called after every pass that changed something (the differential check hooks in here).
        progress: called with (finished, all) after every pass.
        validate_each: let DaCe validate the SDFG before the first and after every pass; else it does so when code is made
            for what the last one leaves. dcir's own rules are always checked (they cost a tenth of DaCe's).
        remarks: whether to record what passes say of each place.
        skip: sites at which passes are to do nothing (``dcir.ir.sites``).
        history: takes a snapshot before the first pass, and after every one that changed something.

    Raises:
        InvalidGraph: a pass fails, answers no ``PassResult``, left the graph invalid, or does not say of an operator which others it
            came from, or of one that it took out what has become of it.
        OptionError: ``until`` names no pass of the pipeline, its order is not what its passes declare, or a pass rewrites what a
            final one has settled.
    """
    if until is not None and until not in {p.name for p in passes}:
        raise OptionError(
            f"no pass {until!r} in this pipeline", details=[("passes", ", ".join(p.name for p in passes))]
        )
    check_order(passes)
    run = _Run(net, passes, validate_each, history)
    net.rewrites = RewriteLog(record=remarks, skip=skip) if remarks or skip else None
    try:
        for number, p in enumerate(passes):
            if run.apply(number) and after is not None:
                after(p, net)
            if progress is not None:
                progress(number + 1, len(passes))
            if p.name == until:
                break
        run.finish()
    finally:
        net.rewrites = None
    return run.records


class _Run:
    """A network on its way through a pipeline: what was measured of it last, and who has settled its order and places."""

    def __init__(
        self, net: Network, passes: Sequence[Pass], validate_each: bool, history: History | None = None
    ) -> None:
        self.net, self.passes, self.validate_each, self.history = net, passes, validate_each, history
        self.records: list[PassRecord] = []
        self.settled = ""
        self.bodies = Bodies()
        self.silent: list[str] = []
        self._check()
        self.carried, self.imported = carried(net), len(net.origins.places)
        self.measured = self._measure()
        self._note(IMPORT)

    def apply(self, number: int) -> bool:
        """Run one pass and record it; whether it changed something."""
        p, place = self.passes[number], Place.of(number, self.passes)
        if (log := self.net.rewrites) is not None:
            log.begin(p.name, number)
        start = time.perf_counter()
        outcome = applied(p, self.net, place)
        if p.in_bodies:
            self.bodies.apply(p, place, self.net, outcome)
        seconds = time.perf_counter() - start
        traffic, count, peak = self.measured
        if outcome.changed:
            self.measured = self._measure()
        new = self.measured
        remarks, skipped = ([], []) if log is None else log.end(outcome.changed, outcome.refused)
        self.records.append(
            PassRecord(
                p.name, p.tier, outcome.changed, traffic, new[0], count, new[1], peak, new[2], seconds,
                dict(outcome.refused), remarks, skipped,
            )
        )  # fmt: skip
        if outcome.changed:
            _LOG.debug(
                "%s: %d rewrites, %d bytes fewer, %d -> %d operators, %.1f ms",
                p.name, outcome.changed, traffic - new[0], count, new[1], seconds * 1e3,
            )  # fmt: skip
            self._hold_final(p)
            self._check()
            self._hold_origins(p)
            self._note(number)
        self.silent = [] if outcome.changed else [*self.silent, p.name]
        return bool(outcome.changed)

    def finish(self) -> None:
        """Hold the rules against what the last passes left that say that they changed nothing.

        Raises:
            InvalidGraph: one of them changed the graph all the same, and left it invalid.
        """
        if not self.silent:
            return
        try:
            verify(self.net)
        except InvalidGraph as error:
            raise InvalidGraph(
                f"{error.message}, and the last passes say that they changed nothing",
                where=error.where, hint="a PassResult with the number of rewrites in changed",
                details=[*error.details, ("passes", ", ".join(self.silent))],
            ) from None  # fmt: skip

    def _note(self, number: int) -> None:
        """Let the history take a snapshot, if there is one."""
        if self.history is not None:
            self.history.note(self.net, number, self.measured[0], self.measured[2])

    def _measure(self) -> tuple[int, int, int]:
        """Bytes moved, operators, peak."""
        return self.net.bytes_moved(), len(self.net.ops()), peak_bytes(self.net)

    def _hold_final(self, p: Pass) -> None:
        """Refuse a rewrite of what a final pass has settled."""
        if self.settled and not p.final:
            raise OptionError(
                f"pass {p.name} rewrites the graph after {self.settled} has settled what runs when and what lies where",
                where=f"pipeline: {', '.join(p.name for p in self.passes)}",
                hint=f"put {p.name} in front of {self.settled}",
            )
        self.settled = self.settled or (p.name if p.final else "")

    def _hold_origins(self, p: Pass) -> None:
        """Refuse a rewrite after which nobody can tell any more where all operators come from."""
        origins, before = self.net.origins, self.carried
        self.carried = carried(self.net)
        lost = before - self.carried - origins.gone
        if lost:
            raise InvalidGraph(
                f"pass {p.name} loses imported operators", hint="net.remove_op(op, into=who does its work now, or none)",
                details=[(origins.places[n].label, str(origins.places[n])) for n in sorted(lost)[:10]],
            )  # fmt: skip
        if len(origins.places) != self.imported:
            new = ", ".join(place.label for place in origins.places[self.imported :][:10])
            raise InvalidGraph(
                f"pass {p.name} adds operators that came from none: {new}",
                hint="net.add_op(..., came_from=operators, made_by=self.name)",
            )

    def _check(self) -> None:
        """Settle the order of updates; dcir's rules, and DaCe's where asked."""
        if self.net.updates:
            settle(self.net)
        verify(self.net)
        if self.validate_each:
            self.net.validate()


def carried(net: Network) -> set[int]:
    """The imported operators that some operator of a network, or of its bodies, came from."""
    ops = net.ops()
    return set().union(
        *(op.came_from for op in ops), *(body.came_from for op in ops for body in op.spec.bodies())
    )  # fmt: skip
