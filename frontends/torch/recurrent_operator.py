"""A recurrent layer as one operator of torch, ``dcir::recurrent``, and its gradient.

The backward computes the layer again under autograd. Dropout between layers draws the same numbers then: the generator's state is a result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def _run(
    kind: str, data: Tensor, sizes: Tensor | None, state: Sequence[Tensor], weights: Sequence[Tensor],
    biases: bool, layers: int, dropout: float, train: bool, both: bool, batch_first: bool,
) -> list[Tensor]:  # fmt: skip
    hx = tuple(state) if kind == "lstm" else state[0]
    function: Callable[..., tuple[Tensor, ...]] = getattr(torch, kind)
    if sizes is not None:
        return list(function(data, sizes, hx, list(weights), biases, layers, dropout, train, both))
    return list(function(data, hx, list(weights), biases, layers, dropout, train, both, batch_first))


@torch.library.custom_op("dcir::recurrent", mutates_args=())
def recurrent(
    kind: str, data: Tensor, sizes: Tensor | None, state: list[Tensor], weights: list[Tensor],
    biases: bool, layers: int, dropout: float, train: bool, both: bool, batch_first: bool,
) -> list[Tensor]:  # fmt: skip
    """A recurrent layer: its output, its last states, and the state of the random generator before it."""
    generator = torch.get_rng_state() if dropout and train else torch.empty(0, dtype=torch.uint8)
    results = _run(kind, data, sizes, state, weights, biases, layers, dropout, train, both, batch_first)
    return [*(r.clone() for r in results), generator]


@recurrent.register_fake
def _(
    kind: str, data: Tensor, sizes: Tensor | None, state: list[Tensor], weights: list[Tensor],
    biases: bool, layers: int, dropout: float, train: bool, both: bool, batch_first: bool,
) -> list[Tensor]:  # fmt: skip
    width = state[0].shape[-1] * (2 if both else 1)
    output = data.new_empty((*data.shape[:-1], width))
    generator = torch.get_rng_state().numel() if dropout and train else 0
    return [output, *(torch.empty_like(s) for s in state), data.new_empty(generator, dtype=torch.uint8)]


@contextlib.contextmanager
def _autograd_again() -> Iterator[None]:
    """Autograd as outside of operators: torch runs their code below it."""
    core: Any = torch._C
    with contextlib.ExitStack() as keys:
        for name in ("AutogradFunctionality", "AutogradOther", "ADInplaceOrView"):
            keys.enter_context(core._SetExcludeDispatchKeyGuard(getattr(core.DispatchKey, name), False))
        keys.enter_context(torch.enable_grad())
        yield


@torch.library.custom_op("dcir::recurrent_backward", mutates_args=())
def recurrent_backward(
    gradients: list[Tensor], generator: Tensor,
    kind: str, data: Tensor, sizes: Tensor | None, state: list[Tensor], weights: list[Tensor],
    biases: bool, layers: int, dropout: float, train: bool, both: bool, batch_first: bool,
) -> list[Tensor]:  # fmt: skip
    """Gradients of the input, the states and the weights, in this order."""
    wanted = [t.detach().requires_grad_() for t in (data, *state, *weights)]
    n = 1 + len(state)
    with _autograd_again(), torch.random.fork_rng(devices=[]):
        if generator.numel():
            torch.set_rng_state(generator)
        results = _run(
            kind, wanted[0], sizes, wanted[1:n], wanted[n:], biases, layers, dropout, train, both, batch_first
        )
    found = torch.autograd.grad(results, wanted, gradients, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g.clone() for g, w in zip(found, wanted, strict=True)]


@recurrent_backward.register_fake
def _(gradients: list[Tensor], generator: Tensor, kind: str, data: Tensor, sizes: Tensor | None, state: list[Tensor],
      weights: list[Tensor], *rest: Any) -> list[Tensor]:  # fmt: skip
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (data, *state, *weights)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    kind, data, sizes, state, weights, *rest = inputs
    ctx.kind, ctx.counts, ctx.rest, ctx.packed = kind, (len(state), len(weights)), rest, sizes is not None
    ctx.shapes = [(o.shape, o.dtype) for o in output[:-1]]
    ctx.save_for_backward(output[-1], data, *([sizes] if sizes is not None else []), *state, *weights)


def _differentiate(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    generator, data, *rest = ctx.saved_tensors
    sizes = rest.pop(0) if ctx.packed else None
    states, weights = ctx.counts
    given = [
        data.new_zeros(shape, dtype=dtype) if g is None else g
        for g, (shape, dtype) in zip(gradients, ctx.shapes, strict=False)
    ]
    found = recurrent_backward(given, generator, ctx.kind, data, sizes, rest[:states], rest[states:], *ctx.rest)
    parts = found[0], None, list(found[1 : 1 + states]), list(found[1 + states :])
    assert len(parts[3]) == weights
    return (None, *parts, *([None] * len(ctx.rest)))


recurrent.register_autograd(_differentiate, setup_context=_keep)
