"""One ATen graph, all steps in order: import, passes, tuning, code, program; and the record of what was done."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import fx

from dcir.codegen.compile import Library, planned_bytes
from dcir.driver.calls.background import InTorchAtFirst
from dcir.driver.calls.often import SizesThatComeOften
from dcir.driver.calls.team_of_thread import unpinned
from dcir.driver.clock import Clock
from dcir.driver.gated import run_through
from dcir.driver.one_at_a_time import Late, one_at_a_time
from dcir.driver.placement import backward_blocks, buffer_parts, chosen_strides, saved_bytes
from dcir.driver.record import (
    GraphRecord,
    kernel_origins,
    measured_kernels,
    moving_bounds,
    schedules_of,
    tuned_kernels,
    work_of,
)
from dcir.driver.session import Call, Session
from dcir.driver.targets.base import DriverTarget
from dcir.driver.targets.host import host_target
from dcir.driver.trace_log import compile_id, trace
from dcir.driver.verify.debug_folder import GraphFolder, graph_folder
from dcir.errors import InvalidInput, MemoryLimitTooLow, Unsupported
from dcir.frontends.torch.context import (
    CompiledGraph,
    CompileGraph,
    GraphContext,
    LayoutsAt,
    OtherBounds,
    TooFewValues,
)
from dcir.frontends.torch.gates import Gates
from dcir.frontends.torch.importer import Imported, import_graph
from dcir.ir.moving_network import MovingNetwork
from dcir.ir.network import Network
from dcir.ir.refusal import Refusal
from dcir.ops.reach import on_device
from dcir.report.kept_graph import KeptGraph
from dcir.runtime.donation import Donation
from dcir.runtime.program import Program
from dcir.targets import DEFAULT

if TYPE_CHECKING:
    from dcir.driver.moving_graph import MovingGraph
    from dcir.driver.moving_program import MovingProgram
    from dcir.transforms.base import Pass


def compiling(session: Session) -> CompileGraph:
    """What compiles the graphs that capture hands over (see ``frontends.torch.context.CompileGraph``)."""

    def compiled(gm: fx.GraphModule, context: GraphContext) -> CompiledGraph:
        def at_once() -> CompiledGraph:
            return Compilation(session, context).compiled(gm)

        if session.later is None or not _can_wait(context):
            return at_once()
        return CompiledGraph(InTorchAtFirst(gm, lambda: at_once().call, session.later))

    return unpinned()(compiled)


def _can_wait(context: GraphContext) -> bool:
    """Whether torch can run a graph until its program is there: it writes nothing, and nobody must know how its results lie."""
    return context.kind == "inference" and not context.bounds and not context.updates


def rewritten(session: Session, gm: fx.GraphModule, context: GraphContext) -> Imported:
    """One ATen graph imported and rewritten, without a record of it."""
    with one_at_a_time():
        return Compilation(session, context).rewritten(gm)


class Compilation:
    """One ATen graph on its way to a program.

    Attributes:
        session: the options, and where the record goes.
        context: what is known of the graph.
        target: what it is compiled for.
        device: the kind of device that its tensors are on while it is compiled.
        record: what was done so far.
    """

    def __init__(self, session: Session, context: GraphContext) -> None:
        self.session, self.options, self.context = session, session.options, context
        self.target: DriverTarget = host_target(session.team, session.options.target)
        if session.architectures:
            self.target = self.target.for_architectures(session.architectures)
        self.device = self.target.device()
        self.record = GraphRecord(
            context.kind,
            context.sizes,
            context.remark,
            together=context.pair,
            partition=context.partition,
            bounds=moving_bounds(context),
        )
        self._clock = Clock(self.record.seconds)
        self._kept: GraphFolder | None = None
        self._seen: KeptGraph | None = None
        self._call_name = f"dcir: {session.name} {context.kind}"  # in torch's profiler
        self._number = compile_id()

    def compiled(self, gm: fx.GraphModule) -> CompiledGraph:
        """The graph's program, and what the compilation of its backward must know."""
        if self.context.gathered:
            self.session.gathers()
        with one_at_a_time():
            if self.context.bounds:
                moving = self._moving(gm)
                return CompiledGraph(moving, bounds=moving.graph.bounds)
            self._keep(gm)
            if self.session.keeper is not None:
                self._seen = self.session.keeper.begin(gm, self.context)
            done = self.rewritten(gm)
            parts, strides = buffer_parts(done), chosen_strides(done)
            if self._seen is not None:
                self._seen.outputs, self._seen.settled = done.outputs, (strides, dict(parts))
            if self.context.first_saved is not None:
                self.record.saved_bytes = saved_bytes(done, self.context.first_saved)
            if self.session.without_code:
                return CompiledGraph(self._in_torch(gm, done), strides, parts)
            if (whole := self._whole(done)) is not None:
                return CompiledGraph(whole, strides, parts)
            if self.context.kind == "backward":
                return CompiledGraph(self._backward(done), strides, parts)
            call, program = self._program(done)
            if self.context.kind != "forward" or not parts:
                return CompiledGraph(call, strides, parts)
            donation = Donation(program.place)
            return CompiledGraph(donation.forward(call), strides, parts, donation)

    def _moving(self, gm: fx.GraphModule) -> MovingProgram:
        """The graph's programs for all sizes within bounds; raises what ``built_moving`` does."""
        from dcir.driver.moving_program import MovingProgram

        graph, library = self.built_moving(gm)
        made = MovingProgram(
            graph, library, self.session.arenas, prepare=self.options.prepare, first_saved=self.context.first_saved,
            on_made=self.session.programs.add, gates=self.context.gates, name=self._call_name,
        )  # fmt: skip
        self.session.made[made] = self.record, library
        if self.session.later is not None and self.context.kind == "inference":
            made.often = SizesThatComeOften(graph.values, made.replace, lambda v: self._at(gm, v), self.session.later)
        return made

    def _at(self, gm: fx.GraphModule, values: Mapping[str, int]) -> Program:
        """The program of a graph with symbolic sizes for values of all of them alone."""
        from dcir.frontends.torch.shapes.given_sizes import GivenSizes, places

        names = dict(zip(places(gm), self.context.bound_names, strict=True))
        context = replace(
            self.context, bounds=(), same=(), bound_names=(), remark="sizes that come often",
            sizes=tuple((names[name], value) for name, value in values.items()),
        )  # fmt: skip
        return Compilation(self.session, context).alone(GivenSizes(gm).at(values))

    def alone(self, gm: fx.GraphModule) -> Program:
        """The graph's program, of inference."""
        with one_at_a_time():
            return self._program(self.rewritten(gm))[1]

    def built_moving(self, gm: fx.GraphModule) -> tuple[MovingGraph, Library]:
        """The graph's network for all sizes within bounds, and its library.

        Raises:
            OtherBounds: the graph is another one at other sizes within them, or they hold too few.
            Unsupported: there is no program for all sizes, or something is asked for that belongs to constant ones.
        """
        with one_at_a_time():
            if self.session.keeper is not None:
                self._seen = self.session.keeper.begin(gm, self.context)
            graph = self._moving_graph(gm)
            settle = self.context.settle
            if settle is not None and not self.session.without_code:
                library = self._library_beside(graph, settle)
            else:
                if settle is not None:
                    settle(graph.layouts)
                    self._clock.start()
                library = self._library(graph.network, in_parts=self.context.gates is not None)
            self.record.bounds = moving_bounds(replace(self.context, bounds=graph.bounds))
            self._finish(graph.network)
            return graph, library

    def _moving_graph(self, gm: fx.GraphModule) -> MovingGraph:
        from dcir.driver.moving_graph import moving_graph

        session, options, record = self.session, self.options, self.record
        asked = {
            "verify": options.verify == "passes", "tune": options.tune is not None, "until": options.until is not None,
            "memory_limit": options.memory_limit is not None, "debug_dir": options.debug_dir is not None,
            "profile": session.watch is not None, "target": options.target != DEFAULT,
        }  # fmt: skip
        if any(asked.values()):
            raise Unsupported(f"a program for all sizes with {', '.join(name for name, on in asked.items() if on)}")
        try:
            graph = moving_graph(
                gm,
                self.context,
                self.context.bounds,
                self._pipeline(),
                self.target,
                remarks=options.remarks,
                skip=options.skip,
            )
        except InvalidInput as e:
            raise TooFewValues(f"a program for all sizes: {e.message}") from e
        if isinstance(graph, Refusal):
            raise OtherBounds(f"a program for all sizes: {graph.reason}")
        self._refuse_fallbacks(graph.widest.fallbacks)
        net = graph.network.widest
        record.operators, record.fallbacks, record.passes = graph.operators, graph.widest.fallbacks, graph.passes
        record.bytes_before, record.bytes_moved, record.work = graph.bytes_before, net.bytes_moved(), work_of(net)
        record.threads = self.target.machine.threads
        self._clock.lap("passes")
        return graph

    def built(self, gm: fx.GraphModule) -> tuple[Imported, Library]:
        """The graph's network and library."""
        with one_at_a_time():
            self._keep(gm)
            done = self.rewritten(gm)
            self._tune(done.network)
            library = self._library(done.network)
            self._finish(done.network)
            return done, library

    def built_imported(self, done: Imported) -> tuple[Imported, Library]:
        """The same of a graph that is imported already."""
        with one_at_a_time():
            self._rewrite(done)
            self._tune(done.network)
            library = self._library(done.network)
            self._finish(done.network)
            return done, library

    def rewritten(self, gm: fx.GraphModule) -> Imported:
        """The graph's network after all passes."""
        with on_device(self.device):  # the thread may be one that only runs backwards
            done = import_graph(gm, self.context)
        if self.session.on_import is not None:
            self.session.on_import(gm, done)
        self._rewrite(done)
        return done

    def _rewrite(self, done: Imported) -> None:
        """Run the passes."""
        self.record.operators = len(done.network.ops())
        self.record.fallbacks = done.fallbacks
        self._refuse_fallbacks(done.fallbacks)
        self._clock.lap("import")
        self._passes(done.network)
        self._clock.lap("passes")
        if self.session.on_rewritten is not None:
            self.session.on_rewritten(self.record.kind, done.network)

    def _refuse_fallbacks(self, fallbacks: Sequence[tuple[str, str]]) -> None:
        if self.options.strict and fallbacks:
            raise Unsupported.collect(
                list(dict.fromkeys(fallbacks)), hint="strict=False runs them through torch, one call each"
            )

    def _pipeline(self) -> Sequence[Pass]:
        """The passes to run."""
        options = self.options
        # Options stands below the passes and cannot name their type, nor that of a schedule.
        passes: Any = options.pipeline if options.pipeline is not None else self.target.pipeline(options.level)
        if options.schedule:
            from dcir.transforms.tier1_operator.set_schedules import with_schedules

            passes = with_schedules(passes, options.schedule)  # type: ignore[arg-type]
        return passes  # type: ignore[no-any-return]

    def _passes(self, net: Network) -> None:
        from dcir.transforms.runner import run_passes

        options, record, target = self.options, self.record, self.target
        net.target, record.threads = target, target.machine.threads
        hooks = self._hooks(net)

        def after(p: Pass, net: Network) -> None:
            for hook in hooks:
                hook(p, net)

        record.bytes_before = net.bytes_moved()
        record.passes = run_passes(
            net,
            self._pipeline(),
            until=options.until,
            after=after if hooks else None,
            validate_each=options.verify == "passes" or bool(os.environ.get("DCIR_VALIDATE")),
            progress=self.session.step("passes"),
            remarks=options.remarks,
            skip=options.skip,
            history=None if self._seen is None else self._seen.history,
        )
        record.bytes_moved, record.work = net.bytes_moved(), work_of(net)

    def _hooks(self, net: Network) -> list[Callable[[Pass, Network], None]]:
        """What is called after every pass that changed something."""
        hooks: list[Callable[[Pass, Network], None]] = []
        if (kept := self._kept) is not None:
            kept.step("import", net)
            hooks.append(lambda p, net: kept.step(p.name, net))
        if self.options.verify == "passes":
            from dcir.driver.verify.check import PassChecker

            hooks.append(PassChecker(net, seed=0))
        return hooks

    def _backward(self, done: Imported) -> Call:
        """A backward's program; its code can wait for the first call, but its forward must know now where to put what it keeps."""
        gates = self.context.gates if self.session.watch is None else None
        call: Call = (
            Late(lambda: self._program(done)[0], self.session.on_late) if gates is None else self._gated(done, gates)
        )
        blocks, forward = backward_blocks(done.network), self.context.forward
        if blocks is None:
            return call
        assert forward is not None and forward.donation is not None, "what is donated lies in buffers of a forward"
        donated: Call = forward.donation.backward(call, blocks)
        return donated

    def _gated(self, done: Imported, gates: Gates) -> Call:
        """A backward's program that gates run part by part."""

        def made() -> Call:
            program = self._program(done, in_parts=True)[1]
            return lambda args: run_through(gates, program, args)

        return Late(made)

    def _program(self, done: Imported, *, in_parts: bool = False) -> tuple[Call, Program]:
        """What runs a rewritten graph: what is called, and the program itself."""
        self._clock.start()
        self._prepare(done)
        library = self._library(done.network, in_parts=in_parts)
        program = self.target.load(done, library, self.session.arenas, prepare=self.options.prepare)
        program.name = self._call_name
        if self.options.cuda_graphs and self.session.watch is None:
            self._replay(program)
        self.session.programs.add(program)
        self.session.made[program] = self.record, library
        watch = self.session.watch
        call = program if watch is None else watch(self.record.kind, done, library, program)
        self._clock.lap("load")
        self._finish(done.network)
        return call, program

    def _replay(self, program: Program) -> None:
        """Have calls be replays of one that is recorded, where that is possible."""
        self.record.unrecorded = self.target.replay(program)
        if self.record.unrecorded and self.options.strict:
            raise Unsupported.collect(
                [(f"a graph of CUDA's: {self.record.unrecorded}", "")], hint="strict=False, or cuda_graphs=False"
            )

    def _whole(self, done: Imported) -> Call | None:
        """What runs a rewritten graph if another compiler makes all of its code."""
        self._clock.start()
        program: Call | None = self.target.whole_program(done, self._kept.code if self._kept is not None else None)
        if program is None:
            return None
        self._clock.lap("code")
        self.record.calls = len(done.network.ops())
        self._finish(done.network)
        return program

    def _in_torch(self, gm: fx.GraphModule, done: Imported) -> Call:
        """What stands for the code of a rewritten graph where none is to be made: the graph before it was rewritten, run by torch."""
        self._clock.start()
        self._prepare(done)
        self._library(done.network)
        self._finish(done.network)
        return lambda args: list(gm(*args))

    def _prepare(self, done: Imported) -> None:
        """What comes before the code.

        Raises:
            MemoryLimitTooLow: the graph needs more memory than the options allow.
        """
        self._tune(done.network)
        self.record.library_bytes = self.target.beside_plan(done.network)
        limit = self.options.memory_limit
        if limit is not None:
            needed = self.record.saved_bytes + planned_bytes(done.network) + self.record.library_bytes
            if needed > limit:
                raise MemoryLimitTooLow.of(limit, needed)

    def _tune(self, net: Network) -> None:
        """Measure the kernels of a graph if that was asked for."""
        session, options = self.session, self.options
        if session.tuner is None and options.tune is not None:
            from dcir.driver.measure.tune import Tuner

            session.tuner = Tuner(options.tune, progress=session.progress)
        if session.tuner is not None and self.target.tunes:
            # A backward does twice the work of its forward.
            session.tuner.tune(net, 1 / 3 if self.record.kind == "forward" else 1.0)
            self._clock.lap("tuning")

    def _library(self, net: Network | MovingNetwork, *, in_parts: bool = False) -> Library:
        """Code of a rewritten network."""
        from dcir.codegen.compile import compile_network

        self.target.refuse()
        library = compile_network(
            net, progress=self.session.step("kernels"),
            profile=self.session.watch is not None, keep=self._hear_code(),
            in_parts=in_parts, recorded=self.options.record_function and self.session.watch is None,
            build=not self.session.without_code,
        )  # fmt: skip
        return self._noted(net, library)

    def _library_beside(self, graph: MovingGraph, settle: Callable[[LayoutsAt], None]) -> Library:
        """Code of a forward for all sizes: compilers run while its backward is rewritten."""
        from dcir.codegen.compile import begun_network

        self.target.refuse()
        with begun_network(
            graph.network, progress=self.session.step("kernels"), keep=self._hear_code(),
            in_parts=self.context.gates is not None, recorded=self.options.record_function,
        ) as library:  # fmt: skip
            self._clock.lap("code")
            settle(graph.layouts)
            self._clock.start()
            return self._noted(graph.network, library())

    def _noted(self, net: Network | MovingNetwork, library: Library) -> Library:
        """The library, of which the record says what is known."""
        record = self.record
        self._clock.lap("code")
        record.kernels, record.calls = library.kernels, library.calls
        record.generated, record.arena_bytes = library.compiled, library.arena_bytes
        record.prepared_bytes, record.parts = library.prepared_bytes, library.parts
        record.tuned, record.schedules = tuned_kernels(net, library), schedules_of(library)
        record.measured = measured_kernels(library)
        record.kernel_origins, record.origins = kernel_origins(net, library)
        record.key = library.key
        if self._seen is not None:
            self._seen.library = library
        return library

    def _hear_code(self) -> Callable[[str, str], None] | None:
        """What hears the name and the text of every piece of code, if somebody wants to."""
        heard: list[Callable[[str, str], None]] = []
        if self._kept is not None:
            heard.append(self._kept.code)
        if self._seen is not None:
            heard.append(self._seen.texts.__setitem__)
        if not heard:
            return None

        def hear(name: str, text: str) -> None:
            for each in heard:
                each(name, text)

        return hear

    def _keep(self, gm: fx.GraphModule) -> None:
        """Keep the steps of the graph in a folder, if that is asked for."""
        if self.options.debug_dir is not None:
            self._kept = graph_folder(self.options.debug_dir, self.context.kind)
            self._kept.graph(gm)

    def _finish(self, net: Network | MovingNetwork) -> None:
        """The record is complete; ``net`` is what runs."""
        self.session.add(self.record)
        trace(self.record, net, self._number)
        if self._seen is not None:
            self._seen.end(self.record, net)
        if self._kept is not None:
            self._kept.record(self.record)
