"""The joint graph cut into forward and backward under a limit of memory.

The limit is on the planned peak: what the forward keeps for the backward, and the larger arena of the two. A first cut is
PyTorch's own (``unlimited``). Where its plan exceeds the limit, an integer program (``partition/solver.py``) over the joint graph
(``partition/model.py``) chooses what to keep and what to compute again. Its bytes are an estimate made before fusion and layout, so
each cut is planned in full (``measure``) and the program is asked again with what is left of the limit, until the plan fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx
from torch._functorch import partitioners
from torch._functorch.compile_utils import raise_getitems

from dcir.errors import MemoryLimitTooLow
from dcir.frontends.torch.partition.cse import merge_equal
from dcir.frontends.torch.partition.expose_dropout import expose_dropout
from dcir.frontends.torch.partition.joint_graph import is_random, keep_what_reads_written, nbytes, written_to
from dcir.frontends.torch.partition.model import Joint, PartitionModel, Rates, is_light, model, static
from dcir.frontends.torch.partition.solver import PartitionChoice, evaluate, solve

Cut = tuple[fx.GraphModule, fx.GraphModule]
PartitionFunction = Callable[..., Cut]

# Cuts that are planned on the way to one that fits.
TRIES = 5
# A plan this near to the limit is not worth another try.
NEAR = 0.9
# Peaks next to the least one that the model knows, tried before a limit is called too low.
AROUND_LEAST = (1.1,)


@dataclass(frozen=True)
class Plan:
    """Bytes of a cut as compiled: kept between forward and backward, and the arenas of both."""

    saved: int
    forward: int
    backward: int

    @property
    def peak(self) -> int:
        """The most at one time: both arenas are one piece of memory, used in turn."""
        return self.saved + max(self.forward, self.backward)


@dataclass
class Partition:
    """What was decided about one joint graph.

    Attributes:
        unlimited: the plan without a limit.
        planned: the plan of the cut that was taken.
        chosen: per "store", "recompute" and "cheaper form" (computed again, point by point, from what is kept): number of values
            the backward reads, and their bytes.
        seconds: what computing again costs, as predicted, more than the unlimited cut.
        proven: whether the integer program was solved to the end.
    """

    unlimited: Plan
    planned: Plan
    chosen: dict[str, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0
    proven: bool = True


Expose = Callable[[fx.GraphModule], Any]
"""Rewrites a joint graph in place."""

Measure = Callable[[fx.GraphModule, fx.GraphModule, int], Plan]
"""Plans a forward and a backward graph; given how many results the caller of the forward gets."""


@dataclass(frozen=True)
class Limited:
    """Cuts joint graphs as AOTAutograd asks for, and keeps a limit.

    Attributes:
        limit: bytes.
        measure: plans a cut.
        rates: of the machine.
    """

    limit: int
    measure: Measure
    rates: Rates

    def __call__(
        self, unlimited: PartitionFunction, expose: Sequence[Expose], joint: fx.GraphModule, inputs: Any, **kwargs: Any
    ) -> tuple[Cut, Partition]:
        """Cut ``joint``; also says what was decided.

        Args:
            unlimited: the partition function without a limit.
            expose: rewrites of the joint graph that show what is cheap to compute again.
            joint, inputs, kwargs: as AOTAutograd calls a partition function.

        Raises:
            MemoryLimitTooLow: no cut that was found keeps the limit.
        """
        return _CutSearch(self, unlimited, expose, joint, inputs, kwargs).run()


class _CutSearch:
    def __init__(
        self, asked: Limited, unlimited: PartitionFunction, expose: Sequence[Expose], joint: fx.GraphModule, inputs: Any,
        kwargs: dict[str, Any],
    ) -> None:  # fmt: skip
        self.asked, self.unlimited, self.expose = asked, unlimited, expose
        self.joint, self.inputs, self.kwargs = joint, inputs, kwargs
        self.results: int = kwargs["num_fwd_outputs"]
        self.tried: dict[frozenset[int], tuple[Cut, Plan]] = {}

    def run(self) -> tuple[Cut, Partition]:
        asked = self.asked
        own = twin(self.joint)
        own.graph.eliminate_dead_code()
        known = static(own.graph) and not partitioners.has_recomputable_rng_ops(own)
        cut = self.unlimited(self.joint, self.inputs, **self.kwargs)
        plan = asked.measure(*cut, self.results)
        if known:
            self.own, self.model = self._modelled(own)
        before = self._like(cut) if known else None
        if plan.peak <= asked.limit:
            return cut, Partition(plan, plan, self._summary(before) if before is not None else {})
        found = self._fitting() or self._small() if known else None
        if found is None or self._planned(found)[1].peak > asked.limit:
            least = plan.peak if found is None else min(plan.peak, self._planned(found)[1].peak)
            raise MemoryLimitTooLow.of(asked.limit, least, [("without a limit", f"{plan.peak} bytes")])
        cut, planned = self._planned(found)
        more = found.seconds - before.seconds if before is not None else 0.0
        return cut, Partition(plan, planned, self._summary(found), more, found.proven)

    def _modelled(self, own: fx.GraphModule) -> tuple[fx.GraphModule, PartitionModel]:
        for rewrite in (*self.expose, expose_dropout):
            rewrite(own)
        keep_what_reads_written(own.graph)
        merge_equal(own.graph)
        own.graph.eliminate_dead_code()
        if partitioners.has_recomputable_ops(own):
            own = partitioners.cleanup_recompute_tags(own, is_default_partition=False)
        return own, model(Joint(own.graph, self.results, written_to(own.graph)), self.asked.rates)

    def _like(self, cut: Cut) -> PartitionChoice | None:
        """The unlimited cut in terms of the model, if it has such a form."""
        names = {n.name for n in cut[1].graph.find_nodes(op="placeholder")}
        values = self.model.problem.values
        return evaluate(
            self.model.problem, (i for i, v in enumerate(values) if v.name in names and v.stored is not None)
        )

    def _fitting(self) -> PartitionChoice | None:
        """The quickest choice found whose plan keeps the limit.

        What the model leaves out is about the same for budgets near to each other, so a budget is moved by what its plan has too
        much or to spare.
        """
        limit = self.asked.limit
        best: PartitionChoice | None = None
        fits, exceeds = 0, 2 * limit  # budgets known to fit (or to be below every choice), and not to fit
        budget = limit
        for _ in range(TRIES):
            choice = solve(self.model.problem, budget)
            if choice is None:
                fits, budget = budget, (budget + exceeds) // 2
                continue
            spare = limit - self._planned(choice)[1].peak
            if spare >= 0:
                best = choice if best is None or choice.seconds < best.seconds else best
                if spare <= (1 - NEAR) * limit or choice.seconds == 0:
                    break
                fits = budget
            else:
                exceeds = min(exceeds, choice.peak)  # the same choice has any budget from there on
            budget += spare
            if budget >= exceeds:
                budget = exceeds - 1
            if budget <= fits:
                budget = (fits + exceeds) // 2
        return best

    def _small(self) -> PartitionChoice | None:
        """The quickest choice among those of small peaks whose plan keeps the limit, else the one of the smallest plan.

        The choices are the same whatever the limit is: the least limit that an error tells is kept by one of them.
        """
        least = solve(self.model.problem)
        if least is None:
            return None
        near = (solve(self.model.problem, int(least.peak * f)) for f in AROUND_LEAST)
        choices = sorted((c for c in (least, *near) if c is not None), key=lambda c: c.seconds)
        fitting = (c for c in choices if self._planned(c)[1].peak <= self.asked.limit)
        return next(fitting, None) or min(choices, key=lambda c: self._planned(c)[1].peak)

    def _planned(self, choice: PartitionChoice) -> tuple[Cut, Plan]:
        if choice.stored not in self.tried:
            cut = self._cut(choice)
            self.tried[choice.stored] = cut, self.asked.measure(*cut, self.results)
        return self.tried[choice.stored]

    def _cut(self, choice: PartitionChoice) -> Cut:
        """Forward and backward that keep what was chosen."""
        kept = {self.model.nodes[i] for i in choice.stored} | set(self.model.free)
        saved = [n for n in self.own.graph.nodes if n in kept]
        forward, backward = partitioners._extract_fwd_bwd_modules(
            self.own, saved, saved_sym_nodes=[], num_fwd_outputs=self.results
        )
        names = {n.name for n in forward.graph.nodes if is_random(n)}
        assert not any(is_random(n) and n.name in names for n in backward.graph.nodes), "random numbers drawn twice"
        backward = partitioners.reordering_to_mimic_autograd_engine(backward)
        return raise_getitems(forward), raise_getitems(backward)

    def _summary(self, choice: PartitionChoice) -> dict[str, tuple[int, int]]:
        chosen = {"store": (0, 0), "recompute": (0, 0), "cheaper form": (0, 0)}
        for i, (v, n) in enumerate(zip(self.model.problem.values, self.model.nodes, strict=True)):
            if v.needs is None or not (i in choice.stored or i in choice.again):
                continue
            kind = "store"
            if i in choice.again:
                near = is_light(n) and all(p in choice.stored for p in v.parents)
                kind = "cheaper form" if near else "recompute"
            number, size = chosen[kind]
            chosen[kind] = number + 1, size + (v.stored if i in choice.stored and v.stored is not None else nbytes(n))
        return chosen


def twin(module: fx.GraphModule) -> fx.GraphModule:
    """A graph module with nodes of its own over the same tensors."""
    graph = fx.Graph()
    place: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        place[node] = graph.node_copy(node, lambda n: place[n])
    made = fx.GraphModule(module, graph)
    made.meta = dict(module.meta)
    return made
