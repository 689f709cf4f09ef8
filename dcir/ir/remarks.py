"""Remarks of passes in the sense of LLVM's (passed, missed, analysis), place by place; and the places that the user has switched off.

A network has a log while a pipeline runs and somebody wants remarks, or has switched places off; else it has none, and passes only count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dcir.ir.sites import canonical, place_text, site_text

if TYPE_CHECKING:
    from dcir.ir.dace.nodes import Op
    from dcir.ir.network import Network
    from dcir.ir.operator import Operator

PASSED, MISSED, ANALYSIS = KINDS = ("passed", "missed", "analysis")


class Rewriting(Protocol):
    """Who rewrites: a pass."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class NamedOperator:
    """An operator as it was when a remark was made: its label, what it computes, its place in the user's model."""

    label: str
    what: str
    origin: str


@dataclass(frozen=True, slots=True)
class Remark:
    """What a pass says of one place.

    Attributes:
        kind: "passed" (a rewrite was made), "missed" (one was possible by pattern and was not made) or "analysis" (what was found out).
        by: the pass.
        index: its number in the pipeline, from 0.
        site: what to write to switch the place off; "" where a pass does not say the place.
        ops: the operators of the place, before the rewrite.
        made: those that a rewrite has made or changed.
        reason: why it was not made, or what was found out.
        count: for how many rewrites the remark stands.
        figures: ``bytes`` and ``flops`` of the operators before the rewrite, ``bytes_saved`` (traffic of a call) of one that was made, and
            what the pass adds.
    """

    kind: str
    by: str
    index: int
    site: str = ""
    ops: tuple[NamedOperator, ...] = ()
    made: tuple[NamedOperator, ...] = ()
    reason: str = ""
    count: int = 1
    figures: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The remark as plain data."""
        ops, made = ([{"label": o.label, "what": o.what, "origin": o.origin} for o in s] for s in (self.ops, self.made))
        return {
            "kind": self.kind, "pass": self.by, "index": self.index, "site": self.site, "ops": ops, "made": made,
            "reason": self.reason, "count": self.count, "args": dict(self.figures),
        }  # fmt: skip


class _Seen(NamedTuple):
    """A place before it is rewritten."""

    place: str
    under: frozenset[str]
    ops: tuple[NamedOperator, ...]
    figures: dict[str, float]


@dataclass
class _Run:
    """What the log of a network and those of the bodies in it have in common."""

    record: bool
    skip: frozenset[str]
    by: str = ""
    index: int = -1
    remarks: list[Remark] = field(default_factory=list)
    off: dict[str, None] = field(default_factory=dict)


class RewriteLog:
    """What passes do to a network, place by place, and where they may not.

    Args:
        record: whether to keep remarks.
        skip: sites that are switched off.
    """

    def __init__(self, *, record: bool = False, skip: Iterable[str] = ()) -> None:
        self._run = _Run(record, frozenset(map(canonical, skip)))
        self._within = ""
        self._start()

    def _start(self) -> None:
        self._under: dict[str, frozenset[str]] = {}  # by label: the imported operators under what passes have made
        self._named: dict[str, tuple[Operator, NamedOperator]] = {}
        self._index = -1
        self._asked: dict[frozenset[Op], _Seen] = {}
        self._touched: dict[Op, bool] = {}

    def inside(self, label: str, number: int) -> RewriteLog:
        """The log of a body of an operator."""
        other = RewriteLog.__new__(RewriteLog)
        other._run, other._within = self._run, f"{self._within}{label}.{number}/"
        other._start()
        return other

    # ------------------------------------------------------------------ the runner's side
    def begin(self, by: str, index: int) -> None:
        """A pass begins: its name and its number in the pipeline."""
        run = self._run
        run.by, run.index, run.remarks, run.off = by, index, [], {}

    def end(self, changed: int, missed: Counter[str]) -> tuple[list[Remark], list[str]]:
        """The remarks of the pass that began last, and the sites of it that were switched off.

        Args:
            changed, missed: what the pass has counted. For what of it has no remark there is one without a place.
        """
        run = self._run
        if not run.record:
            return [], list(run.off)
        left = changed - sum(r.count for r in run.remarks if r.kind == PASSED)
        silent = missed.copy()
        for r in run.remarks:
            silent[r.reason] -= r.count * (r.kind == MISSED)
        untold = [Remark(PASSED, run.by, run.index, count=left)] if left > 0 else []
        untold += [Remark(MISSED, run.by, run.index, reason=why, count=n) for why, n in silent.items() if n > 0]
        return run.remarks + untold, list(run.off)

    # ------------------------------------------------------------------ the network's side
    def touch(self, op: Op, *, new: bool) -> None:
        """An operator was added, or rewired."""
        self._turn()
        self._touched[op] = new or self._touched.get(op, False)

    def allows(self, net: Network, by: str, ops: tuple[Op, ...]) -> bool:
        """Whether a pass may rewrite at these operators."""
        self._turn()
        seen = self._asked[frozenset(ops)] = self._seen(net, ops)
        site = site_text(by, seen.place)
        if site not in self._run.skip:
            return True
        self._run.off[site] = None
        return False

    # ------------------------------------------------------------------ the passes' side
    def passed(self, net: Network, ops: tuple[Op, ...], count: int, reason: str, figures: Mapping[str, float]) -> None:
        """A rewrite is made: at ``ops``, and all that was added since the one before belongs to it."""
        self._turn()
        seen = self._before(net, ops)
        new = {op for op, new in self._touched.items() if new}
        made = tuple(op for op in self._touched if op in net and (op in new or op in ops))
        # Of what is rewired besides, a later rewrite of the pass may tell.
        self._touched = {op: False for op in self._touched if op not in new and op not in ops}
        if seen.under:
            self._under.update(dict.fromkeys((op.label for op in made), seen.under))
        if not self._run.record:
            return
        saved = {}
        if ops and "bytes_saved" not in figures:
            left = [op for op in dict.fromkeys((*ops, *made)) if op in net and not (op in new and _once(net, op))]
            saved = {"bytes_saved": seen.figures["bytes"] - sum(map(net.moved_by, left))}
        self._add(PASSED, seen, tuple(map(self._name, made)), reason, count, {**saved, **figures})

    def missed(
        self, net: Network, ops: tuple[Op, ...], reason: str, figures: Mapping[str, float], count: int = 1
    ) -> None:
        """A rewrite is not made."""
        self._told(MISSED, net, ops, reason, count, figures)

    def analysis(self, net: Network, ops: tuple[Op, ...], what: str, figures: Mapping[str, float]) -> None:
        """Something is found out."""
        self._told(ANALYSIS, net, ops, what, 1, figures)

    def _told(
        self, kind: str, net: Network, ops: tuple[Op, ...], reason: str, count: int, figures: Mapping[str, float]
    ) -> None:
        if self._run.record:
            self._turn()
            seen = self._before(net, ops) if kind == MISSED else self._seen(net, ops)
            self._add(kind, seen, (), reason, count, figures)

    def _add(
        self,
        kind: str,
        seen: _Seen,
        made: tuple[NamedOperator, ...],
        reason: str,
        count: int,
        more: Mapping[str, float],
    ) -> None:
        run = self._run
        site = site_text(run.by, seen.place) if seen.ops and kind != ANALYSIS else ""
        figures = {**seen.figures, **more}
        run.remarks.append(Remark(kind, run.by, run.index, site, seen.ops, made, reason, count, figures))

    def _turn(self) -> None:
        """Forget what was asked and made in a pass before."""
        if self._index != self._run.index:
            self._index = self._run.index
            self._asked.clear()
            self._touched.clear()

    # ------------------------------------------------------------------ names
    def site_of(self, ops: Sequence[Op]) -> tuple[str, frozenset[str]]:
        """The name of a place, and the labels of the imported operators under it: here alone is decided what a site is."""
        under = frozenset[str]().union(*(self._under.get(op.label, (op.label,)) for op in ops))
        return place_text(under, self._within), under

    def _before(self, net: Network, ops: tuple[Op, ...]) -> _Seen:
        """A place as it was when it was last asked about; if it was not, as it is."""
        key = frozenset(ops)
        return self._asked.pop(key) if key in self._asked else self._seen(net, ops)

    def _seen(self, net: Network, ops: tuple[Op, ...]) -> _Seen:
        place, under = self.site_of(ops)
        if not self._run.record:
            return _Seen(place, under, (), {})
        there = [op for op in dict.fromkeys(ops) if op in net]
        figures: dict[str, float] = {}
        if ops:
            figures["bytes"] = sum(map(net.moved_by, there))
            figures["flops"] = sum(op.spec.operations() for op in there)
        return _Seen(place, under, tuple(self._name(op) for op in dict.fromkeys(ops)), figures)

    def _name(self, op: Op) -> NamedOperator:
        known = self._named.get(op.label)
        if known is None or known[0] is not op.spec:
            known = self._named[op.label] = op.spec, NamedOperator(op.label, op.spec.describe(), op.origin)
        return known[1]


def _once(net: Network, op: Op) -> bool:
    """Whether an operator reads parameters and constants alone, so that it need not run in every call."""
    return all(o.data in net.static or o.data in net.constants for o in net.ins(op))
