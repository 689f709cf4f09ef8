"""Capture of a whole training step: forward, loss, backward, gradient clipping and the optimiser's update as one graph.

AOTAutograd exports forward and backward as one joint graph; the update rules, written as functions over tensors, are traced behind it.
Hyperparameters that schedulers change (learning rate, momentum, …) are elements of one input tensor, so the graph outlives them.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dcir.errors import DcirError, Unsupported
from dcir.frontends.torch.decompose import decompositions
from dcir.frontends.torch.importer import UPDATES

# (parameter, gradient, state by name, hyperparameters by name) -> (new parameter, new state by name)
Rule = Callable[[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]


@dataclass(frozen=True)
class Update:
    """How one parameter is updated.

    Attributes:
        name: of the parameter in the module.
        rule: the formula.
        state: names of its state tensors, each like the parameter.
        first: index of its group's hyperparameters in the tensor of all of them.
        hyper: names of the hyperparameters of its group, in order.
    """

    name: str
    rule: Rule
    state: tuple[str, ...]
    first: int
    hyper: tuple[str, ...]


@dataclass(frozen=True)
class Clip:
    """Gradient clipping as in ``torch.nn.utils``: by the norm of all gradients together, by value, or not."""

    norm: float | None = None
    value: float | None = None


@dataclass(frozen=True)
class CapturedStep:
    """The graph of a step and how to call it.

    Attributes:
        graph: its placeholders are parameters, buffers, batch, gradients so far, states, hyperparameters.
        parameters, buffers: names in order.
        updated: updates of parameters that have a gradient, in the order of their states.
        accumulated: names of the parameters whose gradients so far are inputs, in order.
        outputs: number of the results before the updates: the loss, and with a norm to clip by that norm.
    """

    graph: fx.GraphModule
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    updated: tuple[Update, ...]
    accumulated: tuple[str, ...]
    outputs: int
    meta: dict[str, Any] = field(default_factory=dict)


class _Loss(nn.Module):
    """The function whose derivative is taken, as a module."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor], autocast: torch.dtype | None) -> None:
        super().__init__()
        self.model, self.loss, self.autocast = model, loss, autocast

    def forward(self, *batch: Any) -> tuple[Tensor]:
        context = (
            torch.autocast("cpu", self.autocast, cache_enabled=False) if self.autocast else contextlib.nullcontext()
        )
        with context:
            return (self.loss(self.model, *batch),)


def capture_step(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batch: Sequence[Tensor],
    updates: Sequence[Update],
    hyper: int,
    *,
    clip: Clip,
    autocast: torch.dtype | None = None,
    accumulated: Sequence[str] = (),
) -> CapturedStep:
    """Trace one step for the shapes of ``batch``.

    Args:
        model: in the mode (training or not) it is to run in.
        loss: from the model and the batch to a scalar.
        batch: example tensors.
        updates: one for each parameter that the optimiser holds.
        hyper: number of hyperparameters of all groups.
        clip: gradient clipping.
        autocast: element type of an autocast region around forward and loss.
        accumulated: names of parameters that have a gradient already, to which the new one is added.

    Raises:
        Unsupported: forward and backward cannot be traced as one graph.
    """
    wrapped = _Loss(model, loss, autocast)
    try:
        try:
            joint, signature = _joint(wrapped, batch)
        except AssertionError as e:
            if "did not receive a gradient" not in str(e):
                raise
            with _not_wanted(_unused(wrapped, batch)):
                joint, signature = _joint(wrapped, batch)
    except DcirError:
        raise
    except Exception as e:
        raise Unsupported(
            f"the training step cannot be captured as one graph: {(str(e).strip().splitlines() or ['?'])[0][:300]}",
            where=type(model).__name__,
            hint="dcir.optimize(model) with torch's own optimiser compiles what can be captured",
        ) from e
    if signature.user_inputs_to_mutate or signature.parameters_to_mutate:
        written = [*signature.user_inputs_to_mutate.values(), *signature.parameters_to_mutate.values()]
        raise Unsupported(f"the forward pass writes to {', '.join(map(str, written[:4]))}", where=type(model).__name__)
    return _with_updates(wrapped, joint, signature, batch, updates, hyper, clip, accumulated)


def _joint(wrapped: nn.Module, batch: Sequence[Tensor]) -> tuple[Any, Any]:
    return aot_export_module(
        wrapped, tuple(batch), trace_joint=True, output_loss_index=0, decompositions=decompositions()
    )


def _unused(wrapped: nn.Module, batch: Sequence[Tensor]) -> list[nn.Parameter]:
    """Parameters that the loss does not depend on: torch's optimisers leave them alone, weight decay included."""
    wanted = {n: p for n, p in wrapped.named_parameters() if p.requires_grad}
    with FakeTensorMode() as mode, torch.enable_grad():
        state: dict[str, Tensor] = dict(wrapped.named_parameters()) | dict(wrapped.named_buffers())
        fake: dict[str, Tensor] = {n: mode.from_tensor(t) for n, t in state.items()}
        leaves = [fake[n].requires_grad_() for n in wanted]
        (loss,) = torch.func.functional_call(wrapped, fake, tuple(mode.from_tensor(t) for t in batch))
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [p for p, g in zip(wanted.values(), found, strict=True) if g is None]


