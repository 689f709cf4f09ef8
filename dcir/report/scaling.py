"""What a step of data-parallel training takes on many processes: buckets of gradients, their exchange while the backward runs, a table."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dcir.cost.links import Link

MIB = 1 << 20
CAP = 25 * MIB
FIRST_BUCKET = MIB
"""Of ``DistributedDataParallel``, unless its user says how large buckets are: then the first is as large as the others."""


@dataclass(frozen=True)
class Gradient:
    """A parameter's gradient.

    Attributes:
        nbytes, dtype: its size and element type.
        ready_ms: when it is complete, from the backward's beginning.
        in_ms, out_ms: to copy it into its bucket and out again.
    """

    nbytes: int
    dtype: str = "float32"
    ready_ms: float = 0.0
    in_ms: float = 0.0
    out_ms: float = 0.0


@dataclass(frozen=True)
class TrainingStep:
    """What one process computes in a step.

    Attributes:
        name: "dcir" or "eager".
        forward_ms: forward and loss.
        backward_ms: the backward without any exchange.
        optimiser_ms: the optimiser's step.
        gradients: of all parameters.
        buffers: bytes of the buffers that every forward gets from the first process, by element type.
        kernel_ms: time in compiled kernels; 0 if there are none.
        parts: how many the backward is run in.
    """

    name: str
    forward_ms: float
    backward_ms: float
    optimiser_ms: float = 0.0
    gradients: tuple[Gradient, ...] = ()
    buffers: tuple[int, ...] = ()
    kernel_ms: float = 0.0
    parts: int = 1

    @property
    def alone_ms(self) -> float:
        """A step of one process, with nobody to exchange anything with."""
        return self.forward_ms + self.backward_ms + self.optimiser_ms


@dataclass(frozen=True)
class Exchange:
    """A bucket: its bytes, and when it is full, sent and summed, from the backward's beginning, in milliseconds."""

    nbytes: int
    full_ms: float
    begin_ms: float
    end_ms: float


@dataclass(frozen=True)
class Prediction:
    """A step of one of ``nodes`` processes.

    Attributes:
        step_ms: the whole step.
        exchange_ms: all exchanges of gradients, one after the other.
        exposed_ms: how long there is nothing to compute after the backward but an exchange is under way.
        copies_ms: gradients into buckets and out again.
        speed_up: of the work of all processes over one; ``efficiency`` is this over the processes.
        exchanges: of the buckets.
    """

    name: str
    nodes: int
    step_ms: float
    exchange_ms: float
    exposed_ms: float
    copies_ms: float
    speed_up: float
    efficiency: float
    exchanges: tuple[Exchange, ...] = ()


def buckets_of(gradients: Sequence[Gradient], cap: int = CAP) -> list[list[int]]:
    """Numbers of the gradients in each bucket, as ``DistributedDataParallel`` makes them after its first step.

    In the order in which gradients are complete; a bucket is closed by the gradient that fills it. Each element type has its own.

    Args:
        gradients: of a backward.
        cap: bytes of a bucket.
    """
    first = FIRST_BUCKET if cap == CAP else cap
    order = sorted(range(len(gradients)), key=lambda i: gradients[i].ready_ms)
    done: list[list[int]] = []
    open_ones: dict[str, list[int]] = {}
    limits: dict[str, int] = {}
    for i in order:
        kind = gradients[i].dtype
        bucket = open_ones.setdefault(kind, [])
        bucket.append(i)
        if sum(gradients[j].nbytes for j in bucket) >= limits.get(kind, first):
            done.append(open_ones.pop(kind))
            limits[kind] = cap
    return done + list(open_ones.values())


@dataclass(eq=False)
class _Sending:
    """An exchange on its way.

    Attributes:
        waiting, computing: milliseconds of all of it while its process waits, and while that computes.
        work: milliseconds of computing that it costs.
        begin, end: on the clock; an end is known once it has come.
        left: part of it that is still to be sent.
    """

    waiting: float
    computing: float
    work: float
    begin: float = 0.0
    end: float = 0.0
    left: float = 1.0


