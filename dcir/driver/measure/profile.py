"""Measures every kernel inside the calls of a model: a twin of it is built whose driver reads the clock between kernels."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.codegen.compile import Library
from dcir.driver.measure.machine import rates
from dcir.driver.session import Progress, Session
from dcir.driver.training.distributed import is_sharded
from dcir.errors import InvalidInput, OptionError
from dcir.frontends.torch.importer import Imported
from dcir.ir.network import sources
from dcir.ir.origins import source_lines
from dcir.ops.library.attention import AttentionSpec
from dcir.ops.library.fused_product import FusedProduct
from dcir.ops.library.library_call import LibraryCall
from dcir.options import Options
from dcir.report.profile import Profile, ProfileStep, middle
from dcir.runtime.program import Program
from dcir.targets import DEFAULT, target_class

_WARM_UP = 3
_LEAST = 5
_MOST = 10_000


Count = Callable[[Imported, Sequence[int], Sequence[Any]], list[int | None]]
"""Given a graph, numbers of operators and the arguments of a call: the bytes that each touches, None where nobody knows."""


@dataclass
class Recorder:
    """Collects the steps' times of every graph of one model (a ``session.Watch``), and the sum of all of them.

    ``count`` is asked in the first call of a graph, before it runs.
    """

    graphs: list[_Watched] = field(default_factory=list)
    nanoseconds: int = 0
    count: Count | None = None

    def __call__(self, kind: str, done: Imported, library: Library, program: Program) -> _Watched:
        watched = _Watched(kind, _steps(len(self.graphs), done, library), program, self)
        if self.count is not None:
            watched.count = partial(self.count, done, [number for _, number in library.steps])
        self.graphs.append(watched)
        return watched

    def forget(self) -> None:
        """Drop what was measured so far."""
        for graph in self.graphs:
            graph.samples.clear()

    def called(self) -> None:
        """Hear that a call is over: one that went straight to its program told nobody, and is found by its clock."""
        if self.nanoseconds:
            return
        seen: set[int] = set()
        for graph in self.graphs:
            library = graph.watched.library._handle
            if library not in seen:  # graphs with the same text share a clock
                seen.add(library)
                graph.hear()


@dataclass
class _Watched:
    """A program that remembers what its driver measured: per call, nanoseconds of every step and of the teams."""

    kind: str
    steps: list[ProfileStep]
    watched: Program
    recorder: Recorder
    samples: list[list[int]] = field(default_factory=list)
    seen: int = 0
    count: Callable[[Sequence[Any]], list[int | None]] | None = None

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        if self.count is not None:
            counts, self.count = self.count(args), None
            self.steps = [replace(s, counted=n) for s, n in zip(self.steps, counts, strict=True)]
        results = self.watched(args)
        # At once: another graph with the same text shares the library and its clock.
        self._note()
        return results

    def hear(self) -> None:
        """Note the clock if there was a call since it was noted."""
        if self.watched.profiled_calls(len(self.steps)) != self.seen:
            self._note()

    def _note(self) -> None:
        ticks = self.watched.ticks(len(self.steps))
        self.seen = self.watched.profiled_calls(len(self.steps))
        self.samples.append(ticks)
        self.recorder.nanoseconds += sum(ticks)


def _steps(graph: int, done: Imported, library: Library) -> list[ProfileStep]:
    steps, ops = [], done.network.ops()
    for kernel, number in library.steps:
        spec = ops[number].spec
        name = kernel if kernel is not None else spec.calls_out
        net, op = done.network, ops[number]
        dtype = _arithmetic([net.containers[o.data].dtype for o in (*net.ins(op), *net.outs(op))], spec)
        places = source_lines(net.origins.of(sources(op)))
        steps.append(
            ProfileStep(
                graph,
                name,
                spec.describe(),
                op.origin,
                spec.operations(),
                net.moved_by(op),
                dtype=dtype,
                torch=kernel is None,
                places=places,
            )
        )
    return steps


def _arithmetic(types: Sequence[str], spec: Any) -> str:
    """The element type of an operator's arithmetic: that of float32 or 64, but for products of half types where a processor has those."""
    if "f64" in types:
        return "f64"
    if getattr(spec, "halves", False) or getattr(spec, "dots", False):
        return "bf16"
    if isinstance(spec, AttentionSpec) and not spec.grads:
        return spec.dtype
    product: Any = (
        spec.of if isinstance(spec, LibraryCall) else spec.product if isinstance(spec, FusedProduct) else None
    )
    return str(product.types.a) if hasattr(product, "types") else "f32"


