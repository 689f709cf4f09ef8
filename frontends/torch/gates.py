"""Gates between parameters and a compiled graph: a gradient goes on to whoever waits for it as soon as its part of the backward has run.

    parameters --> gate --> compiled forward ... compiled backward --> gate --> DistributedDataParallel's hooks

A compiled backward is one node of autograd's graph, and hands over all gradients at once. Here it hands over tensors that are not
written yet, and each gate runs the backward's next part before it lets its gradients through. So buckets are sent while the
rest is computed, and the graph stays whole: PyTorch would have Dynamo cut it into a graph for each bucket.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MOST_GATES = 16
"""A gate is two calls of Python a step."""


class PartByPart(Protocol):
    """A call that runs part by part (``runtime/part_by_part.py``)."""

    @property
    def ended(self) -> bool:
        """Whether nothing is left to run."""

    def advance(self, part: int) -> None:
        """Run up to a part."""

    def finish(self) -> None:
        """Run all parts."""


class _Offer(threading.local):
    """Memory that gradients may be written to in this thread; see ``gradients_written_to``."""

    memory: dict[int, torch.Tensor] | None = None


_OFFER = _Offer()


@contextlib.contextmanager
def gradients_written_to(memory: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Around a forward and its backward: gradients of parameters are written to memory of whoever collects them, where that can be.

    Each memory is given to one compiled graph, for one call of it: what else adds to a gradient comes in memory of its own.

    Args:
        memory: id of a parameter, which has no gradient yet -> a tensor like its gradient, whose memory
            nobody uses until the gradient is handed over.
    """
    offer = dict(memory)
    before, _OFFER.memory = _OFFER.memory, offer
    try:
        yield
    finally:
        _OFFER.memory = before
        offer.clear()


class Gates:
    """What a compiled forward and its backward share."""

    def __init__(self) -> None:
        self._gated: frozenset[int] = frozenset()
        self._ready: Sequence[int] = ()
        self._run: PartByPart | None = None
        self._offer: dict[int, torch.Tensor] | None = None
        self._memory: dict[int, torch.Tensor] = {}

    def forward(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled forward whose parameters pass through gates, whether or not its backward will run part by part."""
        known: dict[tuple[bool, ...], list[list[int]]] = {}

        def gated(*args: Any) -> Any:
            if not torch.is_grad_enabled():
                return call(*args)
            wanted = tuple(isinstance(a, nn.Parameter) and a.requires_grad for a in args)
            if wanted not in known:  # Dynamo compiles again where this changes
                known[wanted] = _groups(wanted, args)
                self._gated = frozenset(i for group in known[wanted] for i in group)
            self._claim(self._gated, args)
            passed = list(args)
            # In the order in which they are used: what autograd saw last it asks first.
            for group in known[wanted]:
                through = _Gate.apply(self, group, *(args[i] for i in group))  # type: ignore[no-untyped-call]
                for i, value in zip(group, through, strict=True):
                    passed[i] = value
            return call(*passed)

        return gated

    def _claim(self, numbers: Iterable[int], args: Sequence[Any]) -> None:
        """Take the memory that there is for the gradients of these arguments, at the first call of an offer."""
        offer = _OFFER.memory
        first, self._offer, self._memory = offer is not self._offer, offer, {}
        # A backward does not say which call it is of, so there is none for two.
        if offer and first:
            # Tensors of their own: one that others hold, too, autograd copies.
            self._memory = {i: offer.pop(id(args[i])).detach() for i in numbers if id(args[i]) in offer}

    def memory(self) -> Mapping[int, torch.Tensor]:
        """Where the backward that begins may write results, by their numbers; once."""
        memory, self._memory = self._memory, {}
        return memory if self._offer is _OFFER.memory else {}

    def begin(self, run: PartByPart, ready: Sequence[int]) -> None:
        """A backward begins, whose results go to the gates.

        Args:
            run: nothing of it has run.
            ready: with which part each result is complete, -1 for those that are.
        """
        self.finish()  # another one, of which gradients may be waited for
        self._run, self._ready = run, ready
        if torch.is_anomaly_enabled():  # looks at all results at once
            self.finish()
        else:
            # What passes through no gate must be complete when the backward returns.
            self._advance([number for number in range(len(ready)) if number not in self._gated])

    def complete(self, numbers: Sequence[int]) -> None:
        """Run the backward under way until the gradients of these arguments are complete."""
        self._advance(numbers)

    def _advance(self, numbers: Sequence[int]) -> None:
        if self._run is None or not numbers:
            return
        try:
            self._run.advance(max(self._ready[i] for i in numbers))
        finally:
            if self._run.ended:  # or failed, which is over for the next one
                self._run = None

    def finish(self) -> None:
        """Run the backward under way to its end."""
        if (run := self._run) is not None:
            self._run = None
            run.finish()


def _groups(wanted: Sequence[bool], args: Sequence[Any]) -> list[list[int]]:
    """Numbers of the parameters of each gate, in their order: about as many bytes in each."""
    size = {i: args[i].numel() * args[i].element_size() for i, on in enumerate(wanted) if on}
    enough = sum(size.values()) / MOST_GATES
    groups: list[list[int]] = []
    collected = small = 0
    for number, nbytes in size.items():
        # What is small beside a gate goes with what came before it: biases with their weights.
        is_small = nbytes * 8 < enough
        if not groups or (collected >= enough and (small >= enough or not is_small)):
            groups.append([])
            collected = small = 0
        groups[-1].append(number)
        collected += nbytes
        small += nbytes * is_small
    return groups


class _Gate(torch.autograd.Function):
    """Parameters as they are; their gradients once they are complete."""

    @staticmethod
    def forward(ctx: Any, gates: Gates, numbers: list[int], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.gates, ctx.numbers = gates, numbers
        # A parameter that the graph has no gradient for gets none, as without a gate: zeros would make a sparse one dense.
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        ctx.gates.complete(ctx.numbers)
        return None, None, *gradients


def gates_of_call() -> Gates | None:
    """Gates for a graph that is traced in a call of a ``DistributedDataParallel``, whose hooks wait for gradients; else None."""
    return Gates() if DistributedDataParallel._get_active_ddp_module() is not None else None
