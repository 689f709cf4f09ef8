"""Network SDFG to shared library: plan every distinct kernel, generate and compile what the cache lacks, link once."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dcir.cache import Cache, key_of
from dcir.codegen.choices import MODELS, Choice
from dcir.codegen.cpp.kernels.size_generic import sizeless
from dcir.codegen.cpp.print_driver import BESIDE, Call, Flow, Numbers, Place, driver_text
from dcir.codegen.cpp.print_kernel import HEADER, kernel_body
from dcir.codegen.cpp.toolchain import Toolchain, Unit, compile_objects, default_flags, link_shared
from dcir.codegen.invocations import Invocation, Types, invocations
from dcir.codegen.plan import KernelPlan
from dcir.codegen.registry import Machine, makers, plan
from dcir.codegen.tuned import Database
from dcir.identity import foreign_identity, source_identity
from dcir.ir.dace.nodes import Op
from dcir.ir.memory_plan import ARENA, PREPARED, aligned
from dcir.ir.network import Network, Operand
from dcir.ir.operator import Operator
from dcir.ir.types import itemsize
from dcir.isa import host_isa


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


@dataclass
class _Kernel:
    name: str
    plan: KernelPlan
    ins: tuple[str, ...]
    outs: tuple[str, ...]

    def text(self) -> str:
        return kernel_body(self.plan, self.ins, self.outs, self.name)

    @property
    def parallel(self) -> bool:
        return any(p.jobs != 1 for p in self.plan.phases)

    @property
    def checked(self) -> bool:
        return any("status" in p.code for p in self.plan.phases)


def compile_network(
    net: Network,
    *,
    threads: int,
    cache: Cache | None = None,
    progress: Callable[[int, int], None] | None = None,
    profile: bool = False,
    choices: Mapping[str, Choice] | None = None,
    keep: Callable[[str, str], None] | None = None,
) -> Library:
    """Generate, compile and link a network; with ``profile``, the driver measures its steps (``cpp/print_driver.py``).

    ``choices`` are the emitters' by operator label, instead of those that the database has. ``keep`` hears the name and the text
    of every piece of code, made for it if the library is found in the cache.

    Raises:
        CompilerNotFound, CompilerFailed: no compiler, or it refused the generated code.
        InvalidGraph: the network is new, and DaCe does not validate it.
        Unsupported: an operator that no emitter knows.
    """
    cache = cache or Cache.default()
    planned = _PlannedCode(net, threads, cache, choices)
    driver = planned.driver(profile=profile)
    made = planned.made()
    if keep is not None:
        keep("driver", driver)
        for k in made:
            keep(k.name, HEADER + k.text())
    path, compiled = _library(net, driver, planned.names(), made, cache, progress)
    return Library(
        path, planned.arena_bytes, net.memory.nbytes(PREPARED), planned.static, planned.places.slots, planned.places.count,
        planned.callbacks, len(planned.names()), len(planned.calls), compiled, [op.origin for op in net.ops()],
        tuple((c.kernel, c.number) for c in planned.calls), planned.tuned,
    )  # fmt: skip


def _library(
    net: Network, driver: str, names: Sequence[str], made: Sequence[_Kernel], cache: Cache,
    progress: Callable[[int, int], None] | None,
) -> tuple[Path, int]:  # fmt: skip
    """The shared library of a driver and kernels, and how many kernels were compiled for it now: all of them or none."""
    toolchain, flags = Toolchain.find(cache), default_flags()
    key = key_of(source_identity(), toolchain.identity, repr(flags), driver, "\0".join(names))
    compiled = 0

    def build(draft: Path) -> None:
        nonlocal compiled
        net.validate()
        compiled = len(made)
        texts = sorted(k.text() for k in made)
        units = [Unit("", driver), Unit("", BESIDE), *(Unit("", text, HEADER) for text in texts)]
        objects = compile_objects(units, toolchain, flags, cache, None, progress)
        shutil.copyfile(link_shared(objects, key, toolchain, cache), draft)

    # One look-up by what the graph is, so that a later process neither generates nor hashes any kernel's text.
    return cache.get_or_build("graph", key, ".so", build), compiled


class _PlannedCode:
    """What becomes of a network's operators: kernels, and the driver's calls of them.

    Attributes:
        places, scratch: where operands lie, and the kernels' own memory behind them.
        kernels: by what decides their text.
        calls: of every call, into kernels and into torch; those of ``prepares`` run when static inputs have changed.
        callbacks: per call into torch: (number, spec, input places, output places).
        tuned: the measured choices of the kernels that are not as the cost models have them, by name.
    """

    def __init__(self, net: Network, threads: int, cache: Cache, choices: Mapping[str, Choice] | None) -> None:
        self.net, self.machine, self.given = net, Machine(host_isa().name, threads), choices
        self.database = Database(self.machine, source_identity(), cache)
        self.places, self.scratch = _Placement(net), _Scratch(net)
        self.kernels: dict[Any, _Kernel] = {}
        self.tuned: dict[str, Choice] = {}
        self.calls: list[Call] = []
        self.prepares: list[Call] = []
        self.callbacks: dict[int, tuple[Any, tuple[Place, ...], tuple[Place, ...]]] = {}
        prepared = net.prepared_ops()
        self._prepared = {op.label for op in prepared}
        self.static = _static(net, prepared)
        for invocation in invocations(net, threads):
            self._add(invocation)

    @property
    def arena_bytes(self) -> int:
        """Size of the arena: what the plan says, and the scratch memory of kernels."""
        return self.places.end + self.scratch.all

    def driver(self, *, profile: bool) -> str:
        """The text of the driver."""
        scratch = [Place(0, self.places.end, 0, lane) for lane in (0, self.scratch.of_lane)]
        calls, prepares = (
            [c if c.kernel is None else _with_scratch(c, scratch[c.stream >= 0]) for c in part]
            for part in (self.calls, self.prepares)
        )
        static = [(self.places.slots[n], self.net.containers[n].nbytes) for n in self.static]
        flows = [Flow(s.images, s.lanes) for s in self.net.streams]
        return driver_text(calls, prepares, static, flows, profile=profile)

    def names(self) -> list[str]:
        """Names of all kernels; one that runs both by itself and in a stream counts once."""
        return sorted({k.name for k in self.kernels.values()})

    def made(self) -> list[_Kernel]:
        """The kernels that have code."""
        return [k for k in {k.name: k for k in self.kernels.values()}.values() if k.plan.phases]

    def _add(self, run: Invocation) -> None:
        ins, outs = (tuple(self.places.place(o, run.stream) for o in operands) for operands in (run.ins, run.outs))
        if run.calls_torch:
            self.callbacks[run.number] = (run.spec, ins, outs)
            self.calls.append(Call(None, run.number, (), False, False))
            return
        prepares = run.label in self._prepared
        table: tuple[Numbers, ...] = ()
        if prepares and (found := sizeless(run.spec, self.machine)):
            table = (Numbers(found[1]),)
            k = self._kernel(found[0], ((*run.types[0], "i64"), run.types[1]), run.team, MODELS)
        else:
            given = self.given.get(run.label, MODELS) if self.given is not None else None
            k = self._kernel(run.spec, run.types, run.team, given)
        self.scratch.add(k.plan.scratch, run.stream)
        if k.plan.phases:
            call = Call(k.name, run.number, (*ins, *table, *outs), k.parallel, k.checked, run.stream)
            (self.prepares if prepares else self.calls).append(call)

    def _kernel(self, spec: Any, types: Types, team: int, given: Choice | None) -> _Kernel:
        """The kernel of a spec, made at its first use; ``given`` is the emitter's choice where the database is not asked."""
        key = (spec, types, team, given)
        if key not in self.kernels:
            choice = self.database.choice(spec, types, team) if given is None else given
            # Without a choice the name is that of every compilation before there were any.
            made_by = foreign_identity(makers(spec))
            digest = key_of(
                source_identity(), made_by, repr(spec), repr(types), repr(self.machine), *[repr(choice)] * bool(choice)
            )
            self.kernels[key] = _Kernel(f"k{digest[:20]}", plan(spec, self.machine, choice), *types)
            if choice:
                self.tuned[self.kernels[key].name] = choice
        return self.kernels[key]


