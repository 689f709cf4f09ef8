"""Network SDFG to shared library: plan every distinct kernel, generate and compile what the cache lacks, link once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dcir.cache import Cache, key_of
from dcir.codegen.backend import Backend, Kernel, PrintsBefore, Shared, Steps
from dcir.codegen.choices import MODELS, Choice
from dcir.codegen.invocations import Invocation, Types, invocations
from dcir.codegen.moving_kernel import moving_kernel
from dcir.codegen.parts import Parts, parts_of
from dcir.codegen.placement import Placement, ScratchMemory
from dcir.codegen.regions import Made, RegionPlanner
from dcir.codegen.registry import Emitters
from dcir.codegen.steps import AnyStep, Call, Flow, Numbers, Place
from dcir.codegen.symbolic import Names
from dcir.codegen.tuned import Database, Times
from dcir.cost.machine import Machine
from dcir.cost.target import Target, target_of
from dcir.errors import CompilerNotFound, InvalidSchedule, Unsupported
from dcir.identity import foreign_identity, source_identity
from dcir.ir.dace.nodes import Op
from dcir.ir.memory_plan import PREPARED
from dcir.ir.moving_network import MovingNetwork, polynomials
from dcir.ir.network import Network, Operand
from dcir.ir.operator import Operator
from dcir.ir.origins import Numbers as Imported
from dcir.ir.origins import union
from dcir.ir.refusal import Refusal
from dcir.ir.schedule import Schedule
from dcir.ops.library.regions import Region


@dataclass
class Library:
    """A compiled network.

    Attributes:
        path: the shared library.
        arena_bytes: size of the arena ``table[0]`` must point to (64-byte aligned).
        prepared_bytes: size of the block of prepared values ``table[1]`` must point to (64-byte aligned).
        static: inputs and constants that prepared values depend on.
        slots: table slot of every input, constant and result container.
        table_size: number of table entries.
        callbacks: per call into torch: (number, spec, input places, output places).
        kernels: distinct kernels.
        calls: steps of the driver.
        compiled: kernels that were generated now rather than found in the cache.
        origins: per operator, its place in the user's model.
        steps: per step of the driver, the kernel's name (None: a call into torch) and the operator's number.
        tuned: the measured choices of the kernels that are not as the cost models have them, by name.
        measured: of kernels that were tuned, what their choices took, by name.
        sizes_slot: table slot of the values of the sizes, -1 if none move.
        schedules: by name what each kernel is, and what it was printed from; None of those that have one form only.
        jobs: by name how many independent pieces each phase of a kernel has; none of kernels for which sizes move.
        parts: how many the driver can be run in, one after the other.
        stops: numbers of the steps that each part but the first begins with; of a driver that measures its steps, which runs as a
            whole, as they would be.
        ready: with which part each result container is complete, -1 for those that no step writes.
        came_from: by name of a kernel, the imported operators that the operators which run it came from.
        recorded: whether the driver can tell torch's profiler of its steps.
        key: what it is found again by; "" where nobody asked for the library, and there is no compiler to make it.
    """

    path: Path
    arena_bytes: int
    prepared_bytes: int
    static: tuple[str, ...]
    slots: dict[str, int]
    table_size: int
    callbacks: dict[int, tuple[Any, tuple[Place, ...], tuple[Place, ...]]]
    kernels: int
    calls: int
    compiled: int = 0
    origins: list[str] = field(default_factory=list)
    steps: tuple[tuple[str | None, int], ...] = ()
    tuned: dict[str, Choice] = field(default_factory=dict)
    measured: dict[str, Times] = field(default_factory=dict)
    sizes_slot: int = -1
    schedules: dict[str, tuple[str, Schedule | None]] = field(default_factory=dict)
    jobs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parts: int = 1
    stops: tuple[int, ...] = ()
    ready: dict[str, int] = field(default_factory=dict)
    came_from: dict[str, Imported] = field(default_factory=dict)
    recorded: bool = False
    key: str = ""

    def choice_of(self, kernel: str) -> str | None:
        """What a kernel's measured choice is called; None of one that was not measured."""
        known = kernel in self.tuned or kernel in self.measured
        return str(self.tuned.get(kernel, MODELS)) if known else None


