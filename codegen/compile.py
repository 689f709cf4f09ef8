"""Network SDFG to shared library: plan every distinct kernel, generate and compile what the cache lacks, link once."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dcir.cache import Cache, key_of
from dcir.codegen.choices import MODELS, Choice
from dcir.codegen.cpp.kernels.size_generic import sizeless
from dcir.codegen.cpp.print_driver import BESIDE, Call, Flow, Numbers, Place, driver_text
from dcir.codegen.cpp.print_kernel import HEADER, kernel_body
from dcir.codegen.cpp.toolchain import Toolchain, Unit, compile_objects, default_flags, link_shared
from dcir.codegen.plan import KernelPlan
from dcir.codegen.registry import Kernel, Machine, makers, plan
from dcir.codegen.tuned import Database
from dcir.identity import foreign_identity, source_identity
from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network, Operand
from dcir.ir.operator import Operator
from dcir.ir.types import itemsize
from dcir.isa import host_isa
from dcir.ops.analysis.batch_slices import one_image

ALIGNMENT = 64


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
    machine = Machine(host_isa().name, threads)
    layout = _Placement(net)
    database = Database(machine, source_identity(), cache)
    kernels: dict[Any, _Kernel] = {}
    tuned: dict[str, Choice] = {}
    calls: list[Call] = []
    before: list[Call] = []
    callbacks: dict[int, tuple[Any, tuple[Place, ...], tuple[Place, ...]]] = {}
    scratch = _Scratch(net)
    ops, prepared = net.ops(), net.prepared_ops()
    streams = {label: i for i, s in enumerate(net.streams) for label in s.ops}
    for number, op in enumerate(ops):
        ins, outs = net.ins(op), net.outs(op)
        spec: Kernel = op.spec
        stream = streams.get(op.label, -1)
        if stream >= 0:
            spec = one_image(op.spec, net.streams[stream], ins, outs)
        places_in, places_out = (tuple(layout.place(o, stream) for o in operands) for operands in (ins, outs))
        if op.spec.calls_out:
            callbacks[number] = (spec, places_in, places_out)
            calls.append(Call(None, number, (), False, False))
            continue
        types = tuple(net.containers[o.data].dtype for o in ins), tuple(net.containers[o.data].dtype for o in outs)
        given = choices.get(op.label, MODELS) if choices is not None else None
        table: tuple[Numbers, ...] = ()
        if op in prepared and (found := sizeless(op.spec, machine)):
            spec, table = found[0], (Numbers(found[1]),)
            types, given = ((*types[0], "i64"), types[1]), MODELS
        key = (spec, types, team_of(stream, threads), given)
        if key not in kernels:
            choice = database.choice(*key[:3]) if given is None else given
            # Without a choice the name is that of every compilation before there were any.
            made_by = foreign_identity(makers(spec))
            digest = key_of(
                source_identity(), made_by, repr(spec), repr(types), repr(machine), *[repr(choice)] * bool(choice)
            )
            kernels[key] = _Kernel(f"k{digest[:20]}", plan(spec, machine, choice), *types)
            if choice:
                tuned[kernels[key].name] = choice
        k = kernels[key]
        scratch.add(k.plan.scratch, stream)
        if k.plan.phases:
            call = Call(k.name, number, (*places_in, *table, *places_out), k.parallel, k.checked, stream)
            (before if op in prepared else calls).append(call)
    end = _up(layout.arena_bytes)
    calls, before = (
        [c if c.kernel is None else _with_scratch(c, Place(0, end, 0, scratch.of_lane * (c.stream >= 0))) for c in part]
        for part in (calls, before)
    )
    flows = [Flow(s.images, s.lanes) for s in net.streams]
    static = _static(net, prepared)
    sizes = [(layout.slots[n], net.containers[n].nbytes) for n in static]
    driver = driver_text(calls, before, sizes, flows, profile=profile)
    toolchain = Toolchain.find(cache)
    flags = default_flags()
    # A kernel that runs both by itself and in a stream may be there twice.
    kernels = {k.name: k for k in kernels.values()}
    names = sorted(kernels)
    library_key = key_of(source_identity(), toolchain.identity, repr(flags), driver, "\0".join(names))
    compiled = 0
    made = [k for k in kernels.values() if k.plan.phases]
    if keep is not None:
        keep("driver", driver)
        for k in made:
            keep(k.name, HEADER + kernel_body(k.plan, k.ins, k.outs, k.name))

    def build(draft: Path) -> None:
        nonlocal compiled
        net.validate()
        compiled = len(made)
        texts = sorted(kernel_body(k.plan, k.ins, k.outs, k.name) for k in made)
        units = [Unit("", driver), Unit("", BESIDE), *(Unit("", text, HEADER) for text in texts)]
        objects = compile_objects(units, toolchain, flags, cache, None, progress)
        shutil.copyfile(link_shared(objects, library_key, toolchain, cache), draft)

    # One look-up by what the graph is, so that a later process neither generates nor hashes any kernel's text.
    path = cache.get_or_build("graph", library_key, ".so", build)
    return Library(
        path, end + scratch.all, net.prepared_bytes, static, layout.slots, layout.count, callbacks, len(kernels), len(calls), compiled,
        [op.origin for op in ops], tuple((c.kernel, c.number) for c in calls),
        tuned,
    )  # fmt: skip


def team_of(stream: int, threads: int) -> int:
    """How many threads run an operator: of a stream, whose images run at once, one."""
    return 1 if stream >= 0 else threads


def planned_bytes(net: Network, threads: int) -> int:
    """Size of the arena of a network's library, known without generating code for the library."""
    machine = Machine(host_isa().name, threads)
    database = Database(machine, source_identity(), Cache.default())
    streams = {label: net.streams[i] for i, s in enumerate(net.streams) for label in s.ops}
    scratch = _Scratch(net)
    for op in net.ops():
        if op.spec.calls_out:
            continue
        stream = streams.get(op.label)
        ins, outs = net.ins(op), net.outs(op)
        spec = op.spec if stream is None else one_image(op.spec, stream, ins, outs)
        types = tuple(net.containers[o.data].dtype for o in ins), tuple(net.containers[o.data].dtype for o in outs)
        choice = database.choice(spec, types, team_of(-1 if stream is None else 0, threads))
        scratch.add(_scratch(spec, machine, choice), -1 if stream is None else net.streams.index(stream))
    return _up(_Placement(net).arena_bytes) + scratch.all


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
        return _up(self._in_lane)

    @property
    def all(self) -> int:
        """Bytes in all."""
        return max(_up(self._alone), self.of_lane * self._most_lanes)


