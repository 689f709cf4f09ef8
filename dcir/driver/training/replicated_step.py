"""A training step under ``DistributedDataParallel``: forward and loss, a backward that feeds its reducer part by part, and the update.

    one program: forward, loss    one program, in parts: backward    torch's reducer    one program: clipping, update

The exchange is torch's own, so it cannot be a part of a program: the update is another one, over gradients as the reducer leaves them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dcir.driver.compile import compiling
from dcir.driver.optimize import compiled_with
from dcir.driver.training.batch import StepFrame, layout
from dcir.driver.training.distributed import calling, spread_by
from dcir.driver.training.optimiser_steps import rows_of
from dcir.driver.training.shared_memory import Apart
from dcir.driver.training.whole_step import HINT, TrainStep
from dcir.errors import InvalidInput, NotCompiledWarning, Unsupported
from dcir.frontends.torch.admission import of_module, refuse_unless_plain
from dcir.frontends.torch.gates import gradients_written_to
from dcir.frontends.torch.training import OF_LOSS, CapturedStep, Clip, capture_update
from dcir.ops.reach import out_of_reach
from dcir.options import Options
from dcir.user_code import warn_user

MOST_UPDATES = 16
"""Programs of updates: one for each set of parameters that have gradients in a step, and had them equally often before."""

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class _Loss(nn.Module):
    """What ``DistributedDataParallel`` calls: the model and the loss as one graph."""

    def __init__(self, model: nn.Module, loss_fn: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.loss_fn = model, loss_fn

    def forward(self, *batch: Any) -> Tensor:
        *inputs, target = batch
        return self.loss_fn(self.model(*inputs), target)


@dataclass(frozen=True)
class _Update:
    """An update, its program, how the optimiser's state lies that it was traced for, and what is known of its tensors' memory."""

    step: CapturedStep
    program: Callable[[list[Any]], list[Any]]
    states: Any
    apart: Apart = field(default_factory=Apart)


class ReplicatedStep(TrainStep):
    """A compiled training step of one replica among several; see ``train_step``. Every replica is to call it.

    Attributes:
        grad_norm: with ``clip_grad_norm``, the norm of the last step's gradients, averaged over the replicas, before clipping.

    Raises:
        Unsupported: an option of the ``DistributedDataParallel``, or a hook on it, does not go with a step.
    """

    model: DistributedDataParallel

    def __init__(
        self, model: DistributedDataParallel, loss_fn: Callable[..., Tensor], optimizer: torch.optim.Optimizer, clip: Clip,
        autocast: torch.dtype | None, options: Options,
    ) -> None:  # fmt: skip
        # Updates are compiled; what torch makes of the others is the form that the user chose.
        super().__init__(model, loss_fn, optimizer, clip, autocast, replace(options, fused_optimizers=False))
        compiled = compiled_with(_Loss(model.module, loss_fn), self.dcir.session)
        self.dcir = compiled.dcir  # can profile it
        self.dcir.name = type(model).__name__
        self._call = calling(model, compiled)
        # The reducer has its parameters from when it was made, whatever the model's become.
        self._names = {id(p): n for n, p in model.named_parameters()}
        if isinstance(loss_fn, nn.Module):  # which no reducer knows: each replica has gradients of its own, as by torch
            self._names = {id(p): OF_LOSS + n for n, p in loss_fn.named_parameters()} | self._names
        self._updates: dict[Any, _Update] = {}
        # Parameters, and where the reducer had their gradients in the last step.
        self._views: list[tuple[nn.Parameter, Tensor]] = []

    def _step(self, batch: Sequence[Tensor], frame: StepFrame) -> Tensor:
        _refuse_hooks(self.model)
        if not self.model.require_backward_grad_sync:
            raise InvalidInput(
                "a step under no_sync would update each replica with gradients of its own", where=type(self.model).__name__,
                hint="loss_fn(model(*inputs), target).backward() under no_sync adds up gradients, and a step after it takes them",
            )  # fmt: skip
        loss = self._differentiated(frame.filled(batch))
        self._update()
        return loss

    def _differentiated(self, batch: Sequence[Any]) -> Tensor:
        """Forward and backward; the averaged gradients are in ``p.grad`` then."""
        cast = (
            torch.autocast(self._device, self._autocast, cache_enabled=False)
            if self._autocast
            else contextlib.nullcontext()
        )
        with torch.enable_grad(), gradients_written_to(self._memory()):
            with cast:
                loss = self._call(*batch)
            if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise Unsupported(
                    "the loss is no scalar that depends on a parameter",
                    where="loss_fn",
                    hint="return the mean or the sum",
                )
            loss.backward()
        return loss.detach()

    def _memory(self) -> dict[int, Tensor]:
        """Where the reducer keeps gradients: what is written there it need not copy.

        A place that it has left since (buckets are sorted anew after the first step) is memory like any other: it compares storages.
        """
        return {id(p): view for p, view in self._views if p.grad is None}

    def _update(self) -> None:
        """The optimiser's step with the gradients that there are."""
        with_gradients = [(h, g) for h in self._steps.held(self._names) if (g := h.parameter.grad) is not None]
        held = [h for h, _ in with_gradients]
        for h, g in with_gradients:
            if (what := out_of_reach(g)) is not None:
                raise Unsupported(f"the gradient of {h.name} is {what}", where=h.name, hint="sparse=False, or " + HINT)
        if not held:
            return
        rows = rows_of(held)  # before there is state, which says that a step was made
        number = {row: i for i, row in enumerate(rows)}
        parameters, gradients = [h.parameter for h in held], [g for _, g in with_gradients]
        if self.model.gradient_as_bucket_view:
            self._views = list(zip(parameters, gradients, strict=True))
        key = (
            self._steps.flags(), tuple((h.name, number[h.row]) for h in held),
            tuple((t.shape, t.stride(), t.dtype) for t in parameters), tuple(t.stride() for t in gradients),
        )  # fmt: skip
        found = self._updates.get(key)
        if found is None and len(self._updates) >= MOST_UPDATES:
            self._by_torch(parameters)
            return
        states = [s for h in held for s in self._steps.states(h)]
        lies = layout(states)  # a checkpoint's as it was saved
        if found is None or found.states != lies:
            step = capture_update(parameters, gradients, states, *self._steps.updates(held, rows), clip=self._clip)
            found = _Update(step, compiling(self.dcir.session)(step.graph, step.context).call, lies)
            self._updates[key] = found
        args = [*parameters, *gradients, *states, self._steps.numbers(rows)]

        def names() -> list[str]:
            own = [h.name for h in held]
            return [
                *own,
                *(f"gradient of {n}" for n in own),
                *(f"{s} of {u.name}" for u in found.step.updated for s in u.state),
            ]

        found.apart.refuse_shared(args[:-1], found.step.context.updates.values(), names)
        results = found.program(args)
        if self._clip.norm is not None:
            self.grad_norm = results[0]
        self._steps.done(held, [args[i] for i in found.step.context.updates.values()])

    def _by_torch(self, parameters: Sequence[nn.Parameter]) -> None:
        """The same, not compiled: which parameters have gradients changes from step to step."""
        warn_user(
            f"gradients of more than {MOST_UPDATES} sets of parameters in turn: torch updates further ones",
            NotCompiledWarning,
        )
        if self._clip.norm is not None:
            self.grad_norm = nn.utils.clip_grad_norm_(parameters, self._clip.norm)
        if self._clip.value is not None:
            nn.utils.clip_grad_value_(parameters, self._clip.value)
        self.optimizer.step()
        for p in parameters:
            p.grad = None

    def _refuse(self, model: nn.Module) -> None:
        assert isinstance(model, DistributedDataParallel)
        where = type(model).__name__
        if (spread := spread_by(model.module)) is not None:
            raise Unsupported(
                f"a training step is compiled for replicas, and {spread} is inside of one", where=where, hint=HINT
            )
        if model.mixed_precision is not None:
            hint = "train_step(..., autocast=torch.bfloat16), or a loop of your own"
            raise Unsupported(f"no compiled step with {where}(mixed_precision=...)", where=where, hint=hint)
        if model._delay_all_reduce_params:
            raise Unsupported(
                f"no compiled step with {where}(delay_all_reduce_named_params=...)", where=where, hint=HINT
            )
        _refuse_hooks(model)
        refuse_unless_plain(of_module(model))


def _refuse_hooks(model: nn.Module) -> None:
    """Refuse hooks on the wrapper: they are for the model's inputs and results, and here the loss is computed inside of it.

    Raises:
        Unsupported: there are any.
    """
    if any(getattr(model, name) for name in _HOOKS):
        where = type(model).__name__
        raise Unsupported(
            f"a hook on {where} itself sees a model's inputs and results, and a step computes the loss inside of it",
            where=where, hint=f"register it on the module inside (model.module), or {HINT}",
        )  # fmt: skip