@contextlib.contextmanager
def _not_wanted(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)


def _plain(name: str) -> str:
    return name.removeprefix("model.")


def _with_updates(
    wrapped: nn.Module, joint: Any, signature: Any, batch: Sequence[Tensor], updates: Sequence[Update], hyper: int,
    clip: Clip, accumulated: Sequence[str],
) -> CapturedStep:  # fmt: skip
    flat = {
        _plain(n): t
        for source in (wrapped.named_parameters, wrapped.named_buffers)
        for n, t in source(remove_duplicate=False)
    }
    # A tensor with several names is one input here, and its gradients are added.
    every = tuple(map(_plain, (*signature.parameters, *signature.buffers)))
    first: dict[int, str] = {}
    known_as = {n: first.setdefault(id(flat[n]), n) for n in every}
    parameters = tuple(n for n in map(_plain, signature.parameters) if known_as[n] == n)
    buffers = tuple(n for n in map(_plain, signature.buffers) if known_as[n] == n)
    results = [n.name for n in next(iter(n for n in joint.graph.nodes if n.op == "output")).args[0]]
    place: Mapping[str, int] = {name: i for i, name in enumerate(results)}
    gradients: dict[str, list[int]] = {}
    for n, p in signature.backward_signature.gradients_to_parameters.items():
        gradients.setdefault(known_as[_plain(p)], []).append(place[n])
    mutated = {known_as[_plain(b)]: i for i, (_, b) in enumerate(signature.buffers_to_mutate.items())}
    loss_at = len(signature.buffers_to_mutate)
    live = tuple(u for u in updates if u.name in gradients)
    added = tuple(name for name in accumulated if name in gradients)
    n_state = sum(len(u.state) for u in live)

    def step(*values: Tensor) -> list[Tensor]:
        given = list(values)

        def take(count: int) -> list[Tensor]:
            head, given[:count] = given[:count], []
            return head

        own = take(len(parameters) + len(buffers) + len(batch))
        before = dict(zip(added, take(len(added)), strict=True))
        states, table = take(n_state), given[0]
        by_name = dict(zip((*parameters, *buffers), own, strict=False))
        out = joint(*(by_name[known_as[n]] for n in every), *own[len(parameters) + len(buffers) :])
        grads = {u.name: functools.reduce(operator.add, (out[i] for i in gradients[u.name])) for u in live}
        grads = {n: g + before[n] if n in before else g for n, g in grads.items()}
        grads, norm = _clipped(grads, clip)
        replaced: list[Tensor] = [*(out[i] for i in mutated.values())]
        for u in live:
            state = dict(zip(u.state, [states.pop(0) for _ in u.state], strict=True))
            numbers = {name: table[u.first + i] for i, name in enumerate(u.hyper)}
            value, new = u.rule(by_name[u.name], grads[u.name], state, numbers)
            replaced += [value, *(new[s] for s in u.state)]
        return [out[loss_at], *([norm] if norm is not None else []), *replaced]

    like = [flat[u.name] for u in live for _ in u.state]
    example = [
        *(flat[n] for n in (*parameters, *buffers)), *batch, *(flat[n] for n in added), *like,
        torch.zeros(max(hyper, 1), dtype=torch.float64),
    ]  # fmt: skip
    with torch.no_grad():
        graph = make_fx(step, tracing_mode="fake")(*(t.detach() for t in example))
    outputs = 2 if clip.norm is not None else 1
    n_own = len(parameters) + len(buffers)
    at, target = outputs, {}
    for name in mutated:
        target[at] = len(parameters) + buffers.index(name)
        at += 1
    state_at = n_own + len(batch) + len(added)
    for u in live:
        target[at] = parameters.index(u.name)
        for i in range(len(u.state)):
            target[at + 1 + i] = state_at + i
        state_at += len(u.state)
        at += 1 + len(u.state)
    graph.meta[UPDATES] = target
    return CapturedStep(graph, parameters, buffers, live, added, outputs)


def _clipped(grads: dict[str, Tensor], clip: Clip) -> tuple[dict[str, Tensor], Tensor | None]:
    if clip.value is not None:
        grads = {n: g.clamp(-clip.value, clip.value) for n, g in grads.items()}
    if clip.norm is None:
        return grads, None
    squares = torch.stack([g.float().square().sum() for g in grads.values()])
    norm = squares.sum().sqrt()
    factor = (clip.norm / (norm + 1e-6)).clamp(max=1.0)
    return {n: g * factor.to(g.dtype) for n, g in grads.items()}, norm
