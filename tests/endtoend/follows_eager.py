"""One network through dcir and through eager PyTorch: results, every gradient and every buffer of a training step.

The rule is that of ``dcir/driver/verify/compare.py`` (error against float64, at most three times eager's own) over the floor of
``tests/fuzz/check.py``: what float64 itself changes by when its operators see operands disturbed as much as float32 rounds. As there, what
is over the limit is compared with the greatest error that eager has when it rounds otherwise: one number may be right by luck. There are
more such runs than there. Derivatives jump at the kinks of ReLUs and max pools, and of many activations a few lie nearer to one than
float32 knows them: one run in several goes the other way there, eager's as well, and its gradients are off by that activation's share.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import dcir
from dcir.driver.verify.compare import FACTOR
from tests.fuzz.check import _Disturbed

_UNITS = 4.0
_DISTURBED = 4.0
# Runs of eager with disturbed operands, made one by one while something is over its limit. Thirty others taken for dcir's (five networks
# of plain_images): 2 are over the limit of eager's one run, 1 over that of four more, none over that of eight.
_ROUNDINGS = 16


@dataclass
class Followed:
    """How one mode (inference or training) compares.

    Attributes:
        worst: the largest error in units of its limit (at most 1 if dcir follows eager), and the tensor's name.
        largest: the largest error in units of eager's own.
        fallbacks: operators that ran through torch.
        breaks: graph breaks.
        operators: of all graphs that were compiled.
        seconds: of processor time for the first call, the compiler's included.
    """

    worst: tuple[float, str] = (0.0, "")
    largest: float = 0.0
    fallbacks: list[str] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)
    operators: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


class _Double(TorchDispatchMode):
    """Requests for float32 (a norm that computes in it) are requests for float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map(lambda v: torch.float64 if v is torch.float32 else v, (args, kwargs or {}))
        return func(*args, **kwargs)


def without_dropout(module: nn.Module) -> nn.Module:
    """Dropout draws other numbers in float64."""
    for part in module.modules():
        if isinstance(part, nn.Dropout | nn.Dropout1d | nn.Dropout2d):
            part.p = 0.0
    return module


def without_zeros(module: nn.Module) -> nn.Module:
    """Heads that begin as zeros give zeros whatever comes before them."""
    for part in module.parameters():
        if not part.any():
            nn.init.normal_(part, std=0.02)
    return module


def follow(module: nn.Module, inputs: dict[str, Any], *, train: bool, **options: Any) -> Followed:
    """Run one step of ``module`` through dcir and compare everything that can be seen with eager PyTorch."""
    module = without_zeros(without_dropout(module)).train(train)
    torch._dynamo.reset()
    fast = dcir.optimize(copy.deepcopy(module), **options)
    start = sum(os.times()[:4])
    got = seen(fast, inputs, train)
    seconds = sum(os.times()[:4]) - start
    report = fast.dcir.explain()
    done = compared(module, inputs, got, train)
    done.fallbacks, done.seconds = [name for name, _ in report.fallbacks], seconds
    done.breaks, done.operators = (
        [f"{why} {place}" for why, place in report.breaks],
        sum(g.operators for g in report.graphs),
    )
    return done


