"""``dcir.train_step``: whole training steps, of one process or of one replica among several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dcir.driver.targets.of_device import device_of, tensors_of, with_target
from dcir.driver.training.replicated_step import ReplicatedStep
from dcir.driver.training.whole_step import TrainStep
from dcir.errors import InvalidInput, OptionError
from dcir.frontends.torch.training import Clip
from dcir.ops.reach import on_device
from dcir.options import Options


def train_step(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
    autocast: torch.dtype | None = None,
    level: int | str = 4,
    **options: Any,
) -> TrainStep:
    """Compile whole training steps of a model.

        step = dcir.train_step(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters()))
        for x, y in loader:
            loss = step(x, y)

    A call computes ``loss_fn(model(*inputs), target)`` for ``step(*inputs, target)``, its gradients, and the optimiser's step, and
    writes the parameters, the buffers and the optimiser's state where they are. ``optimizer.state_dict()``, learning rate schedulers
    and checkpoints work as before. Gradients that ``backward()`` left in ``p.grad`` (of earlier batches: accumulation) are added, and are
    None afterwards. A step is compiled once per mode and options of the optimiser that do not change its numbers, for the first batch as
    it is, and again when a size of it changes: for all sizes if that can be had, else for each combination (``explain()`` says why).

    A batch may be nested (a tuple of targets, a dict). Every value of a plain number or string in it has a program of its own, so
    what changes from step to step belongs in a tensor. So have the numbers, texts and hooks of the model's and the loss function's
    modules, those of records (namespaces, dataclasses) that these hold, and those that their code, and functions of yours that it calls,
    read by name of closures, defaults, globals, classes and objects, and of objects and containers in these; not those that they ask the
    system for. A buffer that the forward pass assigns is written where it lies; a
    tensor or number that it keeps elsewhere is refused, and so are lazy layers that have not been called, hooks of parameters and of the
    optimiser, to which a step has no gradients to show, and an autocast around it.

    Under ``DistributedDataParallel`` (``dcir.train_step(DDP(model), ...)``) a step is forward and loss in one program, a backward that
    hands its gradients to torch's reducer part by part, with the hooks and options that it has, and the update in another one. It
    accumulates what ``loss_fn(model(*inputs), target).backward()`` left behind under ``no_sync``, and follows ``dcir.optimize`` in sizes,
    graph breaks and numbers in a batch. A parameter whose gradient is None is not updated, as by torch.

    Args:
        model: trained in the mode (``train()`` or ``eval()``) it is in when called.
        loss_fn: from the model's result and the last member of the batch to a scalar. Tensors that it holds (class weights, a learned
            temperature) are parameters or buffers of a module.
        optimizer: torch.optim.SGD, Adam, AdamW or RMSprop over (some of) the parameters of the model and of the loss function.
        clip_grad_norm, clip_grad_value: clip gradients as torch.nn.utils.clip_grad_norm_ and clip_grad_value_ do.
        autocast: ``torch.bfloat16`` runs forward and loss under autocast.
        level, options: as for ``dcir.optimize``.

    Raises:
        Unsupported: another optimiser, or one of its options has no compiled form; or the model is under ``fully_shard``, has
            ``DistributedDataParallel`` inside of it, or has parameters on another device or of a class of their own.
        OptionError, InvalidInput: an argument cannot be.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"train_step takes an nn.Module, not a {type(model).__name__}")
    if clip_grad_norm is not None and clip_grad_value is not None:
        raise OptionError(
            "gradients are clipped by norm or by value, not both", where="clip_grad_norm, clip_grad_value"
        )
    if autocast not in (None, torch.bfloat16):
        raise OptionError(f"no autocast to {autocast}", where="autocast", hint="torch.bfloat16")
    chosen = Options.make(level=level, **with_target(options, tensors_of(model)))
    chosen.refuse_streams("a training step")
    if options.get("keep_traces"):
        raise OptionError(
            "a training step is traced in every process: its trace has no guards that another process could ask", where="keep_traces=True",
            hint="leave it out, or dcir.optimize(model, keep_traces=True) with a loop of your own",
        )  # fmt: skip
    if chosen.dynamic:
        raise OptionError(
            "which sizes of a batch change is found out by a training step",
            where=f"dynamic={options['dynamic']!r}",
            hint="leave it out, or dynamic=False for programs of constant sizes; dcir.optimize(model, dynamic=...) with a loop of your own",
        )
    clip = Clip(clip_grad_norm, clip_grad_value)
    with on_device(device_of(chosen)):
        if not isinstance(model, DistributedDataParallel):
            return TrainStep(model, loss_fn, optimizer, clip, autocast, chosen)
        return ReplicatedStep(model, loss_fn, optimizer, clip, autocast, chosen)