def profile(
    model: Any,
    compiled: Callable[[Any, Session], Callable[..., Any]],
    options: Options,
    inputs: Sequence[Any],
    named: Mapping[str, Any] | None = None,
    *,
    seconds: float = 2.0,
    loss: Callable[[Any], torch.Tensor] | None = None,
    count: Count | None = None,
    adds_up: bool = False,
    progress: Progress | None = None,
) -> Profile:
    """Measure the kernels of a model's calls.

    Args:
        model: a module or function as it was before ``optimize``; buffers of a module stay as they are.
        compiled: compiles the model with a session, as ``optimize.compiled_with`` does.
        options: of the compilation.
        inputs, named: the call.
        seconds: how long to measure.
        loss: makes a scalar of what the call returns; then the backward pass is part of every measured call. Gradients of the
            user's tensors are left alone.
        count: counts what every step touches, once (``touched_bytes.counted``).
        adds_up: whether times are means over the faster half of the calls, so that those of kernels, of teams and of what is around
            are the call's; medians are not, where others disturb the calls.
        progress: told of the steps of the compilation; nothing is told while calls are measured.

    Raises:
        OptionError: a target whose code is not ours to measure.
        InvalidInput: nothing was compiled in the call, or the model's parameters are sharded.
    """
    target = target_class(options.target)
    if not target.profiles:
        raise OptionError(f"only targets {DEFAULT!r} and 'cuda' can be profiled", where=f"target={options.target!r}")
    if isinstance(model, nn.Module) and is_sharded(model):
        raise InvalidInput(
            "a model under fully_shard cannot be profiled", where=type(model).__name__,
            hint="dcir.optimize(model).dcir.profile(...) before fully_shard",
        )  # fmt: skip
    model = with_own_state(model)
    recorder = Recorder(count=count)
    # Options that watch every pass would only slow the second compilation.
    session = Session(replace(options, verify="off"), watch=recorder, progress=progress)
    fast = compiled(model, session)
    leaves = [v for v in pytree.tree_leaves((inputs, dict(named or {}))) if isinstance(v, torch.Tensor)]
    wanted = [v for v in leaves if v.requires_grad]
    if isinstance(model, nn.Module):
        wanted += [p for p in model.parameters() if p.requires_grad]

    def call() -> None:
        out = fast(*inputs, **(named or {}))
        if loss is not None:
            torch.autograd.grad(loss(out), wanted, allow_unused=True)

    walls, around = measured(call, recorder, seconds)
    if not recorder.graphs:
        raise InvalidInput("nothing was compiled in this call, so there are no kernels to measure")
    found = summary(
        recorder, walls, around, options.threads or torch.get_num_threads(), adds_up=adds_up, model=target.rates()
    )
    found.device = target.profiled_on()
    return found


def with_own_state(model: Any) -> Any:
    """The model, or a copy of it where calls may write its state, so that the user's stays as it is."""
    if not isinstance(model, nn.Module):
        return model
    if any(m.training for m in model.modules()):
        return copy.deepcopy(model)
    if next(model.buffers(), None) is None:
        return model
    # Calls in eval mode write no parameters, and a model may fill half of the memory.
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


def measured(call: Callable[[], None], recorder: Recorder, seconds: float) -> tuple[list[float], list[float]]:
    """Of repeated calls, after a few that do not count, the wall times in milliseconds, and what of them no driver saw."""
    for _ in range(_WARM_UP):
        call()
    recorder.forget()
    walls: list[float] = []
    around: list[float] = []
    stop = time.perf_counter() + seconds
    while len(walls) < _LEAST or (time.perf_counter() < stop and len(walls) < _MOST):
        recorder.nanoseconds = 0
        start = time.perf_counter()
        call()
        walls.append((time.perf_counter() - start) * 1e3)
        recorder.called()
        around.append(walls[-1] - recorder.nanoseconds * 1e-6)
    return walls, around


def summary(
    recorder: Recorder, walls: Sequence[float], around: Sequence[float], threads: int, *, adds_up: bool = False,
    model: Any = None,
) -> Profile:  # fmt: skip
    """The recorder's samples as a profile (see ``profile``). A graph that runs n times per call counts n times.

    ``model`` has the rates of which floors are made; None: this machine's.
    """
    model = rates() if model is None else model
    typical = middle(walls)
    quiet = [i for i, wall in enumerate(walls) if wall <= typical] if adds_up else []

    def of_calls(values: Sequence[float]) -> float:
        return sum(values[i] for i in quiet) / len(quiet) if quiet else middle(values)

    def of_samples(column: Sequence[int]) -> float:
        times = len(column) // len(walls)
        if not quiet or times * len(walls) != len(column):  # nobody knows which call a sample is of
            return middle(column) * len(column) / len(walls) * 1e-6
        return of_calls([sum(column[i * times : (i + 1) * times]) * 1e-6 for i in range(len(walls))])

    result = Profile(threads, len(walls), of_calls(walls), min(walls), of_calls(around), 0.0)
    for graph in recorder.graphs:
        if not graph.samples:
            continue
        result.graphs.append(graph.kind)
        times = len(graph.samples) / len(walls)
        columns = list(zip(*graph.samples, strict=True))
        for step, column in zip(graph.steps, columns, strict=False):
            seconds = model.floor_seconds(step.flops, step.bytes, threads=threads, dtype=step.dtype)
            result.steps.append(
                replace(
                    step,
                    floor_ms=seconds * 1e3 * times if model.measured else None,
                    ms=of_samples(column),
                    least_ms=min(column) * times * 1e-6,
                    flops=round(step.flops * times),
                    bytes=round(step.bytes * times),
                    counted=None if step.counted is None else round(step.counted * times),
                )
            )
        result.team_ms += of_samples(columns[-1])
    return result