def compile_network(
    net: Network | MovingNetwork,
    *,
    cache: Cache | None = None,
    progress: Callable[[int, int], None] | None = None,
    profile: bool = False,
    choices: Mapping[str, Choice] | None = None,
    keep: Callable[[str, str], None] | None = None,
    in_parts: bool = False,
    recorded: bool = False,
    build: bool = True,
) -> Library:
    """Generate, compile and link a network for its target; with ``profile``, the driver measures its steps.

    Without ``build`` nothing is compiled: what is returned says all that is known before, and has no path.

    ``choices`` are the emitters' by operator label, instead of those that the database has. ``keep`` hears the name and the text
    of every piece of code, made for it if the library is found in the cache. With ``in_parts`` the driver can stop where results
    are complete; ``recorded`` asks for one that can tell torch's profiler of its steps.

    Raises:
        CompilerNotFound, CompilerFailed: no compiler, or it refused the generated code.
        InvalidGraph: the network is new, and DaCe does not validate it; or it has no target.
        Unsupported: an operator that no emitter knows; or sizes move, and one has no kernel for all of them.
        InvalidSchedule: a node asks for a schedule that its kernel cannot have.
    """
    code = _Code.of(net, cache, progress, keep, profile, choices, in_parts=in_parts, recorded=recorded)
    return (
        code.library(*code.built()) if build else code.library(Path(), 0, _key(code.planned, code.driver, code.cache))
    )


@contextmanager
def begun_network(
    net: Network | MovingNetwork,
    *,
    cache: Cache | None = None,
    progress: Callable[[int, int], None] | None = None,
    keep: Callable[[str, str], None] | None = None,
    in_parts: bool = False,
    recorded: bool = False,
) -> Iterator[Callable[[], Library]]:
    """``compile_network`` in two steps: compilers run behind the caller, and what is yielded waits for the library.

    Leaving waits, too: whoever is interrupted leaves neither compilers nor halves of files behind.

    Raises:
        what ``compile_network`` does, a compiler's error where the library is asked for.
    """
    code = _Code.of(net, cache, progress, keep, in_parts=in_parts, recorded=recorded)
    if (printed := code.printed()) is None:
        yield lambda: code.library(*code.built())
        return
    with ThreadPoolExecutor(1, thread_name_prefix="dcir-library") as one:
        built = one.submit(printed.built)
        yield lambda: code.library(*built.result())