class _Clock:
    """Time of a process that computes while exchanges are under way, one after the other."""

    def __init__(self) -> None:
        self.now = 0.0
        self._under_way: deque[_Sending] = deque()

    def compute(self, work: float) -> None:
        """Do what takes ``work`` without exchanges."""
        while self._under_way and work > 0:
            head = self._under_way[0]
            speed = max(0.0, 1.0 - head.work / head.computing) if head.computing else 1.0
            could = head.left * head.computing * speed
            if work < could:
                passed = work / speed
                head.left -= passed / head.computing
                self.now += passed
                return
            work -= could
            self._arrive(head.computing)
        self.now += work

    def send(self, exchange: _Sending) -> None:
        """Begin an exchange when the one before has ended."""
        exchange.begin = self.now
        self._under_way.append(exchange)

    def wait(self, exchange: _Sending) -> float:
        """Wait for an exchange's end; how long."""
        start = self.now
        while exchange in self._under_way:
            self._arrive(self._under_way[0].waiting)
        return self.now - start

    def _arrive(self, whole: float) -> None:
        """The first exchange ends, all of which takes ``whole`` from now on, and the next one begins."""
        head = self._under_way.popleft()
        self.now += head.left * whole
        head.end = self.now
        if self._under_way:
            self._under_way[0].begin = self.now


def predict(
    step: TrainingStep, link: Link, nodes: int, *, cap: int = CAP, algorithm: str = "ring", threads: int = 1
) -> Prediction:
    """A step of training with ``nodes`` processes that each do what ``step`` says on data of their own.

    Args:
        step: measured on one process.
        link: between any two of them.
        nodes: processes.
        cap: bytes of a bucket.
        algorithm: of ``links.ALGORITHMS``.
        threads: of each process, which share the work that the link leaves to processors.
    """
    if nodes < 2:
        return Prediction(step.name, nodes, step.alone_ms, 0.0, 0.0, 0.0, 1.0, 1.0)
    broadcast = sum(link.broadcast_seconds(nbytes, nodes) for nbytes in step.buffers) * 1e3
    clock = _Clock()
    buckets = buckets_of(step.gradients, cap)
    ends = {bucket[-1]: bucket for bucket in buckets}
    sent: dict[int, tuple[int, float, _Sending]] = {}
    before = 0.0
    for i in sorted(range(len(step.gradients)), key=lambda i: step.gradients[i].ready_ms):
        gradient = step.gradients[i]
        clock.compute(gradient.ready_ms - before + gradient.in_ms)
        before = gradient.ready_ms
        if i in ends:
            nbytes = sum(step.gradients[j].nbytes for j in ends[i])
            work = link.work * link.sent_bytes(nbytes, nodes, algorithm) / threads
            # No link is faster than who feeds it.
            waiting, computing = (
                max(link.reduction_seconds(nbytes, nodes, algorithm, computing=c), work) * 1e3 for c in (False, True)
            )
            sent[i] = nbytes, clock.now, _Sending(waiting, computing, work * 1e3)
            clock.send(sent[i][2])
    clock.compute(max(0.0, step.backward_ms - before))
    exposed = 0.0
    for bucket in buckets:
        exposed += clock.wait(sent[bucket[-1]][2])
        clock.compute(sum(step.gradients[j].out_ms for j in bucket))
    total = step.forward_ms + broadcast + clock.now + step.optimiser_ms
    made = tuple(Exchange(n, full, s.begin, s.end) for n, full, s in (sent[bucket[-1]] for bucket in buckets))
    efficiency = step.alone_ms / total if total else 1.0
    return Prediction(
        step.name, nodes, total, sum(e.end_ms - e.begin_ms for e in made), exposed,
        sum(g.in_ms + g.out_ms for g in step.gradients), efficiency * nodes, efficiency, made,
    )  # fmt: skip


