"""Capture of a whole training step, forward, loss, backward, gradient clipping and update, as one graph; and of the update alone.

AOTAutograd exports forward and backward as one joint graph; the update rules, written as functions over tensors, are traced behind it.
Hyperparameters that schedulers change (learning rate, momentum, …) are elements of one input tensor, so the graph outlives them.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch._aot_autograd.descriptors import (
    AOTInput,
    BufferAOTInput,
    GradAOTOutput,
    InputMutationAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    TangentAOTInput,
)
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.compiler import _compile_session_context
from torch.fx.experimental.proxy_tensor import make_fx

from dcir.errors import DcirError, Unsupported
from dcir.frontends.torch.as_eager import decomposed_as_eager
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.decompose import decompositions
from dcir.frontends.torch.gpu_forms import gpu_forms
from dcir.frontends.torch.model_state import ModelState, tensors_put_back
from dcir.ops.reach import device

OF_LOSS = "(loss_fn)."
"""What names of the loss function's tensors begin with."""

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
        context: which of its results replace which of those.
        parameters, buffers: names in order.
        updated: updates of parameters that have a gradient, in the order of their states.
        accumulated: names of the parameters whose gradients so far are inputs, in order.
        outputs: number of the results before the updates: the loss, but for an update alone, and with a norm to clip by that norm.
    """

    graph: fx.GraphModule
    context: GraphContext
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    updated: tuple[Update, ...]
    accumulated: tuple[str, ...]
    outputs: int


class _Loss(nn.Module):
    """The function whose derivative is taken, as a module with the model and, where it is one, the loss function in it."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        batch_of: Callable[..., Any],
        autocast: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.model, self.loss_fn, self.batch_of, self.autocast = model, loss_fn, batch_of, autocast

    def forward(self, *batch: Any) -> tuple[Tensor]:
        inputs, target = self.batch_of(batch)
        context = (
            torch.autocast(device(), self.autocast, cache_enabled=False) if self.autocast else contextlib.nullcontext()
        )
        before = ModelState.of(self)
        with context:
            loss = self.loss_fn(self.model(*inputs), target)
        before.keep()
        return (loss,)


def capture_step(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    batch: Sequence[Tensor],
    updates: Sequence[Update],
    hyper: int,
    *,
    batch_of: Callable[[Sequence[Tensor]], tuple[Sequence[Any], Any]],
    clip: Clip,
    autocast: torch.dtype | None = None,
    accumulated: Sequence[str] = (),
) -> CapturedStep:
    """Trace one step for the shapes of ``batch``.

    Args:
        model: in the mode (training or not) it is to run in.
        loss_fn: from the model's result and the target to a scalar; parameters and buffers of a module are inputs as the model's.
        batch: example tensors; fake ones may have symbolic sizes.
        updates: one for each parameter that the optimiser holds.
        hyper: number of hyperparameters of all groups.
        batch_of: the model's arguments and the target, of the tensors of a batch.
        clip: gradient clipping.
        autocast: element type of an autocast region around forward and loss.
        accumulated: names of parameters that have a gradient already, to which the new one is added.

    Raises:
        Unsupported: forward and backward cannot be traced as one graph.
    """
    wrapped = _Loss(model, loss_fn, batch_of, autocast)
    try:
        # What is one tensor in this batch need not be one in the next.
        joint = _joint(wrapped, [t.detach().requires_grad_(t.requires_grad) for t in batch])
        written = [d for d in joint.mutated if not isinstance(d, BufferAOTInput)]
        if written:
            names = [d.target if isinstance(d, ParamAOTInput) else f"input {getattr(d, 'idx', '?')}" for d in written]
            raise Unsupported(f"the forward pass writes to {', '.join(names[:4])}", where=type(model).__name__)
        return _with_updates(wrapped, joint, batch, updates, hyper, clip, accumulated)
    except DcirError:
        raise
    except Exception as e:
        if "convert all Tensors to FakeTensors" in str(e):
            raise Unsupported(
                "the model or the loss function uses a tensor that is no parameter or buffer of either", where=type(model).__name__,
                hint="register it as a buffer; of a loss that is a function, make a module (nn.CrossEntropyLoss(weight=…))",
            ) from e  # fmt: skip
        raise Unsupported(
            f"the training step cannot be captured as one graph: {(str(e).strip().splitlines() or ['?'])[0][:300]}",
            where=type(model).__name__,
            hint="dcir.optimize(model) with torch's own optimiser compiles what can be captured",
        ) from e


