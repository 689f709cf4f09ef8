"""The kernels of a compiled network as tasks: what each waits for, what it does, and which steps of the driver it is.

Kernels wait for the values that they read. What runs before an update in place reads what was there, operators with effects keep their
order, and beside a call into torch nothing runs, since torch has threads of its own. Operators that take one image after the other are one
task. That memory is used again is no reason to wait for a plan: where values lie is planned for one order of kernels, and could be for
another. ``reused`` says what would be left side by side if it were not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dcir.codegen.compile import Library
from dcir.cost.threads.curves import Work
from dcir.cost.threads.task_graph import Task, TaskGraph
from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network


@dataclass(frozen=True)
class KernelGraph:
    """The kernels of a network.

    Attributes:
        data: waits for values alone.
        graph: the same where nothing runs beside a call into torch.
        reused: ``data``, and waits for those who use memory before a value is written there.
        works: what each does in a call.
        steps: numbers of the driver's steps that each is.
        openings: how often a call opens a team of threads.
    """

    data: TaskGraph
    graph: TaskGraph
    reused: TaskGraph
    works: tuple[Work, ...]
    steps: tuple[tuple[int, ...], ...]
    openings: int


@dataclass
class _Row:
    """A task that is being put together."""

    name: str
    place: str
    after: set[int]
    reuses: set[int] = field(default_factory=set)
    operators: list[Op] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    kernel: str | None = None
    images: int = 0


def kernel_graph(net: Network, library: Library) -> KernelGraph:
    """The kernels that a call of a network runs.

    Args:
        net: after all passes.
        library: made of it.
    """
    steps = {number: (step, kernel) for step, (kernel, number) in enumerate(library.steps)}
    streams = {label: i for i, s in enumerate(net.streams) for label in s.ops}
    replaced: dict[str, list[str]] = {}
    for result, source in net.updates.items():
        replaced.setdefault(result, []).append(source)
    rows: list[_Row] = []
    of_stream: dict[int, int] = {}
    made: dict[str, set[int]] = {}  # by container the tasks that its readers wait for
    read: dict[str, set[int]] = {}
    effects: set[int] = set()
    memory = _Memory(net)
    for number, op in enumerate(net.ops()):
        ins, outs = net.ins(op), net.outs(op)
        after = {task for o in ins for task in made.get(o.data, ())}
        after |= {task for o in outs for source in replaced.get(o.data, ()) for task in read.get(source, ())}
        after |= effects if op.spec.has_effects else set()
        own = after
        if number in steps:
            stream = streams.get(op.label, -1)
            task = of_stream.get(stream, len(rows))
            if task == len(rows):
                rows.append(_Row(op.spec.describe(), op.origin, set()))
                if stream >= 0:
                    of_stream[stream], rows[task].images = task, net.streams[stream].images
            row = rows[task]
            row.after |= after - {task}
            under = [name for o in outs for name in memory.under(o.data)]
            row.reuses |= {t for name in under for t in (*made.get(name, ()), *read.get(name, ())) if t != task}
            row.operators.append(op)
            row.steps.append(steps[number][0])
            row.kernel = steps[number][1]
            own = {task}
        for o in outs:
            made.setdefault(o.data, set()).update(own)
        for o in ins:
            read.setdefault(o.data, set()).update(own)
        effects = own if op.spec.has_effects else effects
    data = TaskGraph(tuple(Task(_name(row), tuple(sorted(row.after)), row.place) for row in rows))
    reused = TaskGraph(
        tuple(replace(t, after=tuple(sorted({*t.after, *r.reuses}))) for t, r in zip(data.tasks, rows, strict=True))
    )
    works = tuple(_work(net, library, row) for row in rows)
    torch_calls = [i for i, work in enumerate(works) if work.torch]
    return KernelGraph(
        data, data.with_separators(torch_calls), reused, works, tuple(tuple(row.steps) for row in rows), _openings(rows)
    )


class _Memory:
    """What lies in the blocks of a network's memory plan as its operators run."""

    def __init__(self, net: Network) -> None:
        self._net = net
        self._under: dict[str, list[str]] = {}
        self._blocks: dict[str, list[tuple[int, int, str]]] = {}
        for name in net.inputs:
            self.under(name)

    def under(self, name: str) -> list[str]:
        """The containers whose memory a container has taken, when it was first asked for."""
        place = self._net.memory.placement(name)
        if place is None or name in self._under:
            return self._under.get(name, [])
        begin, end = place.offset, place.offset + self._net.containers[name].nbytes
        block = self._blocks.setdefault(place.block, [])
        self._under[name] = [other for first, last, other in block if first < end and begin < last]
        # What is covered whole is waited for by way of this one from now on.
        block[:] = [row for row in block if not (begin <= row[0] and row[1] <= end)]
        block.append((begin, end, name))
        return self._under[name]


def _name(row: _Row) -> str:
    more = len(row.operators) - 1
    return f"{row.name} and {more} more, image by image" if more else row.name


def _work(net: Network, library: Library, row: _Row) -> Work:
    operands = [o for op in row.operators for o in (*net.ins(op), *net.outs(op))]
    dtype = "f64" if any(net.containers[o.data].dtype == "f64" for o in operands) else "f32"
    jobs = (row.images,) if row.images else library.jobs.get(row.kernel or "", ())
    return Work(
        sum(op.spec.operations() for op in row.operators), sum(net.moved_by(op) for op in row.operators), jobs, dtype,
        row.kernel is None,
    )  # fmt: skip


def _openings(rows: list[_Row]) -> int:
    """Stretches of kernels between calls into torch, each of which has a team."""
    kinds = [row.kernel is None for row in rows]
    return sum(not torch and (i == 0 or kinds[i - 1]) for i, torch in enumerate(kinds))