@dataclass(frozen=True)
class _Code:
    """A network's code on its way to a library.

    Attributes:
        net: the network, at the widest of its sizes if they move.
        planned, driver, parts, stops: its kernels and calls, what runs them, in how many parts.
        kernels: those that have code.
        validated: whether DaCe has looked at the network.
    """

    net: Network
    planned: _PlannedCode
    driver: str
    parts: Parts
    stops: tuple[int, ...]
    kernels: list[Kernel]
    recorded: bool
    cache: Cache
    progress: Callable[[int, int], None] | None
    validated: bool = False

    @staticmethod
    def of(
        net: Network | MovingNetwork,
        cache: Cache | None,
        progress: Callable[[int, int], None] | None,
        keep: Callable[[str, str], None] | None,
        profile: bool = False,
        choices: Mapping[str, Choice] | None = None,
        *,
        in_parts: bool,
        recorded: bool,
    ) -> _Code:
        """Code of a network; the arguments are those of ``compile_network``."""
        moving, net = (net, net.widest) if isinstance(net, MovingNetwork) else (None, net)
        cache, target = cache or Cache.default(), target_of(net)
        planned = _PlannedCode(net, target, cache, choices, moving)
        parts = parts_of(net, planned.calls) if in_parts or profile else Parts()
        stops = () if profile else parts.stops
        driver = planned.backend.driver_text(replace(planned.steps(), stops=stops, recorded=recorded), profile=profile)
        if keep is not None:
            keep("driver", driver)
            for k in planned.made():
                keep(k.name, planned.backend.kernel_text(k))
        return _Code(net, planned, driver, parts, stops, planned.made(), recorded, cache, progress)

    def printed(self) -> _Code | None:
        """The same where ``built`` only waits for compilers; None if it need not, or there is no telling."""
        backend = self.planned.backend
        if not isinstance(backend, PrintsBefore) or self.cache.path_of("graph", self._key(), ".so") is not None:
            return None
        self.net.validate()
        return replace(self, kernels=[backend.printed(k) for k in self.kernels], validated=True)

    def built(self) -> tuple[Path, int, str]:
        """The shared library, how many kernels were compiled for it now (all of them or none), and its key."""
        planned, key, compiled = self.planned, self._key(), 0

        def build(draft: Path) -> None:
            nonlocal compiled
            if not self.validated:
                self.net.validate()
            compiled = len(self.kernels)
            planned.backend.build(draft, key, self.driver, self.kernels, planned.machine, self.cache, self.progress)

        # One look-up by what the graph is, so that a later process neither generates nor hashes any kernel's text.
        return self.cache.get_or_build("graph", key, ".so", build), compiled, key

    def library(self, path: Path, compiled: int, key: str) -> Library:
        """What is known of the library at a path."""
        net, planned = self.net, self.planned
        return Library(
            path, planned.arena_bytes, net.memory.nbytes(PREPARED), planned.static, planned.places.slots, planned.table_size,
            planned.callbacks, len(planned.names()), len(planned.calls), compiled, [op.origin for op in net.ops()],
            tuple((_name(net, c), c.number) for c in planned.calls), planned.tuned, planned.measured, planned.sizes_slot,
            {k.name: (planned.described[k.name], k.plan.schedule) for k in self.kernels}, _jobs(self.kernels),
            len(self.stops) + 1, self.parts.stops, self.parts.ready,
            {name: union(found) for name, found in planned.came_from.items()}, self.recorded, key,
        )  # fmt: skip

    def _key(self) -> str:
        planned = self.planned
        return _key_of(planned, self.driver, planned.backend.identity(planned.machine, self.cache))


def _key(planned: _PlannedCode, driver: str, cache: Cache) -> str:
    """The key that the library of planned code would have; "" without a compiler."""
    try:
        return _key_of(planned, driver, planned.backend.identity(planned.machine, cache))
    except CompilerNotFound:
        return ""


def _key_of(planned: _PlannedCode, driver: str, identity: str) -> str:
    return key_of(source_identity(), planned.backend.emitters.target, identity, driver, "\0".join(planned.names()))