def _with_scratch(call: Call, place: Place) -> Call:
    return replace(call, operands=(*call.operands, place))


class _Placement:
    """Where every container lies at run time: its own table slot, or an offset in the arena."""

    def __init__(self, net: Network) -> None:
        self.net = net
        # Slot 0 is the arena, slot 1 the block of prepared values.
        self.slots: dict[str, int] = {}
        self.offsets: dict[str, int] = dict(net.arena)
        self.arena_bytes = net.arena_bytes
        self.count = 2
        for name, c in net.containers.items():
            if c.role != "transient":
                self.slots[name] = self.count
                self.count += 1
            elif (
                name not in self.offsets and name not in net.prepared and name not in net.lent
            ):  # not planned: a place of its own
                self.offsets[name] = _up(self.arena_bytes)
                self.arena_bytes = self.offsets[name] + c.nbytes

    def place(self, o: Operand, number: int = -1) -> Place:
        """Of an operand, in a stream if it is an operand there."""
        size = itemsize(self.net.containers[o.data].dtype)
        offset, image = o.offset * size, 0
        if number >= 0:
            stream = self.net.streams[number]
            if o.data in stream.inside:
                return Place(0, self.offsets[o.data] + offset, 0, stream.lane_bytes)
            image = stream.steps[o.data] * size
        if o.data in self.slots:
            return Place(self.slots[o.data], offset, image)
        if o.data in self.net.lent:
            into, start = self.net.lent[o.data]
            return Place(self.slots[into], start + offset, image)
        if o.data in self.net.prepared:
            return Place(1, self.net.prepared[o.data] + offset, image)
        return Place(0, self.offsets[o.data] + offset, image)


def _up(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT
