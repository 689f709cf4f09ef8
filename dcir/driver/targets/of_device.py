"""Which target makes code for tensors where nobody names one, and calls that read the memory of its device."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from dcir.driver.session import Session
from dcir.frontends.torch.gpu_forms import in_gpu_forms
from dcir.frontends.torch.partition.cut_for import CutFor, cuts_for
from dcir.ops.reach import on_device
from dcir.options import Options
from dcir.targets import target_class


def with_target(options: dict[str, Any], tensors: Iterable[Any]) -> dict[str, Any]:
    """The options, with the target for GPUs where nobody names one and a tensor is on a GPU."""
    if "target" in options or not any(isinstance(t, torch.Tensor) and t.is_cuda for t in tensors):
        return options
    return {**options, "target": "cuda"}


def tensors_of(model: Any) -> Iterable[torch.Tensor]:
    """Parameters and buffers of a module; nothing of what is none."""
    return itertools.chain(model.parameters(), model.buffers()) if isinstance(model, nn.Module) else ()


def device_of(options: Options) -> str:
    """The kind of device whose memory code is to read.

    Raises:
        OptionError: the machine has none such.
    """
    target = target_class(options.target)
    target.check_host()
    return str(target.device())


def reading_device(call: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """``call``, in which tensors of the target's device are those that code can read, and graphs are traced and cut as the target wants
    it.

    Raises:
        OptionError: the machine has none such.
    """
    kind = device_of(session.options)
    target = target_class(session.options.target)
    if kind == "cpu" and target.cuts == CutFor() and target.attends:
        return call

    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        with on_device(kind), cuts_for(target.cuts), in_gpu_forms(wanted=not target.attends):
            return call(*args, **kwargs)

    return run
