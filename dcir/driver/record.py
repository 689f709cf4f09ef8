"""The record of what became of one graph: what ``explain`` and the log tell of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dcir.codegen.compile import Library
from dcir.frontends.torch.context import GraphContext
from dcir.ir.moving_network import MovingNetwork
from dcir.ir.network import Network
from dcir.ir.origins import Numbers, Origins, source_lines, union

MeasuredWays = tuple[str, str, int, list[tuple[str, float]]]
KernelOrigin = tuple[str, str, int, Numbers]
"""Name of a kernel or of what runs through torch, what it is, its steps in a call, and the imported operators that it came from."""


@dataclass
class GraphRecord:
    """What became of one graph.

    Attributes:
        kind: "inference", "forward" or "backward".
        sizes: (place, value) of each symbolic size of the traced graph that this program is for.
        bounds: (place, least, most) of each size that moves, where it is for all of them; figures are then those of the upper ends.
        remark: how this program comes to be compiled for those sizes.
        operators: operators after import.
        fallbacks: (operator, place) run through torch.
        passes: the pass runner's records.
        kernels, calls: distinct kernels and driver steps.
        generated: kernels generated now (0: the library came from the cache).
        arena_bytes: planned scratch memory of one call.
        library_bytes: what libraries make and take in a call, at most at one time, beside that.
        together: a number that a forward and its backward have in common.
        saved_bytes: what a forward keeps for its backward, beyond its inputs and what its caller gets.
        partition: what was decided under a limit of memory (``frontends.torch.partition.Partition``); only of a forward.
        parts: how many a backward is run in, one after the other, so that gradients are handed over as they come.
        prepared_bytes: memory of values computed from parameters, kept between calls.
        bytes_before, bytes_moved: distinct bytes that all operators of a call touch, before and after the passes.
        threads: size of the team.
        work: per operator of a call, its exact operations and the distinct bytes it touches.
        tuned: (kernel, measured choice, calls) of the kernels that are not as the cost models have them.
        measured: (kernel, choice that runs, calls, all measured choices with their milliseconds) of the kernels that were tuned.
        schedules: (kernel, schedule that it was printed from, calls) of all kernels; no schedule of those that have one form only, no
            calls of those that run in loops and branches, or when parameters change.
        seconds: time per step.
        kernel_origins: of all kernels, in the order of ``schedules``, and behind them of operators that run through torch.
        origins: the imported operators.
        key: what the library is found again by.
        unrecorded: why calls are not replayed though that is asked for (``Options.cuda_graphs``).
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
    parts: int = 1
    prepared_bytes: int = 0
    bytes_before: int = 0
    bytes_moved: int = 0
    threads: int = 1
    work: list[tuple[int, int]] = field(default_factory=list)
    tuned: list[tuple[str, str, int]] = field(default_factory=list)
    measured: list[MeasuredWays] = field(default_factory=list)
    schedules: list[tuple[str, str, int]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    bounds: tuple[tuple[str, int, int], ...] = ()
    kernel_origins: list[KernelOrigin] = field(default_factory=list)
    origins: Origins = field(default_factory=Origins)
    key: str = ""
    unrecorded: str = ""
    library_bytes: int = 0

    @property
    def state(self) -> str:
        """Whether anything had to be generated."""
        return f"{self.generated} generated now" if self.generated else "from the cache"

    def to_json(self) -> dict[str, Any]:
        """The record as plain data: of each kernel the labels of the imported operators that it came from, and all lines of these.

        Remarks have a place of their own (``report/remarks.py``).
        """
        data = asdict(replace(self, passes=[replace(p, remarks=[]) for p in self.passes]))
        del data["origins"]
        for done in data["passes"]:
            del done["remarks"]
        data["kernel_origins"] = [
            {
                "kernel": kernel, "what": what, "calls": calls, "came_from": [p.label for p in places],
                "places": [asdict(line) for line in source_lines(places)],
            }
            for kernel, what, calls, numbers in self.kernel_origins
            for places in [self.origins.of(numbers)]
        ]  # fmt: skip
        return data

    def __str__(self) -> str:
        took = sum(self.seconds.values())
        return f"{self.operators} operators, {self.calls} calls of {self.kernels} kernels ({self.state}), {took:.1f} s"


def kernel_origins(net: Network | MovingNetwork, library: Library) -> tuple[list[KernelOrigin], Origins]:
    """Where the kernels of a network's library come from, in the order of its schedules, and behind them what it runs through torch."""
    net = net.widest if isinstance(net, MovingNetwork) else net
    steps = Counter(kernel for kernel, _ in library.steps)
    rows = [(name, what, steps[name], library.came_from[name]) for name, (what, _) in library.schedules.items()]
    ops, called = net.ops(), dict[tuple[str, str], list[Numbers]]()
    for kernel, number in library.steps:
        if kernel is None:
            spec = ops[number].spec
            called.setdefault((spec.calls_out, spec.describe()), []).append(ops[number].came_from)
    return rows + [(name, what, len(found), union(found)) for (name, what), found in called.items()], net.origins


def moving_bounds(context: GraphContext) -> tuple[tuple[str, int, int], ...]:
    """Name and bounds of each size that moves by itself; of equal ones the first, and how many others there are."""
    if not context.bounds:
        return ()
    same = context.same or tuple(range(len(context.bounds)))
    rows = []
    for i, (name, (low, high)) in enumerate(zip(context.bound_names, context.bounds, strict=True)):
        others = same.count(i) - 1
        if others >= 0 and i not in context.follows:
            rows.append((name + f" (and {others} more)" * (others > 0), low, high))
    return tuple(rows)


def tuned_kernels(net: Network | MovingNetwork, library: Library) -> list[tuple[str, str, int]]:
    """The kernels of a library that run a measured choice: what they are, the choice, and in how many steps they run."""
    if not library.tuned or isinstance(net, MovingNetwork):
        return []
    ops = net.ops()
    steps: dict[str, list[int]] = {}
    for kernel, number in library.steps:
        if kernel in library.tuned:
            steps.setdefault(kernel, []).append(number)
    return [(ops[n[0]].spec.describe(), str(library.tuned[kernel]), len(n)) for kernel, n in steps.items()]


def measured_kernels(library: Library) -> list[MeasuredWays]:
    """What was measured of the kernels of a library that were tuned."""
    steps = Counter(kernel for kernel, _ in library.steps)
    return [
        (
            library.schedules[name][0], library.choice_of(name) or "", steps[name],
            [(str(choice), seconds * 1e3) for choice, seconds in times],
        )
        for name, times in library.measured.items()
    ]  # fmt: skip


def schedules_of(library: Library) -> list[tuple[str, str, int]]:
    """What the kernels of a library are, what they were printed from, and in how many steps of a call they run."""
    steps = Counter(kernel for kernel, _ in library.steps)
    return [
        (what, "" if schedule is None else str(schedule), steps[name])
        for name, (what, schedule) in library.schedules.items()
    ]


def work_of(net: Network) -> list[tuple[int, int]]:
    """Operations and distinct bytes of every operator that runs in every call."""
    prepared = net.prepared_ops()
    return [(op.spec.operations(), net.moved_by(op)) for op in net.ops() if op not in prepared]
