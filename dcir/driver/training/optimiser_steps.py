"""What an optimiser brings to a compiled update: the parameters it holds, their numbers of a step, and state made as torch makes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as _torch_optimizer
from torch.optim.optimizer import _get_scalar_dtype

from dcir.driver.training.optimiser_choice import STEP_HOOKS
from dcir.driver.training.optimisers import Family, family
from dcir.errors import Unsupported
from dcir.frontends.torch.training import Update

_FORMS = ("fused", "foreach")
"""Options that say how torch itself computes a step."""
_OF_ALL = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
Row = tuple[int, int]
"""Number of a parameter group, and of the steps that were made with a parameter of it: they say which numbers it is updated with."""


@dataclass(frozen=True)
class Held:
    """A parameter that the optimiser holds: its name in the model, itself, its group, and its row of hyperparameters."""

    name: str
    parameter: nn.Parameter
    group: dict[str, Any]
    row: Row


class OptimiserSteps:
    """One of torch's optimisers, as the compiled update sees it.

    Raises:
        Unsupported: its class or one of its options has no formula.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._family: Family = family(optimizer)

    def held(self, names: Mapping[int, str], idle: Collection[str] = ()) -> list[Held]:
        """The parameters that want gradients or have some, by their names.

        Args:
            names: id of a parameter -> its name; others are left out.
            idle: names of those that are left out, too, as long as they have no gradient.

        Raises:
            Unsupported: one that has a gradient has no name, which torch's step would update; or there are hooks around torch's step.
        """
        self._refuse_hooks()
        found = []
        for i, group in enumerate(self.optimizer.param_groups):
            for p in group["params"]:
                name = names.get(id(p))
                if name is None and p.grad is not None:
                    raise Unsupported(
                        "the optimiser holds a parameter with a gradient that is in neither the model nor the loss function",
                        where=f"parameter group {i}", hint="zero_grad() before the step, or a module around both",
                    )  # fmt: skip
                if name is not None and (p.grad is not None or (p.requires_grad and name not in idle)):
                    found.append(Held(name, p, group, (i, self._steps(p))))
        return found

    def _refuse_hooks(self) -> None:
        own, everyone = vars(self.optimizer), vars(_torch_optimizer)
        before, behind = own["_optimizer_step_pre_hooks"], own["_optimizer_step_post_hooks"]
        hooks = [*before.values(), *behind.values()]
        hooks += [h for n in _OF_ALL for h in everyone[n].values() if h not in STEP_HOOKS]
        if hooks:
            raise Unsupported(
                "a compiled step has no gradients to show to the optimiser's hooks", where=type(self.optimizer).__name__,
                hint="remove them, or dcir.optimize(model), which leaves the step to your optimiser",
            )  # fmt: skip

    def _steps(self, p: nn.Parameter) -> int:
        """Steps that the optimiser has made with a parameter; without a counter, whether it has made any."""
        state = self.optimizer.state.get(p, {})
        if self._family.counts:
            return int(state["step"]) if "step" in state else 0
        return int(any(isinstance(v, Tensor) for v in state.values()))

    def flags(self) -> Any:
        """What of the groups changes the formulas themselves, and not their numbers alone."""
        return tuple(
            tuple((k, v) for k, v in g.items() if isinstance(v, bool) and k not in _FORMS) + tuple(map(bool, (
                g.get("momentum", 0), g.get("weight_decay", 0)
            ))) for g in self.optimizer.param_groups
        )  # fmt: skip

    def updates(self, held: Sequence[Held], rows: Sequence[Row]) -> tuple[list[Update], int]:
        """The formula of each parameter, and how many hyperparameters all rows have together.

        Raises:
            Unsupported: a parameter of complex numbers, whose parts the formula would have to take apart.
        """
        for h in held:
            if h.parameter.is_complex() and self._family.counts:
                raise Unsupported(
                    f"no compiled update of complex numbers by {type(self.optimizer).__name__}", where=h.name,
                    hint="torch.optim.SGD, or dcir.optimize(model), which leaves the step to your optimiser",
                )  # fmt: skip
        make, groups = self._family, self.optimizer.param_groups
        first, at = {}, 0
        for row in rows:
            first[row] = at
            at += len(make.hyper(groups[row[0]], 1))
        return [
            Update(
                h.name, make.rule(h.group), make.state(h.group), first[h.row],
                tuple(make.hyper(h.group, 1)),
            ) for h in held
        ], at  # fmt: skip

    def numbers(self, rows: Sequence[Row]) -> Tensor:
        """The hyperparameters of this step, row by row."""
        groups = self.optimizer.param_groups
        numbers = [v for i, t in rows for v in self._family.hyper(groups[i], t + 1).values()]
        made = torch.tensor(numbers or [0.0], dtype=torch.float64)
        device = next((p.device for g in groups for p in g["params"]), made.device)  # a group may be empty
        return made if device.type == "cpu" else made.to(device, non_blocking=True)

    def states(self, h: Held) -> list[Tensor]:
        """The optimiser's state of a parameter in the order of its formula, made as torch makes it, lying as the parameter does.

        Raises:
            Unsupported: it is of another type or shape than the parameter has by now.
        """
        names = self._family.state(h.group)
        if not names and not self._family.counts:  # to look is to make an entry
            return []
        state = self.optimizer.state[h.parameter]
        if self._family.counts and "step" not in state:
            state["step"] = torch.tensor(0.0, dtype=_get_scalar_dtype(is_fused=bool(h.group.get("fused"))))
        found = []
        for name in names:
            if not isinstance(state.get(name), Tensor):
                state[name] = _like(h.parameter).zero_()
            found.append(_fitting(h, state, name))
        return found

    def undone(self, held: Sequence[Held]) -> None:
        """Forget the state that was made for a first step that has failed: without a counter it says that there was one."""
        for h in held:
            if not self._family.counts and not h.row[1]:
                for name in self._family.state(h.group):
                    self.optimizer.state[h.parameter].pop(name, None)

    def done(self, updated: Sequence[Held], written: Sequence[Tensor]) -> None:
        """Leave behind what torch's own step would have besides the numbers; gradients end.

        Args:
            updated: the parameters that were updated.
            written: the tensors that a program wrote to.
        """
        if self._family.counts and updated:
            torch._foreach_add_([self.optimizer.state[h.parameter]["step"] for h in updated], 1)
        for h in updated:
            h.parameter.grad = None
        # The program wrote to them behind autograd's back.
        torch.autograd.graph.increment_version(written)
        # Schedulers warn where they see no step.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]


def _like(p: Tensor) -> Tensor:
    """Memory that lies as a parameter does, which may be a part of a larger tensor."""
    return torch.empty_strided(p.shape, p.stride(), dtype=p.dtype, device=p.device)


def _fitting(h: Held, state: dict[str, Any], name: str) -> Tensor:
    tensor: Tensor = state[name]
    p = h.parameter
    if tensor.dtype != p.dtype or tensor.shape != p.shape:
        raise Unsupported(
            f"the optimiser's {name} is {tensor.dtype} {list(tensor.shape)}, the parameter {p.dtype} {list(p.shape)}",
            where=h.name, hint="a new optimiser, or its state_dict in the type of the parameters",
        )  # fmt: skip
    if tensor.stride() != p.stride():  # a checkpoint's, or from before model.to(memory_format=...)
        tensor = state[name] = _like(p).copy_(tensor)
    return tensor


def laid_as(p: nn.Parameter) -> None:
    """Have the gradient of a parameter lie as the parameter does."""
    if p.grad is not None and p.grad.stride() != p.stride():
        p.grad = _like(p).copy_(p.grad)


def rows_of(held: Sequence[Held]) -> list[Row]:
    """The distinct rows of parameters, in order."""
    return sorted({h.row for h in held})
