"""The networks of the tests on the device: forward, gradients and a training step, their errors against eager's own by float64."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import dcir
from tests.endtoend.plain_architectures import PLAIN
from tests.endtoend.plain_images import PLAIN_IMAGES
from tests.endtoend.reduced_networks import REDUCED
from tests.gpu.cases import Case, compiled, work

_FACTOR, _UNITS = 4.0, 64.0
"""How many times eager's own error, and how many units in the last place of the largest value, are the same numbers."""


def _loss(result: Any) -> torch.Tensor:
    return sum(  # type: ignore[return-value]
        (t.float() if t.dtype != torch.float64 else t).square().mean()
        for t in pytree.tree_leaves(result)
        if isinstance(t, torch.Tensor) and t.is_floating_point()
    )


def _numbers(model: nn.Module, call: Any, inputs: dict[str, Any], *, train: bool) -> list[torch.Tensor]:
    """Results of a call, and in training all gradients."""
    if not train:
        with torch.no_grad():
            return [t for t in pytree.tree_leaves(call(**inputs)) if isinstance(t, torch.Tensor)]
    model.zero_grad()
    _loss(call(**inputs)).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def ratio(ours: list[torch.Tensor], eager: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The largest error of ours as a part of what is allowed."""
    worst = 0.0
    assert len(ours) == len(eager) == len(exact), f"{len(ours)} results, eager has {len(eager)}"
    for o, w, e in zip(ours, eager, exact, strict=True):
        if not w.is_floating_point():
            assert torch.equal(o, w), "other integers"
            continue
        scale = e.abs().max().item()
        allowed = _FACTOR * (w.double() - e).abs().max().item() + _UNITS * torch.finfo(w.dtype).eps * scale + 1e-30
        error = (o.double() - e).abs().max().item()
        assert error == error, "NaN"
        worst = max(worst, error / allowed)
    return worst


def _default_device(model: nn.Module, inputs: dict[str, Any], device: str) -> None:
    """Have tensors be made on the device by default, for networks that make masks and zeros without saying where."""
    torch.set_default_device(None)
    try:
        with torch.no_grad():
            copy.deepcopy(model)(**inputs)
    except RuntimeError as e:
        if "device" not in str(e):
            raise
        torch.set_default_device(device)


def check(make: Any, *, train: bool, device: str) -> dict[str, Any]:
    """One network in one mode."""
    torch.manual_seed(0)
    torch.set_default_device(None)
    torch._dynamo.reset()
    model, inputs = make()
    model, inputs = (
        model.to(device),
        pytree.tree_map(lambda t: t.to(device) if isinstance(t, torch.Tensor) else t, inputs),
    )
    model.train(train)
    _default_device(model, inputs, device)
    exact_model, twin = copy.deepcopy(model).double(), copy.deepcopy(model)
    wide = pytree.tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, inputs)
    fast, records = compiled(model, device)
    worst = 0.0
    for _ in range(2):  # the second call finds all that the first has made
        ours = _numbers(model, fast, inputs, train=train)
        eager = _numbers(twin, twin, inputs, train=train)
        worst = max(worst, ratio(ours, eager, _numbers(exact_model, exact_model, wide, train=train)))
    assert worst <= 1, f"errors {worst:.3g} times what is allowed"
    graphs = records()
    return {
        "of allowed": worst, "kernels": sum(g.kernels for g in graphs), "calls": sum(g.calls for g in graphs),
        "through torch": sum(len(g.fallbacks) for g in graphs),
    }  # fmt: skip


def stepped(make: Any, device: str) -> dict[str, Any]:
    """Three whole training steps with AdamW, against eager."""
    torch.manual_seed(0)
    torch.set_default_device(None)
    torch._dynamo.reset()
    model, inputs = make()
    model, inputs = model.to(device).train(), [t.to(device) for t in inputs.values()]
    twin = copy.deepcopy(model)
    target = torch.zeros(1, device=device)
    step = dcir.train_step(
        model, lambda y, t: _loss(y) + t.sum(), torch.optim.AdamW(model.parameters(), lr=1e-3), target="cuda"
    )
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        ours = float(step(*inputs, target))
        optimizer.zero_grad()
        loss = _loss(twin(*inputs))
        loss.backward()
        optimizer.step()
        losses.append((ours, float(loss)))
    worst = max(abs(a - b) / max(abs(b), 1e-6) for a, b in losses)
    assert worst < 2e-3, f"losses {losses}"
    return {"loss": losses[-1][0], "difference": worst}


def cases(device: str = "cuda") -> Iterable[Case]:
    """Every network: forward, gradients, a few as whole steps."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    every = {**REDUCED, **PLAIN, **PLAIN_IMAGES}
    for name, make in every.items():
        yield f"{name} forward", functools.partial(check, make, train=False, device=device)
    for name, make in every.items():
        yield f"{name} gradients", functools.partial(check, make, train=True, device=device)
    for name in ("resnet", "mlp-mixer", "vit", "bert"):
        yield f"{name} steps", functools.partial(stepped, REDUCED[name], device)


if __name__ == "__main__":
    work(cases)
