"""The modules of PyTorch's own test database: every input of every module, training and evaluating, as calls to compare."""

from __future__ import annotations

import contextlib
import copy
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from tests.fuzz.case import _unsettle

PREFIX = "module:"
_NAME = re.compile(r"module:(?P<module>\S+) (?P<number>\d+) (?P<mode>train|eval)")


@dataclass(frozen=True)
class ModuleCall:
    """One input of a module (see ``entries.Call``).

    Attributes:
        make: the module, with the same numbers in its parameters every time.
        leaves, shape: the arguments' leaves, and the tree ``(args, kwargs)`` they are taken from.
    """

    make: Callable[[], nn.Module]
    leaves: tuple[Any, ...]
    shape: Any

    @property
    def comparable(self) -> Callable[[Any], Any]:
        """The result as it is."""
        return lambda result: result

    def function(self, change: Callable[[Any], Any] | None = None) -> nn.Module:
        """A new module; with ``change`` in float64."""
        with _undisturbed():
            module = self.make()
            if change is None:
                return module
            if _is_lazy(module):  # its parameters are those that the first call makes in float32
                torch.manual_seed(1)
                self.result(module, self.tensors())
            return module.double()

    def result(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """Of the call; of the second one, where the first has to make parameters."""
        left = iter(tensors)
        args, kwargs = pytree.tree_unflatten(
            [next(left) if isinstance(v, Tensor) else v for v in self.leaves], self.shape
        )
        if isinstance(function, nn.Module) and _is_lazy(function):
            function(*args, **kwargs)
        return function(*args, **kwargs)

    def tensors(self, change: Callable[[Tensor], Tensor] = lambda t: t) -> list[Tensor]:
        """New tensors for one run."""
        with _undisturbed():
            return [
                change(copy.deepcopy(t.detach())).requires_grad_(t.requires_grad)
                for t in self.leaves
                if isinstance(t, Tensor)
            ]


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Outside the modes of the caller's, through which nothing is copied or drawn as it is."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with _disable_current_modes():
            yield
    finally:
        torch.set_default_dtype(before)


def _is_lazy(module: nn.Module) -> bool:
    return any(isinstance(m, LazyModuleMixin) and m.has_uninitialized_params() for m in module.modules())


@functools.cache
def _database() -> dict[str, Any]:
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db if torch.float32 in info.dtypes}


def _inputs(name: str, *, training: bool) -> list[Any]:
    info = _database()[name]
    torch.manual_seed(0)
    with contextlib.suppress(NotImplementedError):
        return list(
            info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
        )
    return []


@functools.cache
def modules() -> list[str]:
    """Names of all cases: "module:nn.Linear 0 train"."""
    return [
        f"{PREFIX}{name} {number} {mode}"
        for name in _database()
        for mode in ("train", "eval")
        for number in range(len(_inputs(name, training=mode == "train")))
    ]


def module_calls(name: str) -> Iterator[ModuleCall]:
    """The one call of a case.

    Raises:
        KeyError: there is no such case.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise KeyError(name)
    training = found["mode"] == "train"
    info, given = _database()[found["module"]], _inputs(found["module"], training=training)[int(found["number"])]
    built = given.constructor_input

    def make() -> nn.Module:
        torch.manual_seed(0)
        # Tensors among the constructor's arguments may be of another type: the database's own tests convert the module, too.
        module: nn.Module = info.module_cls(*built.args, **built.kwargs).to(torch.float32)
        for part in module.modules():
            _unsettle(part)
        return module.train(training)

    forward = given.forward_input
    leaves, shape = pytree.tree_flatten((tuple(forward.args), dict(forward.kwargs)) if forward else ((), {}))
    yield ModuleCall(make, tuple(leaves), shape)
