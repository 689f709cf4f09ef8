"""A model called in some way, ready to run again and again; and several of these taking turns."""

from __future__ import annotations

import collections
import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.driver.measure.advice.facts import is_image
from dcir.driver.measure.training_step import FORMS, OPTIMISERS, mean_squares
from dcir.driver.optimize import optimize
from dcir.driver.session import Progress
from dcir.driver.training.train_step import train_step
from dcir.errors import InvalidInput
from dcir.report.advice_pieces import Call, Measured

Make = Callable[[int | None], tuple[Any, Sequence[Any]]]
"""Gives a model and the arguments of a call, for a batch of so many items (None: as the model has it)."""

ROUNDS = 9
_WARM_UP = 2
# Long against the clock and what hands calls over, and no longer than a slice of the scheduler that others may take.
_BURST_SECONDS = 0.02
# A team that has just ended a turn spins for milliseconds, and the next one's first call waits for its processors.
_SHORT_SECONDS = 0.1


@dataclass
class Running:
    """A model called in one way.

    Attributes:
        call: the way.
        items: of a call.
        once: runs one call and gives what it returns.
        several: runs so many calls, as many at a time as ``call`` says.
        seconds: of a call, once it was warmed up; of several at a time, from one that ends to the next.
    """

    call: Call
    items: int
    once: Callable[[], Any]
    several: Callable[[int], None]
    seconds: float = 0.0

    def warm_up(self) -> None:
        """Compile, and run until nothing is new; then find out how long a call takes."""
        self._set_threads()
        self.once()
        n = _WARM_UP * self.call.streams
        self.several(n)
        start = time.perf_counter()
        self.several(n)
        self.seconds = (time.perf_counter() - start) / n

    def turn(self, seconds: float) -> list[float]:
        """Items a second of bursts of calls, one behind the other until ``seconds`` have passed."""
        self._set_threads()
        if self.seconds < _SHORT_SECONDS:
            self.several(self.call.streams)
        # As many for each stream, or the last one runs alone.
        n = self.call.streams * max(1, round(_BURST_SECONDS / max(self.seconds, 1e-7) / self.call.streams))
        rates: list[float] = []
        start = last = time.perf_counter()
        while last - start < seconds or not rates:
            self.several(n)
            now = time.perf_counter()
            rates.append(n * self.items / (now - last))
            last = now
        return rates

    def _set_threads(self) -> None:
        torch.set_num_threads(self.call.threads * self.call.streams)


def running(
    make: Make, call: Call, items: int, *, mode: str = "infer", optimiser: str = "sgd", update: str | None = None
) -> Running:
    """A model called in a way; it is compiled when it is first run.

    Args:
        make: gives model and inputs.
        call: the way.
        items: of a call.
        mode: "infer"; or "train" for steps with the sum of mean squares of what the model returns as a loss.
        optimiser: of a training step, one of ``OPTIMISERS``, at a rate that keeps weights as they are.
        update: how it updates, of ``FORMS``, unless the call has it fused.

    Raises:
        InvalidInput: a function that is to be trained or to be of another type.
    """
    model, inputs = make(call.batch)
    if (mode == "train" or call.half) and not isinstance(model, nn.Module):
        raise InvalidInput("only a module has parameters to train, or to be of another type", where=str(call))
    if call.half:
        model = copy.deepcopy(model).to(torch.bfloat16)
        inputs = pytree.tree_map_only(torch.Tensor, _halved, inputs)
    if call.turned:
        inputs = pytree.tree_map_only(torch.Tensor, _turned, inputs)
    if mode == "train":
        step = _step(copy.deepcopy(model).train(), inputs, call, optimiser, FORMS["fused" if call.fused else update])
        return Running(call, items, step, _one_by_one(step))
    fast = model if call.level is None else optimize(model, dynamic=False, **_options(call))

    def once() -> Any:
        with torch.no_grad():
            return fast(*inputs)

    def at_once(n: int) -> None:
        with torch.no_grad():
            futures: collections.deque[Any] = collections.deque()
            for _ in range(n):
                futures.append(fast.dcir.submit(*inputs))
                if len(futures) > 2 * call.streams:  # results need not lie in memory together
                    futures.popleft().result()
            while futures:
                futures.popleft().result()

    return Running(call, items, once, _one_by_one(once) if call.streams == 1 else at_once)


def _options(call: Call) -> dict[str, Any]:
    level = 4 if call.level is None else call.level
    if call.memory_limit is not None:
        return {"level": level, "threads": call.threads, "memory_limit": call.memory_limit}
    if call.streams == 1:
        return {"level": level, "threads": call.threads}
    return {"level": level, "streams": call.streams, "threads": call.streams * call.threads}


def _one_by_one(once: Callable[[], Any]) -> Callable[[int], None]:
    def several(n: int) -> None:
        for _ in range(n):
            once()

    return several


def _step(
    model: nn.Module, inputs: Sequence[Any], call: Call, name: str, form: Mapping[str, bool]
) -> Callable[[], Any]:
    """A training step of a module of its own."""
    if call.whole_step:
        whole = train_step(
            model, lambda out, _: mean_squares(out), OPTIMISERS[name](model.parameters(), **form), dynamic=False,
            **_options(call),
        )  # fmt: skip
        target = torch.zeros(())
        return lambda: whole(*inputs, target)
    fast = model if call.level is None else optimize(model, dynamic=False, **_options(call))
    optimiser = OPTIMISERS[name](model.parameters(), **form)

    def once() -> Any:
        optimiser.zero_grad(set_to_none=True)
        loss = mean_squares(fast(*inputs))
        loss.backward()
        optimiser.step()
        return loss.detach()

    return once


def _halved(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16) if x.is_floating_point() else x


def _turned(x: torch.Tensor) -> torch.Tensor:
    if not is_image(x):
        return x
    return x.contiguous(memory_format=torch.channels_last if x.is_contiguous() else torch.contiguous_format)


def taking_turns(
    ways: Sequence[Running], seconds: float, progress: Progress | None = None, rounds: int = ROUNDS
) -> list[Measured]:
    """Measure ways to call a model, in turns; gains are over the first.

    Of each the best burst of calls counts. Others that work on the machine make a team wait for whichever of its threads they keep from a
    processor, so what a median has of them is not alike for one thread and for several; in turns, all ways meet quiet moments.

    Args:
        ways: what to run; those that are warm are not warmed up again.
        seconds: for each, in all rounds together.
        progress: told of every way that is compiled, and of nothing while calls are measured.
        rounds: how many turns each has.
    """
    for number, way in enumerate(ways):
        if progress is not None:
            progress("advised calls", number, len(ways))
        if not way.seconds:
            way.warm_up()
    rates: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for row, way in zip(rates, ways, strict=True):
            row += way.turn(seconds / rounds)
    if progress is not None:
        progress("advised calls", len(ways), len(ways))
    return [_measured(way, row, rates[0]) for way, row in zip(ways, rates, strict=True)]


def _measured(way: Running, rates: Sequence[float], first: Sequence[float]) -> Measured:
    best = max(rates)
    return Measured(
        way.call, best, way.items / best * 1e3, best / max(first), 1 - statistics.median(rates) / best, len(rates)
    )
