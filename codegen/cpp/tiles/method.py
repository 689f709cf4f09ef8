"""Ways to compute a product or a convolution as data: each is an entry of a table, and one function takes one from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from dcir.codegen.asked import asked, asking, listed
from dcir.codegen.choices import decide
from dcir.codegen.cpp.tiles.emit import Draft
from dcir.codegen.symbolic import usual
from dcir.errors import InvalidSchedule
from dcir.ir.refusal import Refusal
from dcir.ir.schedule import Schedule
from dcir.isa import Isa

P = TypeVar("P")
LAST = 9.0
"""The rank of a way that no model picks, as long as there is another."""


@dataclass(frozen=True)
class Asked:
    """A question that is put before a method is taken, since a tuner may say no: (name of the decision, its yes, its no)."""

    decision: str
    yes: str
    no: str

    def answer(self) -> bool:
        """Whether it is yes."""
        return decide(self.decision, [self.yes, self.no]) == self.yes


ON_UNIT = Asked("unit", "matrix", "vector")
"""Of what is computed on a matrix unit, where multiply-adds could do it as well."""


@dataclass(frozen=True)
class Method(Generic[P]):
    """One way to compute a problem.

    Attributes:
        name: what decisions call it.
        draft: the kernel: (name of the plan, problem, instruction set, threads). Only for problems without a refusal.
        refusal: why a problem is not computed this way, for an instruction set and threads, or None: it cannot be, or by the model of the
            method's file another way is faster.
        estimate: the rank among ways that are offered together: the least is the model's choice. Ranks are ordinal; what decides
            between two ways was measured case by case.
        offered: whether a tuner may take it where another way is the model's choice.
        asked: the question, in tables whose order decides. A no is a no to all methods that ask the same.
    """

    name: str
    draft: Callable[[str, P, Isa, int], Draft]
    refusal: Callable[[P, Isa, int], Refusal | None] = lambda problem, isa, threads: None
    estimate: Callable[[P, Isa], float] = lambda problem, isa: 0.0
    offered: Callable[[P], bool] = lambda problem: True
    asked: Asked | None = None

    def suits(self, problem: P, isa: Isa, threads: int = 1) -> bool:
        """Whether nothing is refused."""
        return self.refusal(problem, isa, threads) is None


@dataclass(frozen=True)
class Methods(Generic[P]):
    """A table of methods, of which at least the last refuses nothing.

    Attributes:
        entries: the methods. Without a decision the first that suits is taken.
        decision: all that suit are offered at once under this name: the one of the least estimate, then the others in the table's order.
    """

    entries: tuple[Method[P], ...]
    decision: str = ""


def choose(table: Methods[P], turns: Sequence[tuple[str, P]], isa: Isa, threads: int) -> tuple[Method[P], P]:
    """The method that computes a problem, and the form of the problem that it takes.

    Args:
        table: what there is to choose from.
        turns: what a method's name gets behind it, and the form of the problem it stands for, the best first; without a decision there is
            one.
        isa, threads: what the kernel is for.
    """
    wanted = asked().method
    if table.decision:
        ways = {m.name + behind: (m, p) for behind, p in turns for m in _ranked(table, p, isa, threads)}
        if wanted:
            _check_wanted(table, wanted, turns, list(ways), isa, threads)
        return ways[wanted or decide(table.decision, list(ways))]
    if wanted and (named := [m for m in table.entries if m.name == wanted]):
        found = next(((m, p) for m in named for _, p in turns if m.suits(p, isa, threads)), None)
        if found is None:
            _check_wanted(
                table,
                wanted,
                turns,
                [m.name for m in table.entries if m.suits(turns[0][1], isa, threads)],
                isa,
                threads,
            )
        assert found is not None
        return found
    declined: set[Asked] = set()
    for method in table.entries:
        for _, problem in turns:
            if method.asked in declined or not method.suits(problem, isa, threads):
                continue
            if (
                method.asked is None
                or decide(method.asked.decision, [method.asked.yes, method.asked.no]) == method.asked.yes
            ):
                return method, problem
            declined.add(method.asked)
    raise AssertionError("the last method of a table refuses nothing")


def drafted(method: Method[P], name: str, problem: P, isa: Isa, threads: int) -> Draft:
    """A method's draft, with the schedule that it says, or else the method and its jobs."""
    wanted = asked().method == method.name
    # What a method is made of has methods of other names.
    with asking(replace(asked(), method="")) if wanted else nullcontext():
        draft = method.draft(name, problem, isa, threads)
    jobs = max((s.jobs for s in draft.steps[-1:]), default=0)
    schedule = draft.schedule or Schedule(parallel=listed(jobs=jobs) if usual(jobs) > 1 else ())
    return replace(draft, schedule=replace(schedule, method=method.name if wanted else schedule.method or method.name))


def _check_wanted(
    table: Methods[P], wanted: str, turns: Sequence[tuple[str, P]], ways: Sequence[str], isa: Isa, threads: int
) -> None:
    """Refuse a method that a node asks for if it does not suit.

    Raises:
        InvalidSchedule: with the method's own reason.
    """
    if wanted in ways:
        return
    reasons = (
        reason.reason
        for behind, p in turns
        for m in table.entries
        if m.name + behind == wanted and (reason := m.refusal(p, isa, threads)) is not None
    )
    raise InvalidSchedule(
        f"this operator cannot run by method {wanted!r}: {next(reasons, 'it has no such method')}",
        hint="method=" + " or ".join(map(repr, ways)),
    )


def _ranked(table: Methods[P], problem: P, isa: Isa, threads: int) -> list[Method[P]]:
    suit = [m for m in table.entries if m.suits(problem, isa, threads)]
    if not suit:
        return []
    best = min(suit, key=lambda m: m.estimate(problem, isa))
    return [best, *(m for m in suit if m is not best and m.offered(problem))]