def compared(module: nn.Module, inputs: dict[str, Any], got: dict[str, Tensor], train: bool) -> Followed:
    """What was ``seen`` of a step of ``module`` next to what eager PyTorch does, and to what is exact."""
    wide, wide_inputs = copy.deepcopy(module).double(), pytree.tree_map(_widen, inputs)
    own, disturbed, done = [seen(copy.deepcopy(module), inputs, train)], [], Followed()
    want = own[0]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Double():
            exact = seen(copy.deepcopy(wide), wide_inputs, train)
            for seed in range(2):
                with _Disturbed(seed):
                    disturbed.append(seen(copy.deepcopy(wide), wide_inputs, train))
    finally:
        torch.set_default_dtype(before)
    for name in set(got) - set(want):
        # A parameter whose value is used for no result: AOTAutograd gives zeros where eager gives none.
        if name.endswith(".grad") and not got[name].any():
            del got[name]
    if set(got) != set(want):
        done.wrong.append(f"{sorted(set(got) ^ set(want))} are there on one side only")
    # A gradient that is zero by cancellation (a weight before a norm) holds the rounding of summands of this size.
    unit = max((float(t.abs().max()) for n, t in exact.items() if n.endswith(".grad") and t.numel()), default=0.0)
    for name in set(got) & set(want):
        near = [d[name] for d in disturbed]
        found = _compare(name, got[name], [want[name]], exact[name], near, unit)
        for count in range(2, _ROUNDINGS + 2):
            if not found.wrong:
                break
            if count > len(own):
                with _Disturbed(count):
                    own.append(seen(copy.deepcopy(module), inputs, train))
            found = _compare(name, got[name], [o[name] for o in own[:count]], exact[name], near, unit)
        done.wrong += found.wrong
        done.worst, done.largest = max(done.worst, found.worst), max(done.largest, found.largest)
    return done


def _widen(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def seen(module: nn.Module, inputs: dict[str, Any], train: bool) -> dict[str, Tensor]:
    """Results, loss, gradients and buffers after one step."""
    torch.manual_seed(1)
    with torch.set_grad_enabled(train):
        outs = [t for t in pytree.tree_leaves(module(**inputs)) if isinstance(t, Tensor)]
    tensors = {f"out{i}": t.detach() for i, t in enumerate(outs)}
    if not train:
        return tensors
    generator = np.random.default_rng(2)
    loss: Any = 0
    for t in outs:  # a projection: the plain sum of what a norm gives depends on nothing
        # Not from torch.randn, which _Double would ask for float64, whose numbers are others.
        weight = torch.from_numpy(np.asarray(generator.standard_normal(tuple(t.shape)), np.float32)).to(t.dtype)
        loss = loss + (t * weight).mean() if t.requires_grad else loss
    loss.backward()
    tensors["loss"] = loss.detach()
    tensors |= {f"{n}.grad": p.grad for n, p in module.named_parameters() if p.grad is not None}
    return tensors | {n: b.clone() for n, b in module.named_buffers()}


def _compare(
    name: str, got: Tensor, own: list[Tensor], exact: Tensor, disturbed: list[Tensor], unit: float
) -> Followed:
    """One tensor next to eager's own, several if it rounds in several ways; the first is what dcir has to be like."""
    want = own[0]
    if got.shape != want.shape or got.dtype != want.dtype:
        return Followed(wrong=[f"{name}: {got.dtype}{tuple(got.shape)}, eager {want.dtype}{tuple(want.shape)}"])
    if not want.is_floating_point():
        return Followed(wrong=[] if torch.equal(got, want) else [f"{name}: {got} instead of {want}"])
    if not torch.equal(got.isfinite(), want.isfinite()):
        return Followed(wrong=[f"{name}: infinities or NaN at other places"])
    finite = want.isfinite() & exact.isfinite()
    if not finite.any():
        return Followed()
    exact = exact[finite].double()
    error, *errors = (float((t[finite].double() - exact).abs().max()) for t in (got, *own))
    floor = max(float((d[finite] - exact).abs().max()) for d in disturbed)
    scale, eps, eager = float(exact.abs().max()), torch.finfo(want.dtype).eps, max(errors)
    limit = FACTOR * eager + _DISTURBED * floor + _UNITS * eps * scale + (eps * unit if scale < eps * unit else 0)
    done = Followed(worst=(error / limit if limit else float(error > 0), name))
    if scale > eps * unit and eager > eps * scale / 4:
        done.largest = error / eager
    if not error <= limit:
        done.wrong.append(f"{name}: error {error:.3g}, eager's {eager:.3g}, limit {limit:.3g}, scale {scale:.3g}")
    return done
