"""A training step of one process: its kernels in their order, when each gradient is complete, and what copies of gradients take."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.codegen.compile import Library
from dcir.driver.assemble import part_with
from dcir.driver.measure.models import BenchModel
from dcir.driver.measure.profile import Recorder, summary
from dcir.errors import InvalidInput, OptionError
from dcir.frontends.torch.importer import Imported
from dcir.report.profile import middle
from dcir.report.scaling import Gradient, TrainingStep
from dcir.runtime.program import Program

Loss = Callable[[Any], torch.Tensor]

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    # The rate keeps weights as they are, so that no step is unlike the others.
    "sgd": lambda parameters, **form: torch.optim.SGD(parameters, 0.0, momentum=0.9, **form),
    "adam": lambda parameters, **form: torch.optim.Adam(parameters, 0.0, **form),
    "adamw": lambda parameters, **form: torch.optim.AdamW(parameters, 0.0, **form),
}
FORMS: dict[str | None, dict[str, bool]] = {
    None: {},
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""How an optimiser updates: as torch chooses, an operator and a tensor at a time, an operator for all tensors, one kernel for each."""
_WARM_UP = 3
_LEAST = 5
_ROUNDS = 3


@dataclass(frozen=True)
class Training:
    """What is trained, in every process alike.

    Attributes:
        source: an ONNX file, or ``file.py:function``.
        shapes, batch: sizes of the inputs.
        loss: name of a function in the Python file that makes a scalar of what the model returns; None: mean squares.
        optimiser: of ``OPTIMISERS``, or milliseconds.
        level: of dcir's optimisation.
        threads: of the process.
    """

    source: str
    shapes: Mapping[str, Sequence[int | str]] | None = None
    batch: int | None = None
    loss: str | None = None
    optimiser: str = "sgd"
    level: int = 4
    threads: int = 1

    def __post_init__(self) -> None:
        if self.optimiser not in OPTIMISERS and self.given_ms is None:
            raise OptionError(
                "an optimiser is one of torch's, or milliseconds", where=f"optimiser={self.optimiser!r}",
                hint=f"{', '.join(OPTIMISERS)}, or as 1.5",
            )  # fmt: skip

    @property
    def given_ms(self) -> float | None:
        """The optimiser's time if it is not to be measured."""
        try:
            given = float(self.optimiser)
        except ValueError:
            return None
        return given if 0 <= given < float("inf") else None


def mean_squares(out: Any) -> torch.Tensor:
    """The sum of the mean squares of all results that have a gradient.

    Raises:
        InvalidInput: none has.
    """
    found = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not found:
        raise InvalidInput("nothing that the model returns has a gradient, so it cannot be trained")
    return torch.stack([t.square().mean() for t in found]).sum()


class Backwards:
    """A ``session.Watch``: the steps' times of every graph, and of backwards when they began and what they wrote."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.graphs: list[_Backward] = []

    def __call__(
        self, kind: str, done: Imported, library: Library, program: Program
    ) -> Callable[[Sequence[Any]], list[Any]]:
        watched = self.recorder(kind, done, library, program)
        if kind != "backward":
            return watched
        ready = tuple(part_with(done.network, library, *output) for output in done.outputs)
        backward = _Backward(watched, watched.samples, library.stops, ready)
        self.graphs.append(backward)
        return backward

    def forget(self) -> None:
        """Drop what was measured so far."""
        self.recorder.forget()
        for graph in self.graphs:
            graph.begun.clear()


@dataclass
class _Backward:
    """A backward's program: per call when it began and its steps' nanoseconds; of the last one, where its results lie."""

    call: Callable[[Sequence[Any]], list[Any]]
    samples: list[list[int]]
    stops: tuple[int, ...]
    ready: tuple[int, ...]
    begun: list[float] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        self.begun.append(time.perf_counter())
        results = self.call(args)
        self.addresses = [r.data_ptr() if isinstance(r, torch.Tensor) else 0 for r in results]
        return results

    @property
    def team_ms(self) -> float:
        """Opening and closing a team, which every part does."""
        return middle([sample[-1] for sample in self.samples]) * 1e-6

    def ends(self, starts: Sequence[float]) -> list[float]:
        """When each part ends, in milliseconds after the whole backward's start."""
        calls = []
        for start, begun, ticks in zip(starts, self.begun, self.samples, strict=True):
            # Of whole calls: on a machine that others use, most calls are slower somewhere than each kernel usually is.
            passed = [0, *itertools.accumulate(ticks[:-1])]
            calls.append([(begun - start) * 1e3 + passed[stop] * 1e-6 for stop in (*self.stops, len(ticks) - 1)])
        return [middle(ends) + (part + 1) * self.team_ms for part, ends in enumerate(zip(*calls, strict=True))]


class Replica:
    """A module that is trained.

    Args:
        name: of its row.
        module: whose parameters are trained.
        call: the module, or what is compiled of it.
        opened: what the user named; its inputs are used.
        loss: makes a scalar of what a call returns.
        training: as which.
        watch: what its compiled backwards tell; None of eager.
    """

    def __init__(
        self, name: str, module: nn.Module, call: Callable[..., Any], opened: BenchModel, loss: Loss, training: Training,
        watch: Backwards | None,
    ) -> None:  # fmt: skip
        self.name, self.training, self.watch = name, training, watch
        self._module, self._call, self._inputs, self._loss = module, call, opened.inputs, loss
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        # What depends on parameters is computed again after each step, so there must be one.
        self._optimiser = OPTIMISERS.get(training.optimiser, OPTIMISERS["sgd"])(self._parameters)

    def step(self) -> tuple[float, float, float, float]:
        """One step; the clock at its beginning, at the backward's beginning and end, and at its end."""
        self._optimiser.zero_grad(set_to_none=True)
        start = time.perf_counter()
        loss = self._loss(self._call(*self._inputs))
        turn = time.perf_counter()
        loss.backward()
        done = time.perf_counter()
        self._optimiser.step()
        return start, turn, done, time.perf_counter()

    def warm_up(self) -> None:
        """Compile, and run until nothing is new.

        Raises:
            InvalidInput: the loss is no scalar, nothing was compiled, or no parameter has a gradient.
        """
        loss: Any = self._loss(self._call(*self._inputs))
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise InvalidInput("the loss is no scalar with a gradient", where=self.training.loss)
        for _ in range(_WARM_UP):
            self.step()
        if self.watch is not None and not self.watch.graphs:
            raise InvalidInput("nothing was compiled in the backward, so there are no kernels to measure")
        if not any(p.grad is not None for p in self._parameters):
            raise InvalidInput("no parameter has a gradient, so there is nothing to exchange")

    def measured(self, seconds: float) -> TrainingStep:
        """Medians of repeated steps."""
        given = self.training.given_ms
        with self._arrivals() as arrivals:
            self.step()
            if self.watch is not None:
                self.watch.forget()
            arrivals.clear()
            clocks: list[tuple[float, float, float, float]] = []
            stop = time.perf_counter() + seconds
            while len(clocks) < _LEAST or time.perf_counter() < stop:
                clocks.append(self.step())
        starts = [turn for _, turn, _, _ in clocks]
        forward, backward, optimiser = (statistics.median(c[i + 1] - c[i] for c in clocks) * 1e3 for i in range(3))
        ready = {
            number: middle([at - start for at, start in zip(times, starts, strict=False)]) * 1e3
            for number, times in arrivals.items()
        }
        kernels, parts = 0.0, 1
        if (watch := self.watch) is not None:
            walls = [(c[2] - c[0]) * 1e3 for c in clocks]
            kernels = summary(watch.recorder, walls, [], self.training.threads).kernel_ms
            # A graph that runs several times in a step has no one time of its own.
            once = [g for g in watch.graphs if len(g.begun) == len(clocks)]
            parts = sum(len(g.stops) + 1 for g in once) or 1
            backward += sum(len(g.stops) * g.team_ms for g in once)
            ready |= self._ready(once, starts)
        copies = self._copies()
        gradients = tuple(
            Gradient(p.numel() * p.element_size(), str(p.dtype).removeprefix("torch."), min(ready[n], backward), *copies[n])
            for n, p in enumerate(self._parameters) if n in ready
        )  # fmt: skip
        return TrainingStep(
            self.name, forward, backward, optimiser if given is None else given, gradients, self._buffers(), kernels, parts
        )  # fmt: skip

    @contextmanager
    def _arrivals(self) -> Iterator[dict[int, list[float]]]:
        """While this lasts, the clock whenever autograd is done with a parameter, by its number."""
        arrivals: dict[int, list[float]] = {}

        def hook(number: int) -> Callable[[torch.Tensor], None]:
            return lambda _: arrivals.setdefault(number, []).append(time.perf_counter())

        handles = [p.register_post_accumulate_grad_hook(hook(n)) for n, p in enumerate(self._parameters)]
        try:
            yield arrivals
        finally:
            for handle in handles:
                handle.remove()

    def _ready(self, graphs: Sequence[_Backward], starts: Sequence[float]) -> dict[int, float]:
        """When each gradient that a compiled backward writes is complete if it runs part by part, by the parameter's number."""
        if not graphs:
            return {}
        ends = {id(g): g.ends(starts) for g in graphs}
        loss = self._loss(self._call(*self._inputs))
        # The graphs' own results: a gradient that is accumulated may be a copy.
        found = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        at: dict[int, float] = {}
        for graph in graphs:
            for address, part in zip(graph.addresses, graph.ready, strict=False):
                if address:
                    at[address] = ends[id(graph)][max(part, 0)]
        return {n: at[g.data_ptr()] for n, g in enumerate(found) if g is not None and g.data_ptr() in at}

    def _copies(self) -> list[tuple[float, float]]:
        """Milliseconds into a bucket and out of it, of each parameter's gradient; one after the other, as they come in a backward."""
        blocks = [torch.empty_like(p) for p in self._parameters]
        into: list[list[float]] = [[] for _ in blocks]
        out: list[list[float]] = [[] for _ in blocks]
        with torch.no_grad():
            for _ in range(_ROUNDS):
                for times, block, gradient in zip(into, blocks, self._gradients(), strict=True):
                    times.append(_milliseconds(lambda b, g: torch.mul(g, 1.0, out=b), block, gradient))
                for times, block, gradient in zip(out, blocks, self._gradients(), strict=True):
                    times.append(_milliseconds(lambda b, g: g.copy_(b), block, gradient))
        return [(middle(i), middle(o)) for i, o in zip(into, out, strict=True)]

    def _gradients(self) -> list[torch.Tensor]:
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]

    def _buffers(self) -> tuple[int, ...]:
        """Bytes of the module's buffers, by element type."""
        sizes: dict[torch.dtype, int] = {}
        for buffer in self._module.buffers():
            sizes[buffer.dtype] = sizes.get(buffer.dtype, 0) + buffer.numel() * buffer.element_size()
        return tuple(size for size in sizes.values() if size)


def _milliseconds(
    copy_of: Callable[[torch.Tensor, torch.Tensor], Any], block: torch.Tensor, gradient: torch.Tensor
) -> float:
    start = time.perf_counter()
    copy_of(block, gradient)
    return (time.perf_counter() - start) * 1e3