@dataclass
class Scaling:
    """What ``dcir scaling`` shows.

    Attributes:
        model: what the user wrote.
        threads: of each process.
        link: between the processes.
        steps: what one process computes; dcir's first.
        nodes: numbers of processes.
        cap: bytes of a bucket.
        algorithm: of the exchanges.
        notes: how it was measured.
    """

    model: str
    threads: int
    link: Link
    steps: list[TrainingStep]
    nodes: tuple[int, ...]
    cap: int = CAP
    algorithm: str = "ring"
    notes: list[str] = field(default_factory=list)

    def predictions(self) -> list[list[Prediction]]:
        """For each number of processes, a prediction for each of ``steps``."""
        return [
            [predict(s, self.link, n, cap=self.cap, algorithm=self.algorithm, threads=self.threads) for s in self.steps]
            for n in self.nodes
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data, with the predictions."""
        rows = [asdict(p) for row in self.predictions() for p in row]
        return {**asdict(self), "nodes": list(self.nodes), "predictions": rows}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Scaling:
        """What ``to_json`` wrote; predictions are made again.

        Raises:
            KeyError, TypeError: the data is something else.
        """
        steps = [
            TrainingStep(**{**s, "gradients": tuple(Gradient(**g) for g in s["gradients"]), "buffers": tuple(s["buffers"])})
            for s in data["steps"]
        ]  # fmt: skip
        rest = {k: v for k, v in data.items() if k != "predictions"}
        return Scaling(**{**rest, "link": Link.from_json(data["link"]), "steps": steps, "nodes": tuple(data["nodes"])})

    def to_text(self) -> str:
        """A table for people: how often the work of one process is done in its time, and what exchanges add."""
        lines = [f"{self.model}, {self.threads} threads a process; {self.link}, {self.algorithm}"]
        for step in self.steps:
            buckets = buckets_of(step.gradients, self.cap)
            lines.append(
                f"{step.name:<6} forward {step.forward_ms:.3f}, backward {step.backward_ms:.3f}, optimiser {step.optimiser_ms:.3f} ms"
                + (f" (in kernels {step.kernel_ms:.3f}, {step.parts} parts)" if step.kernel_ms else "")
                + f"; buckets of {' '.join(f'{self._mib(step, b):.2f}' for b in buckets)} MiB are full at "
                + " ".join(f"{self._full(step, b):.0%}" for b in buckets)
            )
        lines.append(f"{'nodes':>5}" + "".join(_heading(s.name) for s in self.steps) + f" {'gain':>6}" * self._two)
        for row in self.predictions():
            cells = "".join(
                f"  {p.step_ms:>13.3f} {p.speed_up:>7.2f} {p.efficiency:>6.1%} {p.exchange_ms:>9.3f} {p.exposed_ms:>8.3f}"
                for p in row
            )
            gain = f" {row[1].step_ms / row[0].step_ms:>5.2f}x" if self._two else ""
            lines.append(f"{row[0].nodes:>5}{cells}{gain}")
        lines.append(
            "times: work of all processes over one's; exposed: of the exchange, what the backward does not hide"
        )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    @property
    def _two(self) -> bool:
        return len(self.steps) == 2

    @staticmethod
    def _mib(step: TrainingStep, bucket: Sequence[int]) -> float:
        return sum(step.gradients[i].nbytes for i in bucket) / MIB

    @staticmethod
    def _full(step: TrainingStep, bucket: Sequence[int]) -> float:
        return step.gradients[bucket[-1]].ready_ms / step.backward_ms if step.backward_ms else 0.0

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        from dcir.report.notebook import scaling_html

        return scaling_html(self)


def _heading(name: str) -> str:
    return f"  {name + ' step ms':>13} {'times':>7} {'eff.':>6} {'exchange':>9} {'exposed':>8}"