class _PlannedCode:
    """What becomes of a network's operators: kernels, and the driver's calls of them.

    Attributes:
        places, scratch: where operands lie, and the kernels' own memory behind them.
        kernels: by what decides their text.
        described: what each is for, by name.
        came_from: what each came from, in each of its runs, by name.
        calls: of every call, into kernels and into torch; those of ``prepares`` run when static inputs have changed.
        callbacks: per call into torch: (number, spec, input places, output places).
        tuned: the measured choices of the kernels that are not as the cost models have them, by name.
        moving: the network whose sizes move, if they do; ``net`` has its structure and its plan of the memory.
    """

    def __init__(
        self,
        net: Network,
        target: Target,
        cache: Cache,
        choices: Mapping[str, Choice] | None,
        moving: MovingNetwork | None = None,
    ) -> None:
        self.net, self.machine, self.given, self.moving = net, target.machine, choices, moving
        self.symbols = None if moving is None else Names.of(moving.sizes, moving.usual())
        self.backend: Backend = target.backend
        self.database = Database(self.machine, self.backend.emitters, source_identity(), cache)
        prepared = net.prepared_ops()
        anew = set() if moving is None else _of_sizes(net, moving, prepared)
        self.places = Placement(net, [o.data for op in net.ops() if op in anew for o in net.outs(op)])
        self._updated = {self.places.slots[new]: self.places.slots[old] for new, old in net.updates.items()}
        self.scratch = ScratchMemory(net)
        self.kernels: dict[Any, Kernel] = {}
        self.tuned: dict[str, Choice] = {}
        self.measured: dict[str, Times] = {}
        self.described: dict[str, str] = {}
        self.came_from: dict[str, dict[Imported, None]] = {}
        self.calls: list[AnyStep] = []
        self.prepares: list[AnyStep] = []
        self.callbacks: dict[int, tuple[Any, tuple[Place, ...], tuple[Place, ...]]] = {}
        prepared -= anew
        self._prepared = {op.label for op in prepared}
        self._regions = RegionPlanner(self._made, self.machine.threads)
        self.static = _static(net, prepared)
        for invocation in invocations(net, self.machine.threads):
            self._add(invocation)

    @property
    def sizes_slot(self) -> int:
        """Table slot of the sizes' values: behind all others."""
        return -1 if self.moving is None else self.places.count

    @property
    def table_size(self) -> int:
        """Slots of the table."""
        return self.places.count + (self.moving is not None)

    @property
    def arena_bytes(self) -> int:
        """Size of the arena: what the plan says, and the scratch memory of kernels."""
        return self.places.end + self.scratch.all

    def steps(self) -> Steps:
        """What the driver does."""
        scratch = [Place(0, self.places.end, 0, lane) for lane in (0, self.scratch.of_lane)]
        calls, prepares = (
            [_with_scratch(c, scratch[c.stream >= 0]) if isinstance(c, Call) and c.kernel else c for c in part]
            for part in (self.calls, self.prepares)
        )
        static = [(self.places.slots[n], self.net.containers[n].nbytes) for n in self.static]
        flows = [Flow(s.images, s.lanes) for s in self.net.streams]
        names = () if self.symbols is None else self.symbols.sizes
        overwriting = frozenset(
            i for i, op in enumerate(self.net.ops()) if any(o.data in self.net.updates for o in self.net.outs(op))
        )
        return Steps(calls, prepares, static, flows, (self.sizes_slot, names), overwriting=overwriting)

    def names(self) -> list[str]:
        """Names of all kernels; one that runs both by itself and in a stream counts once."""
        return sorted({k.name for k in self.kernels.values()})

    def made(self) -> list[Kernel]:
        """The kernels that have code."""
        return [k for k in {k.name: k for k in self.kernels.values()}.values() if k.plan.phases]

    def _add(self, run: Invocation) -> None:
        spec, operands = (run.spec, (run.ins, run.outs)) if self.moving is None else self._for_all_sizes(run)
        ins, outs = (tuple(self.places.place(o, run.stream) for o in side) for side in operands)
        if run.calls_torch:
            self.callbacks[run.number] = (spec, ins, outs)
            self.calls.append(Call(None, run.number, (), False, False))
            return
        prepares = run.label in self._prepared
        if isinstance(spec, Region) and isinstance(run.spec, Region):
            step, end = self._regions.plan(spec, run.spec, run.number, ins, outs, self.places.end)
            self.scratch.add(end - self.places.end, -1)
            (self.prepares if prepares else self.calls).append(step)
            return
        table: tuple[Numbers | Place, ...] = ()
        if prepares and run.schedule is None and (found := self.backend.size_generic(run.spec, self.machine)):
            table = (Numbers(found[1]),)
            k = self._kernel(run, found[0], ((*run.types[0], "i64"), run.types[1]), MODELS)
        elif spec is not run.spec:
            table = (Place(self.sizes_slot, 0),)
            k = self._moving_kernel(run, spec, self._shared(run.types, ins, outs))
        else:
            given = self.given.get(run.label, MODELS) if self.given is not None else None
            k = self._kernel(run, run.spec, run.types, given, self._shared(run.types, ins, outs))
        self.scratch.add(k.plan.scratch, run.stream)
        if k.plan.phases:
            call = Call(k.name, run.number, (*ins, *table, *outs), k.parallel, k.checked, run.stream)
            (self.prepares if prepares else self.calls).append(call)

    def _shared(self, types: Types, ins: Sequence[Place], outs: Sequence[Place]) -> Shared:
        """The operands that lie where an input does that is updated in place, and that input (``Kernel.shared``)."""
        written = {
            f"o{i}": (replace(place, slot=self._updated[place.slot]), t)
            for i, (place, t) in enumerate(zip(outs, types[1], strict=True))
            if place.slot in self._updated
        }
        read = {f"a{i}": found for i, found in enumerate(zip(ins, types[0], strict=True))}
        first = {found: name for name, found in reversed(read.items()) if found in written.values()}
        both = {name: first.get(found, name) for name, found in (read | written).items()}
        return tuple((name, other) for name, other in both.items() if name != other)

    def _for_all_sizes(self, run: Invocation) -> tuple[Operator, tuple[list[Operand], list[Operand]]]:
        """The spec of an operator with what moves in it, which is its own spec if nothing does; and its operands."""
        assert self.moving is not None
        op = self.moving.operators[run.label]
        ins, outs = (
            [Operand(o.data, n) for o, n in zip(side, offsets, strict=True)]  # type: ignore[arg-type]  # a number that moves
            for side, offsets in ((run.ins, op.in_offsets), (run.outs, op.out_offsets))
        )
        moves = next(polynomials(op.spec), None) is not None
        return op.spec if moves else run.spec, (ins, outs)

    def _made(self, run: Invocation, spec: Operator) -> Made:
        """The kernel of an operator in a body, whose spec it is with what moves."""
        sizes = None
        if next(polynomials(spec), None) is not None:
            k, sizes = self._moving_kernel(run, spec), Place(self.sizes_slot, 0)
        else:
            k = self._kernel(run, run.spec, run.types, None if self.given is None else MODELS)
        return Made(k.name if k.plan.phases else "", k.parallel, k.checked, k.plan.scratch, sizes)

    def _moving_kernel(self, run: Invocation, spec: Operator, shared: Shared = ()) -> Kernel:
        """The kernel of a spec for all sizes, the last of whose inputs is the table of these."""
        assert self.symbols is not None and self.moving is not None
        types = (*run.types[0], "i64"), run.types[1]
        key = (spec, types, run.schedule, shared)
        if key not in self.kernels:
            emitters = self.backend.emitters
            with _placed(run):
                plan = moving_kernel(emitters, spec, self.symbols, self.machine, len(run.types[0]), run.schedule)
            if isinstance(plan, Refusal):
                raise Unsupported.collect([(plan.reason, "")])
            sizes = repr(sorted(self.moving.sizes.items())), repr(sorted(self.moving.usual().items()))
            digest = key_of(
                source_identity(), emitters.target, foreign_identity(emitters.makers(spec)), repr(spec), repr(types),
                self.machine.key, *sizes, *_named(run.schedule, shared),
            )  # fmt: skip
            self._keep(key, run, Kernel(f"k{digest[:20]}", plan, *types, shared))
        self.came_from.setdefault(self.kernels[key].name, {})[run.came_from] = None
        return self.kernels[key]

    def _kernel(self, run: Invocation, spec: Any, types: Types, given: Choice | None, shared: Shared = ()) -> Kernel:
        """The kernel of a spec, made at its first use; ``given`` is the emitter's choice where the database is not asked."""
        schedule, team = run.schedule, run.team
        given = given if schedule is None else MODELS  # what was measured belongs to the target's own schedule
        key = (spec, types, team, given, schedule, shared)
        if key not in self.kernels:
            emitters = self.backend.emitters
            verdict = self.database.find(spec, types, team) if given is None else None
            choice = self.database.chosen(spec, verdict) if given is None else given
            # Without a choice the name is that of every compilation before there were any.
            made_by = foreign_identity(emitters.makers(spec))
            digest = key_of(
                source_identity(), emitters.target, made_by, repr(spec), repr(types), self.machine.key,
                *[repr(choice)] * bool(choice), *_named(schedule, shared),
            )  # fmt: skip
            with _placed(run):
                plan = emitters.plan(spec, self.machine, choice, schedule)
            self._keep(key, run, Kernel(f"k{digest[:20]}", plan, *types, shared))
            if choice:
                self.tuned[self.kernels[key].name] = choice
            if verdict is not None and verdict.times:
                self.measured[self.kernels[key].name] = verdict.times
        self.came_from.setdefault(self.kernels[key].name, {})[run.came_from] = None
        return self.kernels[key]

    def _keep(self, key: Any, run: Invocation, kernel: Kernel) -> None:
        self.kernels[key] = kernel
        self.described[kernel.name] = run.spec.describe()


