"""The default implementation of torch's optimisers, for parameters of optimised modules: the fused one.

torch updates CPU parameters one operator and one tensor at a time unless it is asked not to: on BERT-base AdamW takes a quarter of a
step, nine times as long as torch's own fused kernel for the same formula. On other devices torch chooses by itself when the
user states no wish; the same is done here for optimisers that hold parameters of a module given to ``dcir.optimize``. Whoever
passes ``fused`` or ``foreach`` is obeyed, and ``dcir.optimize(..., fused_optimizers=False)`` leaves all as it is. So does a group with
a tensor of a subclass (a part of a sharded parameter, a quantised one): which operators such a class knows is its own affair.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
"""Optimisers whose fused form torch has on CPUs; subclasses may do something else with their groups."""

_CLASSES = (nn.Parameter, torch.Tensor)

_modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
_chosen: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[dict[str, Any]]] = weakref.WeakKeyDictionary()
_installed = False


def prefer_fused(module: nn.Module) -> None:
    """From the next step on, optimisers of this module's parameters are fused unless they were made otherwise."""
    global _installed
    _modules.add(module)
    _seen.clear()
    if not _installed:
        register_optimizer_step_pre_hook(_before_step)
        _installed = True


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if optimizer not in _seen:
        _seen.add(optimizer)
        if type(optimizer) in FUSED:
            _choose(optimizer)
    for group in _chosen.get(optimizer, ()):
        group["fused"] = True if all(map(_fusable, group["params"])) else None


def _choose(optimizer: torch.optim.Optimizer) -> None:
    ours = {id(p) for module in _modules for p in module.parameters()}
    chosen = _chosen.setdefault(optimizer, [])
    for group in optimizer.param_groups:
        if any(g is group for g in chosen) or not any(id(p) in ours for p in group["params"]):
            continue
        stated = any(group.get(name) is not None for name in ("fused", "foreach"))
        other = group.get("differentiable") or group.get("capturable") or isinstance(group.get("lr"), torch.Tensor)
        if not stated and not other and all(map(_ordinary, group["params"])):
            chosen.append(group)


def _ordinary(p: torch.Tensor) -> bool:
    return type(p) in _CLASSES and p.is_cpu and p.is_floating_point()


def _fusable(p: torch.Tensor) -> bool:
    """Whether this step can be fused for a parameter: torch's fused kernels take no sparse gradients, the others do."""
    g = p.grad
    return type(p) in _CLASSES and (g is None or (type(g) in _CLASSES and g.layout is torch.strided))