@dataclass(frozen=True)
class _Joint:
    """Forward and backward as one graph.

    Attributes:
        graph: from parameters, buffers, batch and the loss's gradient.
        inputs: what each input of the graph is. A tensor with several names is one for each of them, but where one of those that are
            written has several: then every tensor is one input.
        parameters, buffers: all names.
        mutated: inputs whose new contents are the first results; the loss follows.
        gradients: name of a parameter -> number of the result that is its gradient.
        loss: a tensor like the loss.
    """

    graph: fx.GraphModule
    inputs: tuple[AOTInput, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    mutated: tuple[AOTInput, ...]
    gradients: Mapping[str, int]
    loss: Tensor


def _joint(wrapped: nn.Module, batch: Sequence[Tensor]) -> _Joint:
    """The joint graph as torch.compile's partition functions see it.

    (``aot_export_module`` takes units apart that have a decomposition beside a kernel: SiLU's gradient, for one.) Code that asks
    ``torch.compiler.is_compiling()`` is told so: it looks into data where it is not, to choose a shorter way.
    """
    with (
        decomposed_as_eager(),
        gpu_forms(),
        _compile_session_context(),
        tensors_put_back(wrapped),
        contextlib.ExitStack() as stack,
    ):
        made = aot_export_joint_with_descriptors(stack, wrapped, tuple(batch), decompositions=decompositions())
    graph = made.graph_module
    results = next(iter(graph.graph.find_nodes(op="output")))
    what = results.meta["desc"]
    inputs = graph.graph.find_nodes(op="placeholder")
    tangents = [n for n in inputs if isinstance(n.meta["desc"], TangentAOTInput)]
    if len(tangents) != 1 or tangents[0].meta["val"].numel() != 1:
        raise Unsupported(
            "the loss is no scalar that depends on a parameter", where="loss_fn", hint="return the mean or the sum"
        )
    return _Joint(
        graph, tuple(n.meta["desc"] for n in inputs), tuple(made.params_spec), tuple(made.buffers_spec),
        tuple(d.mutated_input for d in what if isinstance(d, InputMutationAOTOutput)),
        {
            d.grad_of.target: i
            for i, (d, value) in enumerate(zip(what, results.args[0], strict=True))
            if isinstance(d, GradAOTOutput) and isinstance(d.grad_of, ParamAOTInput) and value is not None
        },
        tangents[0].meta["val"],
    )  # fmt: skip


def _plain(name: str) -> str:
    head, _, rest = name.partition(".")
    return rest if head == "model" else OF_LOSS + rest


def _with_updates(
    wrapped: nn.Module, joint: _Joint, batch: Sequence[Tensor], updates: Sequence[Update], hyper: int, clip: Clip,
    accumulated: Sequence[str],
) -> CapturedStep:  # fmt: skip
    flat = {
        _plain(n): t
        for source in (wrapped.named_parameters, wrapped.named_buffers)
        for n, t in source(remove_duplicate=False)
    }
    # A tensor with several names is one input here; the joint graph adds its gradients.
    every = tuple(map(_plain, (*joint.parameters, *joint.buffers)))
    first: dict[int, str] = {}
    known_as = {n: first.setdefault(id(flat[n]), n) for n in every}
    parameters = tuple(n for n in map(_plain, joint.parameters) if known_as[n] == n)
    buffers = tuple(n for n in map(_plain, joint.buffers) if known_as[n] == n)
    gradients: dict[str, list[int]] = {}
    for n, i in joint.gradients.items():
        gradients.setdefault(known_as[_plain(n)], []).append(i)
    mutated = {known_as[_plain(d.target)]: i for i, d in enumerate(joint.mutated)}  # type: ignore[attr-defined]
    loss_at = len(joint.mutated)
    # What has a gradient from before is updated by it, as in torch, even if this step adds nothing to it.
    live = tuple(u for u in updates if u.name in gradients or u.name in accumulated)
    updated = {u.name for u in live}
    added = tuple(name for name in accumulated if name in updated)
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
        given_batch = own[len(by_name) :]
        one = torch.ones(joint.loss.shape, dtype=joint.loss.dtype, device=joint.loss.device)

        def value(what: AOTInput) -> Tensor:
            if isinstance(what, ParamAOTInput | BufferAOTInput):
                return by_name[known_as[_plain(what.target)]]
            if isinstance(what, PlainAOTInput):
                return given_batch[what.idx]
            if isinstance(what, TangentAOTInput):
                return one
            raise Unsupported("something in the batch lies in memory that the forward pass writes", hint="clone it")

        out = fx.Interpreter(joint.graph).run(*map(value, joint.inputs), enable_io_processing=False)
        grads = {}
        for u in live:
            made = [*(out[i] for i in gradients.get(u.name, ())), *([before[u.name]] if u.name in before else [])]
            grads[u.name] = functools.reduce(operator.add, made)
        grads, norm = _clipped(grads, clip)
        replaced = [*(out[i] for i in mutated.values()), *_updated(live, by_name, grads, states, table)]
        return [out[loss_at], *([norm] if norm is not None else []), *replaced]

    like = [flat[u.name] for u in live for _ in u.state]
    example = [
        *(flat[n] for n in (*parameters, *buffers)), *batch, *(flat[n] for n in added), *like,
        torch.zeros(max(hyper, 1), dtype=torch.float64, device=device()),
    ]  # fmt: skip
    if (mode := detect_fake_mode(list(batch))) is not None:  # of the batch's sizes alone some are symbols
        example = [t if isinstance(t, FakeTensor) else mode.from_tensor(t, static_shapes=True) for t in example]
    # The joint graph's operators are traced once more: as they were before, when Python's own forms of them were asked, too.
    with torch.no_grad(), decomposed_as_eager(), enable_python_dispatcher():
        graph = make_fx(step, tracing_mode="fake")(*(t.detach() for t in example))
    outputs = 2 if clip.norm is not None else 1
    target = _written_over(parameters, buffers, len(batch) + len(added), outputs, tuple(mutated), live)
    context = GraphContext("training step", updates=target)
    return CapturedStep(graph, context, parameters, buffers, live, added, outputs)


def capture_update(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    states: Sequence[Tensor],
    updates: Sequence[Update],
    hyper: int,
    *,
    clip: Clip,
) -> CapturedStep:
    """Trace clipping and the optimiser's update alone, for gradients that are there already.

    Args:
        parameters, gradients: of each update, in order, laid out as they will be.
        states: of all updates, one after the other.
        updates: one for each parameter.
        hyper: number of hyperparameters of all groups.
        clip: gradient clipping.
    """
    names = tuple(u.name for u in updates)
    count = len(names)

    def update(*values: Tensor) -> list[Tensor]:
        own, grads = (dict(zip(names, values[at : at + count], strict=True)) for at in (0, count))
        grads, norm = _clipped(grads, clip)
        new = _updated(updates, own, grads, values[2 * count : -1], values[-1])
        return [*([norm] if norm is not None else []), *new]

    numbers = torch.zeros(max(hyper, 1), dtype=torch.float64, device=parameters[0].device if parameters else None)
    example = [*parameters, *gradients, *states, numbers]
    with torch.no_grad():
        graph = make_fx(update, tracing_mode="fake")(*(t.detach() for t in example))
    outputs = 1 if clip.norm is not None else 0
    target = _written_over(names, (), count, outputs, (), updates)
    return CapturedStep(graph, GraphContext("update", updates=target), names, (), tuple(updates), names, outputs)


def _updated(
    live: Sequence[Update], values: Mapping[str, Tensor], grads: Mapping[str, Tensor], states: Sequence[Tensor],
    table: Tensor,
) -> list[Tensor]:  # fmt: skip
    """Each parameter's new value and, behind it, its new state."""
    rest, replaced = list(states), []
    for u in live:
        state = dict(zip(u.state, [rest.pop(0) for _ in u.state], strict=True))
        numbers = {name: table[u.first + i] for i, name in enumerate(u.hyper)}
        value, new = u.rule(values[u.name], grads[u.name], state, numbers)
        replaced += [value, *(new[s] for s in u.state)]
    return replaced


def _written_over(
    parameters: Sequence[str], buffers: Sequence[str], between: int, outputs: int, mutated: Sequence[str],
    live: Sequence[Update],
) -> dict[int, int]:  # fmt: skip
    """Which input each of a step's results replaces, by their numbers.

    Args:
        parameters, buffers: names of the first inputs.
        between: inputs between those and the optimiser's state.
        outputs: results in front that replace nothing.
        mutated: buffers that the forward writes.
        live: parameters with their state.
    """
    at, target = outputs, {}
    for name in mutated:
        target[at] = len(parameters) + buffers.index(name)
        at += 1
    state_at = len(parameters) + len(buffers) + between
    for u in live:
        target[at] = parameters.index(u.name)
        for i in range(len(u.state)):
            target[at + 1 + i] = state_at + i
        state_at += len(u.state)
        at += 1 + len(u.state)
    return target


def _clipped(grads: dict[str, Tensor], clip: Clip) -> tuple[dict[str, Tensor], Tensor | None]:
    if clip.value is not None:
        grads = {n: g.clamp(-clip.value, clip.value) for n, g in grads.items()}
    if clip.norm is None:
        return grads, None
    wide = functools.reduce(torch.promote_types, (g.dtype for g in grads.values()), torch.float32)
    squares = torch.stack([g.to(wide).square().sum() for g in grads.values()])
    norm = squares.sum().sqrt()
    factor = (clip.norm / (norm + 1e-6)).clamp(max=1.0)
    return {n: g * factor.to(g.dtype) for n, g in grads.items()}, norm
