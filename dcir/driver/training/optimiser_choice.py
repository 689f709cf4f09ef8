"""The default implementation of torch's optimisers, for parameters of optimised modules: the fused one.

torch updates CPU parameters one operator and one tensor at a time unless it is asked not to: on BERT-base AdamW takes a quarter of a
step, nine times as long as torch's own fused kernel for the same formula. On other devices torch chooses by itself when the
user states no wish; the same is done here for optimisers that hold parameters of a module given to ``dcir.optimize``. Whoever
passes ``fused`` or ``foreach`` is obeyed, and ``dcir.optimize(..., fused_optimizers=False)`` leaves all as it is. So does a group with
a tensor of a subclass (a part of a sharded parameter, a quantised one): which operators such a class knows is its own affair.

torch's fused kernels go through memory, whatever strides and types say, SGD's leaves most of a parameter of 16 bits as it was, and it wants
momentum of all parameters or of none (PyTorch 2.13). A step is fused only where all of that is as they take it, and the wish is taken back
behind it, so that no checkpoint has it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
"""Optimisers whose fused form torch has on CPUs; subclasses may do something else with their groups."""

_CLASSES = (nn.Parameter, torch.Tensor)
_WHOLE = 4
"""Bytes of the numbers that fused SGD updates right."""

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
        register_optimizer_step_post_hook(_after_step)
        _installed = True


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if optimizer not in _seen:
        _seen.add(optimizer)
        if type(optimizer) in FUSED:
            _choose(optimizer)
    chosen = _chosen.get(optimizer)
    if chosen:
        closure = any(a is not None for a in (*args[1:], *kwargs.values()))  # it makes the gradients, behind this
        for group in chosen:
            group["fused"] = True if not closure and _fusable(optimizer, group) else None


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in _chosen.get(optimizer, ()):
        group["fused"] = None


STEP_HOOKS = (_before_step, _after_step)
"""Those of all optimisers that are dcir's."""


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


def _fusable(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    """Whether torch's fused kernel takes a step of a group as it is now."""
    own, sgd = optimizer.state, type(optimizer) is torch.optim.SGD
    started = set()
    for p in group["params"]:
        g = p.grad
        if g is None:
            continue
        if type(p) not in _CLASSES or type(g) not in _CLASSES or g.layout is not torch.strided:
            return False
        state = own.get(p, {})
        if not _alike(p, (g, *(s for n, s in state.items() if isinstance(s, torch.Tensor) and n != "step"))):
            return False
        if sgd and p.dtype.itemsize < _WHOLE:
            return False
        started.add(state.get("momentum_buffer") is not None)
    return not (sgd and group["momentum"] and len(started) > 1)


def _alike(p: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    """Whether all lie in memory as a parameter does, without gaps and repetitions, in its type."""
    strides, dtype, shape = p.stride(), p.dtype, p.shape
    if not p.is_contiguous() and not torch._prims_common.is_non_overlapping_and_dense_or_false(p):
        return False
    return all(o.dtype == dtype and o.shape == shape and o.stride() == strides for o in others)
