"""What `dcir view` looks at: a model that can be made and called again, and how it is compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.driver.measure.profile import with_own_state
from dcir.driver.session import Session
from dcir.errors import OptionError

INFER, TRAIN = MODES = ("infer", "train")

Make = Callable[[int | None], tuple[Any, Sequence[Any], Mapping[str, Any]]]
"""Gives a model and the positional and named arguments of a call, for a batch of so many (None: as the model has it)."""


@dataclass(frozen=True)
class Subject:
    """A model to look at.

    Attributes:
        name: for people.
        source: "onnx", "python" or "module".
        make: gives the model and a call.
        compiled: compiles the model with a session.
        mode: "infer"; or "train" for forward and backward.
        loss: a function from what the model returns to a scalar; mean squares unless given.
        batch: what the model is made for (None: as it has it).
        opening: lines of Python that bind ``model`` and ``inputs``, for scripts; empty where nobody but the caller can.
        batches: whether another batch can be asked for.
    """

    name: str
    source: str
    make: Make
    compiled: Callable[[Any, Session], Callable[..., Any]]
    mode: str = INFER
    loss: Callable[[Any], torch.Tensor] | None = None
    batch: int | None = None
    opening: tuple[str, ...] = field(default=(), repr=False)
    batches: bool = True

    @property
    def trains(self) -> bool:
        """Whether calls have a backward."""
        return self.mode == TRAIN

    def call(self, batch: int | None = None) -> Call:
        """A model of its own and a call of it, for a batch (None: the subject's).

        Raises:
            OptionError: another batch cannot be had.
        """
        if batch is not None and batch != self.batch and not self.batches:
            raise OptionError("the inputs of this model are given, so there is no other batch", where=f"batch={batch}")
        model, inputs, named = self.make(self.batch if batch is None else batch)
        if isinstance(model, nn.Module) and self.trains and not model.training:
            model = copy.deepcopy(model).train()
        else:
            model = with_own_state(model)
        return Call(
            model, tuple(inputs), dict(named), self.loss if self.loss is not None else mean_squares, self.trains
        )


@dataclass(frozen=True)
class Call:
    """A model, the arguments of a call, the loss of what it returns, and whether there is a backward."""

    model: Any
    inputs: tuple[Any, ...]
    named: dict[str, Any]
    loss: Callable[[Any], torch.Tensor]
    trains: bool

    def run(self, fast: Callable[..., Any]) -> list[Any]:
        """One call of ``fast``: its results; in training the loss and the gradients of parameters and inputs."""
        if not self.trains:
            with torch.no_grad():
                return pytree.tree_leaves(fast(*self.inputs, **self.named))
        loss = self.loss(fast(*self.inputs, **self.named))
        return [loss, *torch.autograd.grad(loss, self.wanted(), allow_unused=True)]

    def wanted(self) -> list[torch.Tensor]:
        """The tensors whose gradients are asked for."""
        leaves = pytree.tree_leaves((self.inputs, self.named))
        found = [v for v in leaves if isinstance(v, torch.Tensor) and v.requires_grad]
        if isinstance(self.model, nn.Module):
            found += [p for p in self.model.parameters() if p.requires_grad]
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Name, element type and shape of every input that is a tensor."""
        named = [(f"input {n}", x) for n, x in enumerate(self.inputs)] + list(self.named.items())
        rows = []
        for name, value in named:
            for number, x in enumerate(t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)):
                dtype = str(x.dtype).removeprefix("torch.")
                rows.append({"name": f"{name}.{number}" if number else name, "dtype": dtype, "shape": list(x.shape)})
        return rows


def mean_squares(out: Any) -> torch.Tensor:
    """The sum of the mean squares of all that has a gradient.

    Raises:
        OptionError: nothing has.
    """
    found = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not found:
        raise OptionError("nothing that the model returns has a gradient", where="mode='train'", hint="mode='infer'")
    return torch.stack([t.square().mean() for t in found]).sum()


def of_module(
    name: str,
    plain: Callable[[], Any],
    compiled: Callable[[Any, Session], Callable[..., Any]],
    inputs: Sequence[Any],
    named: Mapping[str, Any],
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> Subject:
    """A model that lives in this process, with the arguments of a call; with a ``loss``, forward and backward."""
    mode = INFER if loss is None else TRAIN
    opening = ("# model, inputs: yours",)
    return Subject(
        name, "module", lambda batch: (plain(), inputs, named), compiled, mode, loss, opening=opening, batches=False
    )