def planned_bytes(net: Network, threads: int) -> int:
    """Size of the arena of a network's library, known without generating code for the library."""
    machine = Machine(host_isa().name, threads)
    database = Database(machine, source_identity(), Cache.default())
    scratch = _Scratch(net)
    for run in invocations(net, threads):
        if not run.calls_torch:
            choice = database.choice(run.spec, run.types, run.team)
            scratch.add(_scratch(run.spec, machine, choice), run.stream)
    return _Placement(net).end + scratch.all


@functools.lru_cache(maxsize=4096)
def _scratch(spec: Operator, machine: Machine, choice: Choice) -> int:
    return plan(spec, machine, choice).scratch


def _static(net: Network, prepared: set[Op]) -> tuple[str, ...]:
    """Inputs and constants that prepared operators read, in the order of the containers."""
    read = {o.data for op in prepared for o in net.ins(op)}
    return tuple(n for n, c in net.containers.items() if n in read and c.role in ("input", "constant") and c.size)


class _Scratch:
    """Memory for the kernels' own use: that of one kernel, or of one in each lane of a stream."""

    def __init__(self, net: Network) -> None:
        self._lanes = [s.lanes for s in net.streams]
        self._alone, self._in_lane, self._most_lanes = 0, 0, 0

    def add(self, nbytes: int, stream: int) -> None:
        """A kernel that wants ``nbytes``, in a stream if its number is not negative."""
        if stream < 0:
            self._alone = max(self._alone, nbytes)
        else:
            self._in_lane = max(self._in_lane, nbytes)
            self._most_lanes = max(self._most_lanes, self._lanes[stream])

    @property
    def of_lane(self) -> int:
        """Bytes between two lanes."""
        return aligned(self._in_lane)

    @property
    def all(self) -> int:
        """Bytes in all."""
        return max(aligned(self._alone), self.of_lane * self._most_lanes)


