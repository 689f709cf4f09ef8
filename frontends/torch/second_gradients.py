"""Gradients of gradients through a compiled graph: refused by an error that says where the first were taken, and what to do.

AOTAutograd derives one backward. With ``create_graph=True`` it hangs a node behind what that backward gives, which ends in an error
of torch's once somebody goes through it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._functorch._aot_autograd import runtime_wrappers

from dcir.errors import NotDifferentiable
from dcir.user_code import is_users

C = TypeVar("C", bound=Callable[..., Any])
_MARK = "_dcir_has_no_second_gradients"


def without_second_gradients(backward: C) -> C:
    """A compiled backward, marked so that gradients through what it gives are refused by dcir's error."""
    _install()
    setattr(backward, _MARK, True)
    return backward


@functools.cache
def _install() -> None:
    """Hear of the nodes that AOTAutograd makes around compiled graphs; what other compilers made stays as it is."""
    factory: Any = runtime_wrappers._AOTDispatchAutogradFunctionFactory
    build = factory.build

    @functools.wraps(build)
    def built(self: Any) -> Any:
        made = build(self)
        if getattr(self.spec.compiled_bw_func, _MARK, False):
            made._double_backward = staticmethod(functools.partial(_first_gradients, made._double_backward))
        return made

    factory.build = built


@torch._dynamo.disable(reason="it is around what is compiled")  # type: ignore[untyped-decorator]
def _first_gradients(torchs: Callable[..., Any], *args: Any) -> Any:
    """First gradients with ``create_graph=True``."""
    gradients = torchs(*args)
    nodes = {g.grad_fn for g in gradients if isinstance(g, Tensor) and g.grad_fn is not None}
    refuse = functools.partial(_refuse, _users_line())
    for node in nodes:
        node.register_prehook(refuse)
    return gradients


def _refuse(place: str | None, *_: Any) -> None:
    raise NotDifferentiable(
        "gradients of gradients (a double backward) are not computed through a compiled graph",
        where=None if place is None else f"the first ones are taken at {place}",
        hint="take them through the module that was optimised, which has the same parameters; or optimise a function that takes "
        "the first ones inside, by torch.func.grad, or by torch.autograd.grad with torch._dynamo.config.trace_autograd_ops = True",
    )


def _users_line() -> str | None:
    frame = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else f"({frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno})"