def planned_bytes(net: Network) -> int:
    """Size of the arena of a network's library, known without generating code for the library."""
    target = target_of(net)
    emitters, machine = target.backend.emitters, target.machine
    database = Database(machine, emitters, source_identity(), Cache.default())
    scratch, places = ScratchMemory(net), Placement(net)

    def of(run: Invocation) -> int:
        choice = MODELS if run.schedule is not None else database.choice(run.spec, run.types, run.team)
        return _scratch(emitters, run.spec, machine, choice, run.schedule)

    regions = RegionPlanner(lambda run, _: Made("", False, False, of(run)), machine.threads)
    for run in invocations(net, machine.threads):
        if isinstance(run.spec, Region):
            ins, outs = ([places.place(o) for o in side] for side in (run.ins, run.outs))
            scratch.add(regions.plan(run.spec, run.spec, run.number, ins, outs, places.end)[1] - places.end, -1)
        elif not run.calls_torch:
            scratch.add(of(run), run.stream)
    return places.end + scratch.all


@functools.lru_cache(maxsize=4096)
def _scratch(emitters: Emitters, spec: Operator, machine: Machine, choice: Choice, schedule: Schedule | None) -> int:
    return emitters.plan(spec, machine, choice, schedule).scratch


@contextmanager
def _placed(run: Invocation) -> Iterator[None]:
    """Say of a schedule that cannot be had which operator asks for it."""
    try:
        yield
    except InvalidSchedule as e:
        e.where = " ".join(filter(None, (run.label, run.origin)))
        raise


