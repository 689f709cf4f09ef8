"""Plans the threads of a model's calls: measures its kernels on several teams, predicts settings, and measures those it can run."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from dcir.codegen.compile import Library
from dcir.cost.threads.curves import curve_of, stops_at
from dcir.cost.threads.planner import ALL, LATENCY, ONE, Planner
from dcir.cost.threads.team_rates import TeamRates
from dcir.cost.threads.topology import Cores, cores_here
from dcir.cost.threads.width import Width, heaviest, width_of
from dcir.driver.measure.baselines import Run
from dcir.driver.measure.kernel_graph import KernelGraph, kernel_graph
from dcir.driver.measure.machine import rates
from dcir.driver.measure.models import BenchModel, open_model
from dcir.driver.measure.plan_sweep import CALLS_OF_A_STREAM, Predicted, calls_of
from dcir.driver.measure.plan_sweep import sweep as sweep_of
from dcir.driver.measure.profile import Recorder, measured, summary
from dcir.driver.measure.roofline import MODES, summed
from dcir.driver.measure.turns import measure
from dcir.driver.optimize import compiled_with
from dcir.driver.record import work_of
from dcir.driver.session import Progress, Session
from dcir.errors import InvalidInput, OptionError
from dcir.frontends.torch.heavy_operators import heavy_operators
from dcir.frontends.torch.importer import Imported
from dcir.options import Options
from dcir.report.plan_sweep import PlanSweep, Way
from dcir.report.thread_plan import MeasuredSetting, PlannedGraph, PlannedKernel, ThreadPlanReport

_ROUNDS = 3


def plan_threads(
    source: str | os.PathLike[str],
    *,
    level: int = 4,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    batch: int | None = None,
    threads: int | None = None,
    mode: str = "infer",
    cores: Cores | None = None,
    seconds: float = 1.0,
    sweep: bool = False,
    progress: Progress | None = None,
) -> ThreadPlanReport:
    """Plan the threads of a model's calls.

    Args:
        source, shapes, batch: see ``models.open_model``.
        level: of the optimisation.
        threads: most of them; as many as torch uses, or ``cores`` has, unless given. There are no more than cores.
        mode: "infer"; or "train" for forward and backward of the sum of all that the model returns, in training mode.
        cores: of another machine to plan for. Kernels are measured here, with as many threads as there are.
        seconds: how long to measure each setting.
        sweep: whether to run every way to share the cores of this machine between calls, each compiled for its threads.
        progress: told of the steps of compilations, and of measuring.

    Raises:
        OptionError: another mode, no thread, or a sweep of a machine that is not this one.
        InvalidInput: nothing was compiled in the call, or nothing that it returns has a gradient.
    """
    if mode not in MODES:
        raise OptionError(f"a mode is one of {', '.join(MODES)}", where=f"mode={mode!r}")
    if threads is not None and threads < 1:
        raise OptionError("a team has a thread at least", where=f"threads={threads}")
    if sweep and cores is not None:
        raise OptionError("only this machine's cores can be measured", where=f"cores={cores}", hint="leave cores out")
    before, here = torch.get_num_threads(), cores_here()
    planned = here.limited(threads or before) if cores is None else cores.limited(threads or cores.total)
    sizes = _doubling(min(here.total, planned.total))
    opened = open_model(source, shapes, batch)
    calls = _Calls(opened, mode == "train", level)
    report = ThreadPlanReport(os.path.basename(os.fspath(source)), mode, planned, rates(), tuple(sizes))
    if threads is not None and threads > planned.total:
        report.notes.append(f"{threads} threads are more than the {planned} that there are")
    try:
        with torch.set_grad_enabled(calls.training):
            teams = _profiled(calls, planned.total, sizes, seconds, progress)
            machine = TeamRates(planned, report.rates)
            report.graphs = [planned_graph(graph, machine) for graph in _graphs(teams)]
            if cores is None:
                report.measured = _settings(calls, teams, seconds, report.notes, progress)
            if sweep:
                report.sweep = _swept(calls, teams[0].recorder, report, seconds, progress)
    finally:
        torch.set_num_threads(before)
    return report


@dataclass(frozen=True)
class MeasuredGraph:
    """A graph of a call, to be planned for one machine or another.

    Attributes:
        kind: "inference", "forward", "backward".
        graph: its kernels.
        seconds: of each, by threads.
        operators: how wide its ATen graph is; None where that is not known.
    """

    kind: str
    graph: KernelGraph
    seconds: tuple[dict[int, float], ...]
    operators: Width | None


def measured_graphs(
    source: str | os.PathLike[str], made_for: int, *, level: int = 4, batch: int | None = None, mode: str = "infer",
    seconds: float = 1.0,
) -> list[MeasuredGraph]:  # fmt: skip
    """The graphs of a model's call whose code is made for a number of threads, measured on teams that this machine has.

    Args:
        source, level, batch, mode, seconds: as in ``plan_threads``.
        made_for: threads.

    Raises:
        InvalidInput: as by ``plan_threads``.
    """
    before = torch.get_num_threads()
    calls = _Calls(open_model(source, None, batch), mode == "train", level)
    try:
        with torch.set_grad_enabled(calls.training):
            return _graphs(_profiled(calls, made_for, _doubling(min(made_for, cores_here().total)), seconds, None))
    finally:
        torch.set_num_threads(before)


@dataclass
class _Recorder(Recorder):
    """Keeps of every graph its network and library, too, and how wide its ATen graph was."""

    compiled: list[tuple[str, Imported, Library]] = field(default_factory=list)
    widths: list[tuple[Imported, Width]] = field(default_factory=list)

    def __call__(self, kind: str, done: Imported, library: Library, program: Any) -> Any:
        self.compiled.append((kind, done, library))
        return super().__call__(kind, done, library, program)

    def imported(self, gm: fx.GraphModule, done: Imported) -> None:
        """Hear of a graph (``session.OnImport``)."""
        self.widths.append((done, heavy_operators(gm).width()))

    def width(self, done: Imported) -> Width | None:
        """Of the ATen graph that was imported as this."""
        return next((width for other, width in self.widths if other is done), None)


@dataclass
class _Calls:
    """Makes calls of a model, compiled for one number of threads and run by another."""

    model: BenchModel
    training: bool
    level: int

    def profiled(self, made_for: int, run_by: int, progress: Progress | None) -> tuple[_Recorder, Callable[[], Any]]:
        """A call whose kernels are measured, and what records them."""
        recorder = _Recorder()
        session = Session(self.options(made_for), watch=recorder, on_import=recorder.imported, progress=progress)
        return recorder, self._call(compiled_with(self._copied(), session), run_by)

    def plain(self, threads: int) -> Callable[[], list[Any]]:
        """A call as users have it."""
        return self._call(compiled_with(self._copied(), Session(self.options(threads))), threads)

    def on_streams(self, way: Way) -> Callable[[], list[Any]]:
        """Several calls at once, a few for each stream (``plan_sweep.calls_of``)."""
        whole = way.streams * way.threads
        options = replace(self.options(whole), hint="throughput", streams=way.streams)
        fast = compiled_with(self.model.module, Session(options))

        def run() -> list[Any]:
            torch.set_num_threads(whole)
            futures = [fast.dcir.submit(*self.model.inputs) for _ in range(CALLS_OF_A_STREAM * way.streams)]
            return pytree.tree_leaves(fast.dcir.gather(futures))

        return run

    def way(self, way: Way) -> Callable[[], list[Any]]:
        """The calls of a way."""
        return self.plain(way.threads) if way.streams == 1 else self.on_streams(way)

    def hinted(self, cores: int) -> Way:
        """The way that the hint of throughput has calls go on so many cores."""
        session = Session(replace(self.options(cores), hint="throughput"))
        torch.set_num_threads(cores)
        compiled_with(self.model.module, session).dcir.submit(*self.model.inputs).result()
        assert session.streams is not None, "a call was submitted"
        return Way(session.streams.streams, session.streams.threads)

    def options(self, threads: int | None) -> Options:
        # Sizes do not move here, and code for sizes that might is other code.
        return Options.make(level=self.level, threads=threads, dynamic=False)

    def _copied(self) -> Any:
        module = self.model.module
        if not self.training or not isinstance(module, nn.Module):
            return module
        return copy.deepcopy(module).train()  # buffers of the user's stay as they are

    def _call(self, fast: Any, threads: int) -> Callable[[], list[Any]]:
        leaves = [v for v in pytree.tree_leaves(self.model.inputs) if isinstance(v, torch.Tensor)]
        wanted = [v for v in leaves if v.requires_grad]
        if isinstance(fast, nn.Module):
            wanted += [p for p in fast.parameters() if p.requires_grad]

        def call() -> list[Any]:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            out = fast(*self.model.inputs)
            if self.training:
                torch.autograd.grad(summed(out), wanted, allow_unused=True)
            return pytree.tree_leaves(out)

        return call


class _Team:
    """A size of team, and the least that its kernels took in a call, in seconds by graph and step.

    Medians would call a team slow because somebody else had one of its processors half of the time.
    """

    def __init__(self, threads: int, call: tuple[_Recorder, Callable[[], Any]]) -> None:
        self.threads, (self.recorder, self.call) = threads, call
        self.seconds: dict[tuple[int, int], float] = {}
        self.kernels_ms = float("inf")

    def run(self, seconds: float) -> None:
        """A round."""
        walls, around = measured(self.call, self.recorder, seconds)
        if not self.recorder.graphs:
            raise InvalidInput("nothing was compiled in this call, so there are no kernels to plan")
        result = summary(self.recorder, walls, around, self.threads)
        at: dict[int, int] = {}
        for step in result.steps:
            key = step.graph, at.setdefault(step.graph, 0)
            at[step.graph] += 1
            self.seconds[key] = min(self.seconds.get(key, float("inf")), step.least_ms * 1e-3)
        self.kernels_ms = min(self.kernels_ms, *(wall - rest for wall, rest in zip(walls, around, strict=True)))


def _profiled(
    calls: _Calls, made_for: int, sizes: Sequence[int], seconds: float, progress: Progress | None
) -> list[_Team]:
    """Teams that have run; they take turns, so that a busy machine slows all of them alike."""
    teams = [_Team(size, calls.profiled(made_for, size, progress)) for size in sizes]
    for number in range(_ROUNDS):
        for k, team in enumerate(teams):
            if progress is not None:
                progress("measuring kernels", number * len(teams) + k, _ROUNDS * len(teams))
            team.run(seconds / _ROUNDS)
    return teams


def _graphs(teams: Sequence[_Team]) -> list[MeasuredGraph]:
    found, recorder = [], teams[0].recorder
    kinds = [kind for kind, _, _ in recorder.compiled]
    for number, (kind, done, library) in enumerate(recorder.compiled):
        if not any(graph == number for graph, _ in teams[0].seconds):
            continue  # it was compiled, and is not called
        graph = kernel_graph(done.network, library)
        times = tuple(
            {t.threads: sum(t.seconds.get((number, step), 0.0) for step in steps) for t in teams}
            for steps in graph.steps
        )
        name = kind if kinds.count(kind) == 1 else f"{kind} {kinds[:number].count(kind) + 1}"
        found.append(MeasuredGraph(name, graph, times, recorder.width(done)))
    return found


def planned_graph(measured: MeasuredGraph, machine: TeamRates) -> PlannedGraph:
    """The plan of a graph for a machine."""
    graph = measured.graph
    curves = [curve_of(work, machine, times) for work, times in zip(graph.works, measured.seconds, strict=True)]
    weights = [curve.seconds(1) for curve in curves]
    width, reused = (width_of(g, weights, heaviest(weights)) for g in (graph.data, graph.reused))
    operators = measured.operators or width
    planner = Planner(graph.graph, curves, machine, graph.openings, measured.kind)
    choice = planner.chosen(operators.average)
    kernels = tuple(
        PlannedKernel(
            task.name, task.place, curve.seconds(1) * 1e3, slot.threads, (slot.end - slot.start) * 1e3,
            stops_at(curve, machine.cores.total),
        )
        for task, curve, slot in zip(graph.data.tasks, curves, choice.plan.slots, strict=True)
    )  # fmt: skip
    return PlannedGraph(measured.kind, width, reused, operators, choice, kernels, planner)


def _settings(
    calls: _Calls, teams: Sequence[_Team], seconds: float, notes: list[str], progress: Progress | None
) -> list[MeasuredSetting]:
    """Whole calls with each size of team, and of several at once, in turns."""
    most = teams[-1].threads
    names = {most: ALL, **({4: LATENCY} if most > 4 else {}), **({1: ONE} if most > 1 else {})}
    kernels = {team.threads: team.kernels_ms for team in teams}
    runs: dict[str, Run] = {"dcir": calls.plain(most)}
    runs |= {str(team.threads): calls.plain(team.threads) for team in teams[:-1]}
    ones = Way(most, 1)
    if most > 1 and not calls.training:
        try:
            on_streams = calls.on_streams(ones)
            on_streams()
            runs["streams"] = on_streams
        except (InvalidInput, OptionError) as e:
            notes.append(f"streams are not measured: {e.message}")
    found = []
    for row in measure(runs, seconds, progress=progress):
        if row.name == "streams":
            name = f"{most} calls at once"
            found.append(MeasuredSetting(name, None, row.median / calls_of(ones), row.least / calls_of(ones)))
            continue
        size = most if row.name == "dcir" else int(row.name)
        name = names.get(size, f"{size} threads")
        found.append(MeasuredSetting(name, kernels[size], row.median, row.least))
    return found


def _swept(
    calls: _Calls, recorder: _Recorder, report: ThreadPlanReport, seconds: float, progress: Progress | None
) -> PlanSweep:
    """Every way to share the cores, next to the hint's, and to the guideline's for the graph that takes longest."""
    total, module = report.cores.total, calls.model.module
    pools = min(total, max(report.graphs, key=lambda graph: graph.choice.plan.seconds).operators.pools)
    guideline, hinted, at_once = Way(pools, total // pools), None, not calls.training
    if at_once:
        try:
            hinted = calls.hinted(total)
        except (InvalidInput, OptionError) as e:
            at_once = False
            report.notes.append(f"calls at once are not run: {e.message}")
    weights = [t.nbytes for t in (*module.parameters(), *module.buffers())] if isinstance(module, nn.Module) else []
    predicted = Predicted(
        [graph.planner for graph in report.graphs if graph.planner is not None],
        [row for _, done, _ in recorder.compiled for row in work_of(done.network)], sum(weights),
        max(library.arena_bytes for _, _, library in recorder.compiled), report.rates,
    )  # fmt: skip
    return sweep_of(
        total, calls.way, predicted, seconds, hinted=hinted, guideline=guideline if at_once or pools == 1 else None,
        at_once=at_once, notes=report.notes, progress=progress,
    )  # fmt: skip


def _doubling(most: int) -> list[int]:
    """1, 2, 4, ... and the most."""
    sizes = [1]
    while sizes[-1] * 2 <= most:
        sizes.append(sizes[-1] * 2)
    return [*sizes, most] if sizes[-1] < most else sizes