def _with_scratch(call: Call, place: Place) -> Call:
    return replace(call, operands=(*call.operands, place))


class _Placement:
    """Where every container lies at run time: its own table slot, or an offset in a block.

    Attributes:
        plan: the network's, with a place for every transient.
        slots: of the table, for inputs, constants and results.
        count: slots of the table.
        end: bytes of the arena, without scratch memory.
    """

    def __init__(self, net: Network) -> None:
        self.net = net
        self.plan = net.memory.completed({n: c.nbytes for n, c in net.containers.items() if c.role == "transient"})
        # Slot 0 is the arena, slot 1 the block of prepared values.
        owned = (name for name, c in net.containers.items() if c.role != "transient")
        self.slots: dict[str, int] = {name: slot for slot, name in enumerate(owned, 2)}
        self.count = 2 + len(self.slots)
        self.end = aligned(self.plan.nbytes(ARENA))

    def place(self, o: Operand, number: int = -1) -> Place:
        """Of an operand, in a stream if it is an operand there."""
        size = itemsize(self.net.containers[o.data].dtype)
        offset, image = o.offset * size, 0
        if number >= 0:
            stream = self.net.streams[number]
            if o.data in stream.inside:
                return Place(0, self.plan.placements[o.data].offset + offset, 0, stream.lane_bytes)
            image = stream.steps[o.data] * size
        if o.data in self.slots:
            return Place(self.slots[o.data], offset, image)
        if o.data in self.plan.aliases:
            target, start = self.plan.aliases[o.data]
            return Place(self.slots[target], start + offset, image)
        block, start = self.plan.placements[o.data]
        return Place(0 if block == ARENA else 1, start + offset, image)
