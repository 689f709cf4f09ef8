"""One ATen graph, all steps: import, passes, code generation, assembly; and the record of what was done."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._guards import TracingContext

from dcir.codegen.compile import Library, planned_bytes
from dcir.driver.assemble import assemble, buffer_numbers, spaces
from dcir.driver.limit import check, saved_bytes
from dcir.driver.team import fit_team
from dcir.driver.uncompiled import Coverage
from dcir.driver.verify.debug_folder import GraphFolder, graph_folder
from dcir.errors import OptionError, Unsupported
from dcir.frontends.torch.capture import REMARK, SIZES, TOGETHER, CompiledGraph
from dcir.frontends.torch.importer import FIRST_SAVED, Imported, import_graph
from dcir.frontends.torch.partition.cut import PARTITION
from dcir.ir.annotations import Donated
from dcir.ir.network import Network
from dcir.ir.types import itemsize
from dcir.isa import host_isa, require_executable
from dcir.options import Options
from dcir.runtime.blocks import Arenas
from dcir.runtime.program import Program
from dcir.runtime.spaces import Spaces

if TYPE_CHECKING:
    from dcir.driver.measure.tune import Tuner
    from dcir.transforms.base import Pass

# DaCe's configuration is per thread and its generator is not thread safe: one graph is compiled at a time.
_COMPILING = threading.RLock()
# By the package's name: TORCH_LOGS="+dcir" is heard, too.
_LOG = logging.getLogger("dcir")

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, how much of it is done, and how much there is."""

Call = Callable[[Sequence[Any]], list[Any]]

Watch = Callable[[str, Imported, Library, Program], Call]
"""Called with the kind of a graph, its network, its library and its program; gives what is called instead."""


