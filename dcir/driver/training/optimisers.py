"""torch's optimisers as formulas over tensors: what each keeps per parameter, and which numbers change from step to step.

The formulas are those of torch.optim's documentation; numbers that depend on the step (bias corrections) are computed in double
precision outside and arrive as hyperparameters, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dcir.errors import Unsupported
from dcir.frontends.torch.training import Rule

Numbers = dict[str, Tensor]
State = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """One optimiser class.

    Attributes:
        state: from a parameter group to the names of the state tensors per parameter (torch's names).
        hyper: from a parameter group and the number of the step (1 for the first) to the numbers of that step.
        rule: from a parameter group to the formula.
        refused: options that must be off.
        counts: whether the state holds torch's ``step`` tensor.
    """

    state: Callable[[Mapping[str, Any]], tuple[str, ...]]
    hyper: Callable[[Mapping[str, Any], int], dict[str, float]]
    rule: Callable[[Mapping[str, Any]], Rule]
    refused: tuple[str, ...] = ("capturable", "differentiable")
    counts: bool = True


def _signed(group: Mapping[str, Any], g: Tensor) -> Tensor:
    return -g if group.get("maximize") else g


def _sgd_rule(group: Mapping[str, Any]) -> Rule:
    def rule(p: Tensor, g: Tensor, state: State, at: Numbers) -> tuple[Tensor, State]:
        g = _signed(group, g)
        if group["weight_decay"]:
            g = g + at["weight_decay"] * p
        if not group["momentum"]:
            return p - at["lr"] * g, {}
        buffer = state["momentum_buffer"] * at["momentum"] + at["fresh"] * g
        step = g + at["momentum"] * buffer if group["nesterov"] else buffer
        return p - at["lr"] * step, {"momentum_buffer": buffer}

    return rule


def _sgd_hyper(group: Mapping[str, Any], step: int) -> dict[str, float]:
    # torch's first buffer is the gradient itself; ours starts at zero.
    fresh = 1.0 if step == 1 else 1.0 - group["dampening"]
    return {
        "lr": float(group["lr"]), "weight_decay": group["weight_decay"], "momentum": group["momentum"], "fresh": fresh
    }  # fmt: skip


def _adam_rule(decoupled: bool) -> Callable[[Mapping[str, Any]], Rule]:
    def make(group: Mapping[str, Any]) -> Rule:
        # AdamW is Adam with a flag in recent versions of torch.
        apart = decoupled or bool(group.get("decoupled_weight_decay"))

        def rule(p: Tensor, g: Tensor, state: State, at: Numbers) -> tuple[Tensor, State]:
            g = _signed(group, g)
            if group["weight_decay"] and apart:
                p = p * at["keep"]
            elif group["weight_decay"]:
                g = g + at["weight_decay"] * p
            m = state["exp_avg"] + (g - state["exp_avg"]) * at["one_minus_beta1"]
            v = state["exp_avg_sq"] * at["beta2"] + at["one_minus_beta2"] * g * g
            new = {"exp_avg": m, "exp_avg_sq": v}
            if group["amsgrad"]:
                v = new["max_exp_avg_sq"] = torch.maximum(state["max_exp_avg_sq"], v)
            # A division takes the processor as long as everything else here together.
            return p - at["step_size"] * m / (v.sqrt() * at["unroot"] + at["eps"]), new

        return rule

    return make


def _adam_hyper(group: Mapping[str, Any], step: int) -> dict[str, float]:
    beta1, beta2 = (float(b) for b in group["betas"])
    lr = float(group["lr"])
    return {
        "weight_decay": group["weight_decay"],
        "keep": 1 - lr * group["weight_decay"],
        "one_minus_beta1": 1 - beta1,
        "beta2": beta2,
        "one_minus_beta2": 1 - beta2,
        "step_size": lr / (1 - beta1**step),
        "unroot": 1 / math.sqrt(1 - beta2**step),
        "eps": group["eps"],
    }


def _adam_state(group: Mapping[str, Any]) -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))


def _rms_rule(group: Mapping[str, Any]) -> Rule:
    def rule(p: Tensor, g: Tensor, state: State, at: Numbers) -> tuple[Tensor, State]:
        g = _signed(group, g)
        if group["weight_decay"]:
            g = g + at["weight_decay"] * p
        square = state["square_avg"] * at["alpha"] + at["one_minus_alpha"] * g * g
        new = {"square_avg": square}
        if group["centered"]:
            mean = new["grad_avg"] = state["grad_avg"] + (g - state["grad_avg"]) * at["one_minus_alpha"]
            root = (square - mean * mean).sqrt() + at["eps"]
        else:
            root = square.sqrt() + at["eps"]
        if not group["momentum"]:
            return p - at["lr"] * g / root, new
        buffer = new["momentum_buffer"] = state["momentum_buffer"] * at["momentum"] + g / root
        return p - at["lr"] * buffer, new

    return rule


def _rms_hyper(group: Mapping[str, Any], step: int) -> dict[str, float]:
    alpha = group["alpha"]
    return {
        "lr": float(group["lr"]), "weight_decay": group["weight_decay"], "alpha": alpha, "one_minus_alpha": 1 - alpha,
        "eps": group["eps"], "momentum": group["momentum"],
    }  # fmt: skip


def _rms_state(group: Mapping[str, Any]) -> tuple[str, ...]:
    more = ("momentum_buffer",) if group["momentum"] else ()
    return ("square_avg", *(("grad_avg",) if group["centered"] else ()), *more)


_FAMILIES: dict[type, Family] = {
    torch.optim.SGD: Family(
        lambda g: ("momentum_buffer",) if g["momentum"] else (), _sgd_hyper, _sgd_rule, ("differentiable",), False
    ),
    torch.optim.Adam: Family(_adam_state, _adam_hyper, _adam_rule(False)),
    torch.optim.AdamW: Family(_adam_state, _adam_hyper, _adam_rule(True)),
    torch.optim.RMSprop: Family(_rms_state, _rms_hyper, _rms_rule),
}


def family(optimizer: torch.optim.Optimizer) -> Family:
    """The formulas of an optimiser.

    Raises:
        Unsupported: its class or one of its options has none.
    """
    found = _FAMILIES.get(type(optimizer))
    if found is None:
        known = ", ".join(c.__name__ for c in _FAMILIES)
        raise Unsupported(
            f"no compiled update for the optimiser {type(optimizer).__name__}",
            hint=f"one of {known}; or dcir.optimize(model), which leaves the step to your optimiser",
        )
    for group in optimizer.param_groups:
        for name in found.refused:
            if group.get(name):
                raise Unsupported(f"no compiled update for {type(optimizer).__name__} with {name}=True")
    return found