def _named(schedule: Schedule | None, shared: Shared) -> list[str]:
    """What a schedule and shared operands add to what decides a kernel's name: nothing where there are none."""
    return [*([] if schedule is None else [repr(schedule)]), *[repr(shared)] * bool(shared)]


def _of_sizes(net: Network, moving: MovingNetwork, prepared: set[Op]) -> set[Op]:
    """Prepared operators that belong to a call, since their results depend on the sizes, and those that make what these read on the way.

    A result of theirs lies with what belongs to a call, as a whole.
    """
    anew = {op for op in prepared if next(polynomials(moving.operators[op.label]), None) is not None}
    before: set[Op] = set()
    while anew != before:
        before = set(anew)
        written = {o.data for op in anew for o in net.outs(op)}
        # What does not outlive the preparation has to be made again: what these read on the way, and the rest of what they write a part
        # of, as a row in front of a table that is cut.
        passing = {o.data for op in anew for o in net.ins(op)} - {
            name for name, place in net.memory.placements.items() if place.block == PREPARED
        }
        for op in prepared:
            if not written.isdisjoint(o.data for o in (*net.ins(op), *net.outs(op))) or not passing.isdisjoint(
                o.data for o in net.outs(op)
            ):
                anew.add(op)
    return anew


def _static(net: Network, prepared: set[Op]) -> tuple[str, ...]:
    """Inputs and constants that prepared operators read, in the order of the containers."""
    read = {o.data for op in prepared for o in net.ins(op)}
    return tuple(n for n, c in net.containers.items() if n in read and c.role in ("input", "constant") and c.size)


def _name(net: Network, step: AnyStep) -> str | None:
    """What a step runs: a kernel's name, None for torch; of a loop or branch its kind."""
    return step.kernel if isinstance(step, Call) else net.ops()[step.number].spec.kind


def _jobs(kernels: Sequence[Kernel]) -> dict[str, tuple[int, ...]]:
    """Of each kernel the jobs of its phases, where they are numbers."""
    rows = {k.name: tuple(p.jobs for p in k.plan.phases) for k in kernels}
    return {name: jobs for name, jobs in rows.items() if all(isinstance(n, int) for n in jobs)}


def _with_scratch(call: Call, place: Place) -> Call:
    return replace(call, operands=(*call.operands, place))
