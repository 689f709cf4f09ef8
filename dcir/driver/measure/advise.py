"""Advice for a model as it is called: it is measured on the roofline, rules say what to change, and what they say is tried."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from dcir.cores import usable_threads
from dcir.driver.measure.advice.facts import Facts, Memory, Update, call_of, is_image
from dcir.driver.measure.advice.memory_plans import memory_of
from dcir.driver.measure.advice.rules import pieces_of, together
from dcir.driver.measure.advice.running import Make, Running, running, taking_turns
from dcir.driver.measure.machine import share_of_others
from dcir.driver.measure.models import maker_of
from dcir.driver.measure.roofline import roofline
from dcir.driver.measure.training_step import FORMS, OPTIMISERS
from dcir.driver.session import Progress
from dcir.driver.targets.host import host_machine
from dcir.driver.training.optimiser_choice import prefer_fused
from dcir.errors import InvalidInput, OptionError
from dcir.isa import Isa
from dcir.report.advice import Advice, Speed
from dcir.report.advice_pieces import Call, Measured, Piece
from dcir.report.roofline import Roofline
from dcir.report.roofline_points import Setting

_TIMES_THE_BATCH = 4
# Of the operations a second of float32, as measured on products (docs/measurements/2026-11-25-zen4.md, half-types.md).
_PAIRS, _ON_UNIT = 1.9, 3.3
# Words of memory that a fused update reads and writes, for each parameter: it, its gradient, and each moment twice.
_WORDS = {"sgd": 5, "adam": 7, "adamw": 7}
_PARAMETER_AND_GRADIENT = 3
_UPDATES = 10


def advise(
    make: Make,
    *,
    threads: Sequence[int] = (),
    batches: Sequence[int | None] = (),
    levels: Sequence[int] = (4,),
    mode: str = "infer",
    seconds: float = 1.0,
    name: str = "model",
    source: str = "MODEL",
    optimiser: str = "sgd",
    update: str | None = None,
    memory: int | None = None,
    apply: int = 0,
    progress: Progress | None = None,
) -> Advice:
    """Measure a model, and say what to change of its call.

    Args:
        make: gives model and inputs for a batch; an ``OptionError`` of it says that there is none to choose.
        threads: sizes of the team to look at; the largest is that of now. One, half as many and as many as torch uses if there are none.
        batches: to look at, that of now first. The model's own and four times as many items if there are none, and it takes some.
        levels: to look at; the highest is that of now, and the highest of all is looked at, too.
        mode: "infer"; or "train" for training steps.
        seconds: how long to measure each.
        name, source: of the model, in texts and in commands.
        optimiser: of training steps, one of torch's by name.
        update: how it updates now: "loop", "foreach", "fused"; as torch does for an optimised module (fused) unless given.
        memory: bytes that a training step may take, parameters, gradients and the optimiser's state included; where it takes more,
            advice is what keeps it. Unless given, limits are looked at where a step takes half of the machine's memory.
        apply: of how many pieces to measure what they bring, next to the model as it is called, to all that goes together, and to eager
            PyTorch.
        progress: told of settings and of calls that are compiled, and of nothing while they are measured.

    Raises:
        OptionError: as ``roofline``; no such optimiser, or form of one; no memory, or that of an inference.
        InvalidInput: as ``roofline``.
    """
    if optimiser not in OPTIMISERS:
        raise OptionError(
            "an optimiser is one of torch's", where=f"optimiser={optimiser!r}", hint=", ".join(OPTIMISERS)
        )
    if update not in FORMS:
        raise OptionError("an update is one of torch's forms", where=f"update={update!r}", hint="loop, foreach, fused")
    if memory is not None and (memory < 1 or mode != "train"):
        raise OptionError(
            "memory is what a training step may take", where=f"memory={memory}, mode={mode!r}", hint="--mode train"
        )
    make = _shared(make)
    before = torch.get_num_threads()
    processors = min(max(threads, default=before), usable_threads())
    threads = threads or sorted({1, max(1, before // 2), before})
    try:
        model, inputs = make(batches[0] if batches else None)
        if mode == "train" and not isinstance(model, nn.Module):
            raise InvalidInput("only a module has parameters to train", where=name)
        own = _first_size(inputs)
        batches = batches or _own_and_more(make, own)
        found = roofline(
            make, threads=threads, batches=batches, levels=levels, mode=mode, seconds=seconds, name=name, progress=progress
        )  # fmt: skip
        now = Setting(max(threads), batches[0], max(levels))
        found = _with_highest(found, make, now, seconds)
        items = {b: b or own for b in batches}
        ways = _Ways(make, items, own, mode, optimiser, update)
        runs = {r.setting: r for r in found.runs}
        times = ways.measured([call_of(s) for s in runs], seconds, progress)
        torch.set_num_threads(now.threads)
        step, room = (
            _training(model, inputs, call_of(now), optimiser, update, memory) if mode == "train" else (None, None)
        )
        facts = Facts(
            now, runs, {s: m.ms for s, m in zip(runs, times, strict=True)}, items, found.rates, processors, _bytes_of(model),
            tuple(_images(inputs)), mode, _pairs_of(host_machine().isa, model),
            step, room, source,
        )  # fmt: skip
        del model, inputs
        pieces = pieces_of(facts)
        all_of_it = together(facts, pieces)
        return _applied(ways, facts, found, pieces, all_of_it, apply, seconds, progress)
    finally:
        torch.set_num_threads(before)


def advise_file(
    source: str | os.PathLike[str], *, shapes: Mapping[str, Sequence[int | str]] | None = None, **settings: Any
) -> Advice:
    """``advise`` for an ONNX file, or for ``file.py:function`` (see ``models.open_model``).

    Args:
        source: the model.
        shapes: sizes of an ONNX file's inputs.
        settings: as for ``advise``.

    Raises:
        InvalidInput: no model is there, or a .dcir file, whose code has no clock.
        OptionError: batches for a file whose sizes are all fixed.
    """
    text = os.fspath(source)
    return advise(maker_of(source, shapes), name=os.path.basename(text), source=text, **settings)


class _Ways:
    """Ways to call a model, each compiled once.

    Args:
        make: gives model and inputs.
        items: of a call, by batch; ``own`` of the model's own.
        mode, optimiser, update: see ``advise``.
    """

    def __init__(
        self, make: Make, items: Mapping[int | None, int], own: int, mode: str, optimiser: str, update: str | None
    ) -> None:
        self._make, self._items, self._own, self._mode = make, items, own, mode
        self._optimiser, self._update = optimiser, update
        self._made: dict[Call, Running] = {}

    def measured(self, calls: Sequence[Call], seconds: float, progress: Progress | None) -> list[Measured]:
        """Each of them, in turns; gains are over the first."""
        for call in calls:
            if call not in self._made:
                items = self._items.get(call.batch, call.batch or self._own)
                self._made[call] = running(
                    self._make, call, items, mode=self._mode, optimiser=self._optimiser, update=self._update
                )
        return taking_turns([self._made[call] for call in calls], seconds, progress)

    def eager(self, now: Call) -> Call:
        """PyTorch as it is by default: one item at a time where that can be chosen, and in training as many as now."""
        call = replace(now, level=None)
        if self._mode == "train" or self._items[now.batch] == 1:
            return call
        try:
            self._make(1)
        except OptionError:
            return call
        return replace(call, batch=1)


def _applied(
    ways: _Ways, facts: Facts, found: Roofline, pieces: Sequence[Piece], all_of_it: Piece | None, count: int, seconds: float,
    progress: Progress | None,
) -> Advice:  # fmt: skip
    """What ``count`` pieces bring that can be tried, in turns with the model as it is called, all that goes together, and eager."""
    tried = [p for p in pieces if p.call is not None][:count]
    eager = ways.eager(facts.call)
    calls = [facts.call, eager, *(p.call for p in tried if p.call is not None)]
    if count and all_of_it is not None and all_of_it.call is not None:
        calls.append(all_of_it.call)
    calls = list(dict.fromkeys(calls))
    done: list[Measured] = []
    others = share_of_others(found.rates.threads, lambda: done.extend(ways.measured(calls, seconds, progress)))
    by_call = dict(zip(calls, done, strict=True))

    def with_figures(p: Piece) -> Piece:
        return p.applied(by_call[p.call]) if p.call in by_call and (p in tried or p is all_of_it) else p

    return Advice(
        found, _speed(by_call[facts.call]), _speed(by_call[eager]), tuple(map(with_figures, pieces)),
        None if all_of_it is None else with_figures(all_of_it), count > 0, others,
    )  # fmt: skip


def _speed(m: Measured) -> Speed:
    return Speed(m.call, m.items_per_second, m.ms)


def _with_highest(found: Roofline, make: Make, now: Setting, seconds: float) -> Roofline:
    """With the highest level at the setting of now, if it was not asked for."""
    best = replace(now, level=4)
    if best in [r.setting for r in found.runs]:
        return found
    more = roofline(
        make, threads=[now.threads], batches=[now.batch], levels=[4], mode=found.mode, seconds=seconds, name=found.model
    )
    return replace(found, runs=(*found.runs, *more.runs))


def _own_and_more(make: Make, own: int) -> tuple[int | None, ...]:
    more = _TIMES_THE_BATCH * own
    try:
        _, inputs = make(more)
    except OptionError:
        return (None,)
    return (None, more) if _first_size(inputs) == more else (None,)


def _shared(make: Make) -> Make:
    """``make`` that makes everything once, and one model for all batches where those that it makes are alike."""
    known: dict[int | None, tuple[Any, Sequence[Any]]] = {}

    def made(batch: int | None) -> tuple[Any, Sequence[Any]]:
        if batch not in known:
            model, inputs = make(batch)
            other = next((m for m, _ in known.values() if _told(m) == _told(model)), model)
            known[batch] = other, inputs
        return known[batch]

    return made


def _told(model: Any) -> Any:
    """What tells models of one function apart: classes, numbers and words of all parts, and shapes of tensors."""
    if not isinstance(model, nn.Module) or any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        return id(model)
    tensors = [(n, t.shape, t.dtype) for n, t in (*model.named_parameters(), *model.named_buffers())]
    parts = [
        (n, type(m), {k: v for k, v in vars(m).items() if isinstance(v, int | float | str | tuple)})
        for n, m in model.named_modules()
    ]
    return tensors, parts


def _first_size(inputs: Sequence[Any]) -> int:
    """Items of a call: the first size of the first input that has one."""
    tensors = (v for v in pytree.tree_leaves(inputs) if isinstance(v, torch.Tensor))
    return next((t.shape[0] for t in tensors if t.dim() and t.shape[0]), 1)


def _images(inputs: Sequence[Any]) -> list[tuple[int, bool]]:
    found = [v for v in pytree.tree_leaves(inputs) if is_image(v)]
    return [(v.nbytes, not v.is_contiguous()) for v in found]


def _bytes_of(model: Any) -> int:
    return sum(t.nbytes for t in (*model.parameters(), *model.buffers())) if isinstance(model, nn.Module) else 0


def _pairs_of(isa: Isa, model: Any) -> float | None:
    """How much faster products of bfloat16 are than those of a model's own type; None where that is not float32, or nobody's."""
    types = {p.dtype for p in model.parameters() if p.is_floating_point()} if isinstance(model, nn.Module) else set()
    if types != {torch.float32}:
        return None
    return _PAIRS if isa.dots else _ON_UNIT if isa.matrix_unit else 1.0


def _training(
    model: nn.Module, inputs: Sequence[Any], now: Call, name: str, form: str | None, allowed: int | None
) -> tuple[Update, Memory | None]:
    """What training has besides kernels: the optimiser's step, and memory."""
    step = _update(model, name, form)
    parameters = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    # A moment is read and written, the gradient read.
    state = (_WORDS[name] - _PARAMETER_AND_GRADIENT) // 2 * parameters
    return step, memory_of(model, inputs, now, state, allowed)


def _update(model: nn.Module, name: str, form: str | None) -> Update:
    """An optimiser's step over a copy of the parameters, in a form of ``FORMS``; None is what it is for an optimised module."""
    twin = copy.deepcopy(model)
    prefer_fused(twin)
    parameters = [p for p in twin.parameters() if p.requires_grad]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    optimiser = OPTIMISERS[name](parameters, **FORMS[form])
    times = []
    for _ in range(1 + _UPDATES):
        start = time.perf_counter()
        optimiser.step()
        times.append((time.perf_counter() - start) * 1e3)
    moved = _WORDS[name] * sum(p.nbytes for p in parameters)
    return Update(name, min(times[1:]), moved, len(parameters), form or "fused")
