"""Long recurrent layers stay one operator each: unrolled, every step of time would be operators of its own.

    lstm of 1000 steps   --> dcir::recurrent, a call through torch     else some 13 operators for each step of each layer
    lstm of 20 steps     --> as it is: AOTAutograd unrolls it, and the products are compiled

Its backward computes the layer again under autograd. Dropout between layers draws the same numbers then: the generator's state is a result.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

MOST_CELLS = 64
"""Steps of time of all layers and directions that are unrolled; of 70 the first call took four seconds, of 400 twenty."""
_KINDS: dict[Any, str] = {getattr(torch, name): name for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}


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


def keep_long_layers(gm: fx.GraphModule) -> None:
    """Make recurrent layers of many steps, and those of packed sequences, one operator each in Dynamo's graph."""
    changed = False
    for node in gm.graph.nodes:
        kind = _KINDS.get(node.target) if node.op == "call_function" else None
        if kind is None or node.kwargs:
            continue
        arguments = _arguments(kind, node.args)
        if arguments is None or not _is_long(arguments):
            continue
        node.target, node.args = torch.ops.dcir.recurrent.default, arguments
        changed = True
    if changed:
        gm.recompile()


def _arguments(kind: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Those of ``dcir::recurrent``; None of a form that torch does not document."""
    if len(args) != 9:
        return None
    packed = isinstance(args[3], list | tuple)  # (data, sizes, hx, weights, ...) or (data, hx, weights, ...)
    data, sizes, hx, weights, *rest = args if packed else (args[0], None, *args[1:])
    if not isinstance(weights, list | tuple) or not all(isinstance(v, bool | int | float) for v in rest):
        return None
    state = list(hx) if isinstance(hx, list | tuple) else [hx]
    return (kind, data, sizes, state, list(weights), *rest, *([False] if packed else []))


def _is_long(arguments: tuple[Any, ...]) -> bool:
    _, data, sizes, _, _, _, layers, _, _, both, batch_first = arguments
    value = data.meta.get("example_value")
    if sizes is not None or not isinstance(value, Tensor) or value.ndim < 2:
        return True
    steps = value.shape[1 if batch_first and value.ndim == 3 else 0]
    # A length that changes is not looked at: that would make it a constant.
    return not isinstance(steps, int) or math.prod((steps, layers, 2 if both else 1)) > MOST_CELLS
