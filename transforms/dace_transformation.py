"""Transformations of DaCe as a pass: loop nests are opened as maps, DaCe rewrites these, and what it makes is read back as loop nests.

    pipeline=(DaceTransformation(MapExpansion, (MapFusionVertical, {"only_toplevel_maps": True})), *pipeline(4))

What it makes runs through dcir's own passes and kernels like any other operator.
"""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import dace
from dace.sdfg import nodes
from dace.transformation.pass_pipeline import Pass as DacePass
from dace.transformation.passes.pattern_matching import match_patterns
from dace.transformation.transformation import PatternTransformation, SubgraphTransformation

from dcir.errors import DcirError, OptionError
from dcir.ir.dace.nodes import Op
from dcir.ir.dace.read_maps import Piece
from dcir.ir.network import Network
from dcir.ir.refusal import Refusal
from dcir.transforms.base import Pass, PassResult, Place
from dcir.transforms.open_groups import OpenGroup, groups

_KINDS = (PatternTransformation, SubgraphTransformation, DacePass)
_MOST = 16
"""Rewrites for each operator, at most: some transformations match what they have made for ever."""
_TRIED = 3
"""Rewrites for each operator that are tried one by one, where not all of them can be kept: each is a search and a reading of the group."""
Given = type[Any] | tuple[type[Any], Mapping[str, object]]
"""A transformation, by itself or with some of its properties."""


class _Rewrite(NamedTuple):
    """One of DaCe's transformations with its properties."""

    kind: type[Any]
    properties: tuple[tuple[str, object], ...]

    @property
    def name(self) -> str:
        return self.kind.__name__


class _Form(NamedTuple):
    """A group as it is after some rewrites: the SDFG and what it says."""

    sdfg: Any
    pieces: list[Piece]


@dataclass(frozen=True, init=False)
class DaceTransformation(Pass):
    """Applies transformations of DaCe, one after the other, wherever they match.

    A place where a transformation's own check says no is no site. A site is left as it is, with the reason in the report, where the
    transformation fails, DaCe's validation refuses what it makes, no loop nests say the same, or numbers drawn at random come out
    otherwise (groups of operators with up to ``open_groups.CHECKED_POINTS`` points of loops are run). Rewrites that make fewer maps are
    repeated as long as there are sites; others are done once at each.

    Attributes:
        rewrites: the transformations with their properties.
        only: a regular expression; operators in whose label, description or place in the user's model it is not found stay closed.
    """

    tier: ClassVar[int] = 2
    rewrites: tuple[_Rewrite, ...]
    only: str

    def __init__(self, *transformations: Given, only: str = "", **properties: object) -> None:
        """Say what to apply.

        Args:
            transformations: subclasses of DaCe's ``PatternTransformation``, ``SubgraphTransformation`` or ``Pass``; or pairs of one and
                a dictionary of its properties.
            only: which operators to open.
            properties: of all transformations that are given without a dictionary.

        Raises:
            OptionError: one is no transformation of DaCe, or has no such property.
        """
        pairs = [t if isinstance(t, tuple) else (t, properties) for t in transformations]
        rewrites = tuple(_Rewrite(kind, tuple(sorted(given.items()))) for kind, given in pairs)
        for r in rewrites:
            _check(r)
        object.__setattr__(self, "rewrites", rewrites)
        object.__setattr__(self, "only", only)

    @property
    def name(self) -> str:
        """As dace-map-expansion-map-fusion-vertical."""
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", "-".join(r.name for r in self.rewrites))
        return f"dace-{words}".lower()

    def apply(self, net: Network) -> PassResult:
        """Group after group."""
        return self.apply_at(net, Place())

    def apply_at(self, net: Network, place: Place) -> PassResult:
        """The same, but for operators that a later pass reserves: attention, for one, is not found any more where its parts are fused."""
        outcome = PassResult.of(net)

        def wanted(op: Op) -> bool:
            if not self._wanted(op):
                return False
            if (reserved := place.reserved(net, op)) is not None:
                outcome.missed(reserved, (op,))
            return reserved is None

        for ops in groups(net, wanted, outcome.missed):
            if not outcome.allowed(self, net, *ops):
                continue
            group = OpenGroup(net, ops)
            form, applied = _Form(group.sdfg, []), 0
            for r in self.rewrites:
                form, count = _rewritten(group, form, r, outcome)
                applied += count
            if applied:
                group.put_back(form.sdfg, form.pieces, self.name)
                outcome.passed(ops, count=applied)
        return outcome

    def _wanted(self, op: Op) -> bool:
        return re.search(self.only, f"{op.label} {op.spec.describe()} {op.origin}") is not None


def _check(r: _Rewrite) -> None:
    if not isinstance(r.kind, type) or not issubclass(r.kind, _KINDS):
        raise OptionError(
            f"{r.kind!r} is no transformation of DaCe", where="DaceTransformation",
            hint="give a class from dace.transformation.dataflow, .subgraph or .passes",
        )  # fmt: skip
    for name, _ in r.properties:
        if name not in r.kind.__properties__:
            raise OptionError(
                f"{r.name} has no property {name!r}", where="DaceTransformation",
                hint="one of " + ", ".join(sorted(r.kind.__properties__)),
            )  # fmt: skip


