"""Gates between parameters and a compiled graph: a gradient goes on to whoever waits for it as soon as its part of the backward has run.

    parameters --> gate --> compiled forward ... compiled backward --> gate --> DistributedDataParallel's hooks

A compiled backward is one node of autograd's graph, and hands over all gradients at once. Here it hands over tensors that are not
written yet, and each gate runs the backward's next part before it lets its gradients through. So buckets are sent while the
rest is computed, and the graph stays whole: PyTorch would have Dynamo cut it into a graph for each bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class PartByPart(Protocol):
    """A call that runs part by part (``runtime/part_by_part.py``)."""

    @property
    def ended(self) -> bool:
        """Whether nothing is left to run."""

    def advance(self, part: int) -> None:
        """Run up to a part."""

    def finish(self) -> None:
        """Run all parts."""


class Gates:
    """What a compiled forward and its backward share.

    Attributes:
        ready: of a backward that runs part by part, with which part each of its results is complete; empty of any other.
    """

    def __init__(self) -> None:
        self.ready: tuple[int, ...] = ()
        self._free = -1
        self._run: PartByPart | None = None

    def forward(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled forward whose parameters pass through gates, if its backward runs part by part."""
        if not self.ready:
            return call
        groups: dict[tuple[bool, ...], list[tuple[int, list[int]]]] = {}

        def gated(*args: Any) -> Any:
            if not torch.is_grad_enabled() or len(args) != len(self.ready):
                return call(*args)
            wanted = tuple(isinstance(a, nn.Parameter) and a.requires_grad for a in args)
            if wanted not in groups:
                groups[wanted] = self._groups(wanted)
            passed = list(args)
            for part, places in groups[wanted]:
                through = _Gate.apply(self, part, *(args[i] for i in places))  # type: ignore[no-untyped-call]
                for i, value in zip(places, through, strict=True):
                    passed[i] = value
            return call(*passed)

        return gated

    def _groups(self, wanted: Sequence[bool]) -> list[tuple[int, list[int]]]:
        """Parameters by the part of their gradients, those of the last part first: what autograd saw last it asks first."""
        # Whatever passes through no gate must be complete when the backward returns.
        self._free = max((part for part, on in zip(self.ready, wanted, strict=True) if not on), default=-1)
        groups: dict[int, list[int]] = {}
        for number, (part, on) in enumerate(zip(self.ready, wanted, strict=True)):
            if on and part > self._free:
                groups.setdefault(part, []).append(number)
        return sorted(groups.items(), reverse=True)

    def begin(self, run: PartByPart) -> None:
        """A backward begins, whose results go to the gates."""
        self.finish()  # another one, of which gradients may be waited for
        self._run = run
        if torch.is_anomaly_enabled():  # looks at all results at once
            self.finish()
        else:
            self.advance(self._free)

    def advance(self, part: int) -> None:
        """Run the backward under way up to a part."""
        if self._run is not None:
            self._run.advance(part)
            if self._run.ended:
                self._run = None

    def finish(self) -> None:
        """Run the backward under way to its end."""
        if (run := self._run) is not None:
            self._run = None
            run.finish()


class _Gate(torch.autograd.Function):
    """Parameters as they are; their gradients once they are complete."""

    @staticmethod
    def forward(ctx: Any, gates: Gates, part: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.gates, ctx.part = gates, part
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        ctx.gates.advance(ctx.part)
        return None, None, *gradients


def gates_of_call() -> Gates | None:
    """Gates for a graph that is traced in a call of a ``DistributedDataParallel``, whose hooks wait for gradients; else None."""
    return Gates() if DistributedDataParallel._get_active_ddp_module() is not None else None