@dataclass
class GraphRecord:
    """What became of one graph.

    Attributes:
        kind: "inference", "forward" or "backward".
        sizes: (place, value) of each symbolic size of the traced graph that this program is for.
        remark: how this program comes to be compiled for those sizes.
        operators: operators after import.
        fallbacks: (operator, place) run through torch.
        passes: the pass runner's records.
        kernels, calls: distinct kernels and driver steps.
        generated: kernels generated now (0: the library came from the cache).
        arena_bytes: planned scratch memory of one call.
        together: a number that a forward and its backward have in common.
        saved_bytes: what a forward keeps for its backward, beyond its inputs and what its caller gets.
        partition: what was decided under a limit of memory (``frontends.torch.partition.Partition``); only of a forward.
        prepared_bytes: memory of values computed from parameters, kept between calls.
        bytes_before, bytes_moved: distinct bytes that all operators of a call touch, before and after the passes.
        threads: size of the team.
        work: per operator of a call, its exact operations and the distinct bytes it touches.
        tuned: (kernel, measured choice, calls) of the kernels that are not as the cost models have them.
        seconds: time per step.
    """

    kind: str
    sizes: tuple[tuple[str, int], ...] = ()
    remark: str = ""
    operators: int = 0
    fallbacks: list[tuple[str, str]] = field(default_factory=list)
    passes: list[Any] = field(default_factory=list)
    kernels: int = 0
    calls: int = 0
    generated: int = 0
    arena_bytes: int = 0
    together: int | None = None
    saved_bytes: int = 0
    partition: Any = None
    prepared_bytes: int = 0
    bytes_before: int = 0
    bytes_moved: int = 0
    threads: int = 1
    work: list[tuple[int, int]] = field(default_factory=list)
    tuned: list[tuple[str, str, int]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """Whether anything had to be generated."""
        return f"{self.generated} generated now" if self.generated else "from the cache"

    def __str__(self) -> str:
        done = f"{self.operators} operators -> {self.calls} calls of {self.kernels} kernels ({self.state})"
        return f"compiled a graph for {self.kind} in {sum(self.seconds.values()):.2f} s: {done}"


@dataclass
class Session:
    """Options and records of one ``optimize`` call.

    Attributes:
        watch: wraps the program of every graph that is compiled for a call; its steps are measured then.
        arenas: scratch memory of all its programs: forward and backward use it in turn.
        programs: those that are alive.
        tuner: measures the kernels of every graph before it is compiled; made where the options ask for it.
        next_step: what to type to read more, for the log.
    """

    options: Options
    graphs: list[GraphRecord] = field(default_factory=list)
    progress: Progress | None = None
    watch: Watch | None = None
    arenas: Arenas = field(default_factory=Arenas)
    programs: weakref.WeakSet[Program] = field(default_factory=weakref.WeakSet)
    tuner: Tuner | None = None
    next_step: str = "model.dcir.explain()"

    def __post_init__(self) -> None:
        if TracingContext.try_get() is None:  # Dynamo guards on the number of threads
            fit_team()

    @functools.cached_property
    def coverage(self) -> Coverage:
        """What of its calls ran uncompiled."""
        return Coverage(strict=self.options.strict)

    def compile_graph(self, gm: fx.GraphModule, kind: str) -> CompiledGraph:
        """Compile one ATen graph (see ``frontends.torch.capture.CompileGraph``)."""
        with _COMPILING, _uncollected():
            return self._compile(gm, kind)

    def _compile(self, gm: fx.GraphModule, kind: str) -> CompiledGraph:
        record = GraphRecord(kind)
        clock = _Clock(record.seconds)
        kept = self._kept(gm, kind)
        done = self._rewritten(gm, record, clock, kept)
        record.together, record.partition = gm.meta.get(TOGETHER), gm.meta.get(PARTITION)
        record.sizes, record.remark = gm.meta.get(SIZES, ()), gm.meta.get(REMARK, "")
        if FIRST_SAVED in gm.meta:
            record.saved_bytes = saved_bytes(done, gm.meta[FIRST_SAVED])
        if kind == "backward" and self.options.target == "cpp":
            # Its code can wait for the first call, but the forward must know now where to put what it keeps.
            program: Call = _Late(lambda: self._finished(done, record, clock, kept)[0])
            place, found = None, spaces(done.network)
        else:
            program, place = self._finished(done, record, clock, kept)
            found = spaces(done.network) if self.options.target == "cpp" else None
        return CompiledGraph(
            program, tuple(_chosen_strides(done, *output) for output in done.outputs), parts(done), place, found
        )  # fmt: skip

    def _finished(
        self, done: Imported, record: GraphRecord, clock: _Clock, kept: GraphFolder | None
    ) -> tuple[Call, Callable[[Spaces], None] | None]:
        """The program of a rewritten graph, and what tells it where its buffers belong."""
        clock.start()
        self._tune(done.network, record, clock)
        if self.options.memory_limit is not None:
            needed = record.saved_bytes + planned_bytes(done.network, record.threads)
            check(self.options.memory_limit, needed)
        program: Call
        place = None
        if self.options.target == "dace":
            from dcir.driver.verify.through_dace import dace_program

            program = dace_program(done, kept.code if kept is not None else None)
            clock.lap("code")
            record.calls = len(done.network.ops())
        else:
            library = self._library(done, record, clock, kept)
            program = made = assemble(done, library, self.arenas, prepare=self.options.prepare)
            self.programs.add(made)
            place = made.place
            if self.watch is not None:
                program = self.watch(record.kind, done, library, program)
            clock.lap("load")
        self._record(record, kept)
        return program, place

    def _kept(self, gm: fx.GraphModule, kind: str) -> GraphFolder | None:
        """Where the steps of a graph are kept, if that is asked for."""
        if self.options.debug_dir is None:
            return None
        kept = graph_folder(self.options.debug_dir, kind)
        kept.graph(gm)
        return kept

    def _record(self, record: GraphRecord, kept: GraphFolder | None) -> None:
        self.graphs.append(record)
        # The first is news, the others are detail.
        _LOG.log(logging.INFO if len(self.graphs) == 1 else logging.DEBUG, "%s; next: %s", record, self.next_step)
        if kept is not None:
            kept.record(record)

    def _tune(self, net: Network, record: GraphRecord, clock: _Clock) -> None:
        """Measure the kernels of a graph if that was asked for."""
        if self.tuner is None and self.options.tune is not None:
            from dcir.driver.measure.tune import Tuner

            self.tuner = Tuner(self.options.tune, progress=self.progress)
        if self.tuner is not None and self.options.target == "cpp":
            # A backward does twice the work of its forward.
            self.tuner.tune(net, record.threads, 1 / 3 if record.kind == "forward" else 1.0)
            clock.lap("tuning")

    def build(self, gm: fx.GraphModule, kind: str) -> tuple[Imported, Library]:
        """Compile one ATen graph to a library, without loading it.

        Raises:
            OptionError: the target is not "cpp".
        """
        if self.options.target != "cpp":
            raise OptionError(
                "a compiled file holds code of target 'cpp' only",
                where=f"target={self.options.target!r}",
                hint=f"dcir.optimize(model, target={self.options.target!r}) runs it in this process",
            )
        with _COMPILING, _uncollected():
            record = GraphRecord(kind, gm.meta.get(SIZES, ()), gm.meta.get(REMARK, ""))
            clock = _Clock(record.seconds)
            kept = self._kept(gm, kind)
            done = self._rewritten(gm, record, clock, kept)
            self._tune(done.network, record, clock)
            library = self._library(done, record, clock, kept)
            self._record(record, kept)
            return done, library

    def rewritten(self, gm: fx.GraphModule) -> Imported:
        """One ATen graph imported and rewritten, without a record of it."""
        with _COMPILING, _uncollected():
            return self._rewritten(gm, GraphRecord("plan"), _Clock({}))

    def _rewritten(
        self, gm: fx.GraphModule, record: GraphRecord, clock: _Clock, kept: GraphFolder | None = None
    ) -> Imported:
        """Import and passes."""
        from dcir.transforms.pipelines import pipeline
        from dcir.transforms.runner import run_passes

        done = import_graph(gm)
        record.operators = len(done.network.ops())
        record.fallbacks = done.fallbacks
        if self.options.strict and done.fallbacks:
            raise Unsupported.collect(
                list(dict.fromkeys(done.fallbacks)), hint="strict=False runs them through torch, one call each"
            )
        clock.lap("import")
        passes = (
            self.options.pipeline
            if self.options.pipeline is not None
            else pipeline(self.options.level, matrix_unit=host_isa().matrix_unit, dots=host_isa().dots)
        )
        hooks: list[Callable[[Pass, Network], None]] = []
        if kept is not None:
            kept.step("import", done.network)
            hooks.append(lambda p, net: kept.step(p.name, net))
        each = self.options.verify == "passes" or bool(os.environ.get("DCIR_VALIDATE"))
        if self.options.verify == "passes":
            from dcir.driver.verify.check import PassChecker

            hooks.append(PassChecker(done.network, seed=0))

        def after(p: Pass, net: Network) -> None:
            for hook in hooks:
                hook(p, net)

        record.bytes_before = done.network.bytes_moved()
        done.network.threads = self.options.threads or torch.get_num_threads()
        record.passes = run_passes(
            done.network,
            passes,  # type: ignore[arg-type]  # Options stands below the passes and cannot name their type
            until=self.options.until,
            after=after if hooks else None,
            validate_each=each,
            progress=self._step("passes"),
        )
        record.bytes_moved = done.network.bytes_moved()
        record.work, record.threads = _work(done.network), self.options.threads or torch.get_num_threads()
        clock.lap("passes")
        return done

    def _library(self, done: Imported, record: GraphRecord, clock: _Clock, kept: GraphFolder | None = None) -> Library:
        """Code of the rewritten network."""
        from dcir.codegen.compile import compile_network

        require_executable()
        library = compile_network(
            done.network, threads=record.threads, progress=self._step("kernels"), profile=self.watch is not None,
            keep=kept.code if kept is not None else None,
        )  # fmt: skip
        clock.lap("code")
        record.kernels, record.calls = library.kernels, library.calls
        record.generated, record.arena_bytes = library.compiled, library.arena_bytes
        record.prepared_bytes = library.prepared_bytes
        record.tuned = _tuned(done.network, library)
        return library

    def _step(self, name: str) -> Callable[[int, int], None] | None:
        show = self.progress
        return None if show is None else lambda done, total: show(name, done, total)


def _tuned(net: Network, library: Library) -> list[tuple[str, str, int]]:
    """The kernels of a library that run a measured choice: what they are, the choice, and in how many steps they run."""
    if not library.tuned:
        return []
    ops = net.ops()
    steps: dict[str, list[int]] = {}
    for kernel, number in library.steps:
        if kernel in library.tuned:
            steps.setdefault(kernel, []).append(number)
    return [(ops[n[0]].spec.describe(), str(library.tuned[kernel]), len(n)) for kernel, n in steps.items()]


def _work(net: Network) -> list[tuple[int, int]]:
    """Operations and distinct bytes of every operator that runs in every call."""
    prepared = net.prepared_ops()
    specs = [op.spec for op in net.ops() if op not in prepared]
    return [(spec.operations(), spec.bytes_moved()) for spec in specs]


def _chosen_strides(done: Imported, kind: str, value: Any) -> tuple[int, ...] | None:
    """Strides of one output if passes were free to choose them."""
    free = kind == "result" and value in done.network.free
    return done.network.results[value].strides if free else None


def parts(done: Imported) -> dict[int, Donated]:
    """Where in which buffer the outputs lie that lie in one."""
    net = done.network
    buffers = buffer_numbers(net)
    found = {}
    for number, (kind, value) in enumerate(done.outputs):
        if kind == "result" and (r := net.results[value]).data in buffers:
            size = net.containers[r.data].nbytes
            found[number] = Donated(buffers[r.data], r.offset * itemsize(r.dtype), size)
    return found


class _Late:
    """A program that is made when it is first called."""

    def __init__(self, make: Callable[[], Call]) -> None:
        self._make: Callable[[], Call] | None = make
        self._program: Call | None = None

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        return (self._program or self._made())(args)

    def _made(self) -> Call:
        with _COMPILING, _uncollected():
            if self._make is not None:
                self._program, self._make = self._make(), None
            assert self._program is not None
            return self._program


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without the cyclic garbage collector, which would walk all of torch and DaCe 0.2 s long and find nothing to free."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Clock:
    def __init__(self, table: dict[str, float]) -> None:
        self.table, self.last = table, time.perf_counter()

    def start(self) -> None:
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.table[name] = self.table.get(name, 0.0) + now - self.last
        self.last = now