def _rewritten(group: OpenGroup, form: _Form, r: _Rewrite, outcome: PassResult) -> tuple[_Form, int]:
    """What is left when no site is, and how many rewrites it has seen: all of them at once, or those that can be kept."""
    whole, applied = _everywhere(form.sdfg, r, _MOST * len(group.ops))
    if not applied:
        return form, 0
    why = _judge(group, whole, r)
    if isinstance(why, _Form):
        return why, applied
    applied, done = 0, set[object]()
    for tried in itertools.count():
        found = _next(form.sdfg, r, done)
        if found is None:
            break
        if tried == _TRIED * len(group.ops):
            outcome.missed(f"sites of {r.name} that were not tried, after {_TRIED} for each operator", group.ops)
            break
        trial, site = found
        why = _judge(group, trial, r)
        if isinstance(why, Refusal):
            done.add(site)
            outcome.missed(why, group.ops)
            continue
        if _size(why.sdfg) >= _size(form.sdfg):
            done.add(site)
        form, applied = why, applied + 1
    return form, applied


def _everywhere(sdfg: Any, r: _Rewrite, most: int) -> tuple[Any, int]:
    """A copy with all rewrites, or the error that one ended in, and their number."""
    trial, done, applied = copy.deepcopy(sdfg), set[object](), 0
    try:
        while applied < most:
            site, apply = next(((site, apply) for site, apply in _sites(trial, r) if site not in done), (None, None))
            if apply is None:
                break
            before = _size(trial)
            changed = apply(trial)
            applied += changed
            if not changed or _size(trial) >= before:
                done.add(site)
    except Exception as e:  # whatever a transformation does
        return e, max(applied, 1)
    return trial, applied


def _size(sdfg: Any) -> int:
    return sum(isinstance(n, nodes.MapEntry | nodes.AccessNode | nodes.Tasklet) for n, _ in sdfg.all_nodes_recursive())


def _next(sdfg: Any, r: _Rewrite, done: set[object]) -> tuple[Any, object] | None:
    """A copy of the SDFG with one more rewrite, or the error in its place, and where that was."""
    for site, apply in _sites(sdfg, r):
        if site in done:
            continue
        trial = copy.deepcopy(sdfg)
        try:
            if apply(trial):
                return trial, site
            done.add(site)
        except Exception as e:  # whatever a transformation does
            return e, site
    return None


def _sites(sdfg: Any, r: _Rewrite) -> Iterator[tuple[object, Callable[[Any], bool]]]:
    """The places where a rewrite may be done, in words that copies share, and how to do it there in a copy."""
    if not issubclass(r.kind, PatternTransformation):
        yield r.name, functools.partial(_apply_whole, r=r)
        return
    for number, match in enumerate(match_patterns(sdfg, [r.kind], options=[dict(r.properties)])):
        yield _place(sdfg, match), functools.partial(_apply_match, r=r, number=number)


def _apply_match(sdfg: Any, r: _Rewrite, number: int) -> bool:
    for n, match in enumerate(match_patterns(sdfg, [r.kind], options=[dict(r.properties)])):
        if n == number:
            match.apply_pattern(append=False, annotate=False)  # memlets are propagated once, in the end
            return True
    return False


def _apply_whole(sdfg: Any, r: _Rewrite) -> bool:
    made = r.kind()
    for name, value in r.properties:
        setattr(made, name, value)
    if isinstance(made, DacePass):
        return made.apply_pass(sdfg, {}) is not None
    state = sdfg.start_block
    view = dace.sdfg.graph.SubgraphView(state, state.nodes())
    made.setup_match(view)
    if not made.can_be_applied(sdfg, view):
        return False
    made.apply(sdfg)
    return True


def _judge(group: OpenGroup, trial: Any, r: _Rewrite) -> Refusal | _Form:
    """What a rewrite has made, or why it is not kept."""
    if isinstance(trial, Exception):
        return Refusal(f"{r.name} fails with {type(trial).__name__}: {_line(trial)}")
    try:
        found = group.pieces(trial)  # first, since it takes the least time
    except DcirError as e:
        return Refusal(f"{r.name} makes what no loop nests say: {_line(e)}")
    try:
        dace.sdfg.propagation.propagate_memlets_sdfg(trial)
        trial.validate()
    except Exception as e:
        return Refusal(f"{r.name} makes what DaCe's validation refuses: {_line(e)}")
    return group.differs(found, trial) or _Form(trial, found)


def _line(e: Exception) -> str:
    return (str(e).splitlines() or [""])[0][:120]


def _place(sdfg: Any, match: Any) -> object:
    """Where a match is: the labels of its nodes, which stay when rewrites renumber nodes and change ranges."""
    state = sdfg.node(match.state_id) if match.state_id >= 0 else sdfg
    return match.state_id, tuple(
        sorted(f"{type(n).__name__} {n.label}" for n in map(state.node, match.subgraph.values()))
    )
