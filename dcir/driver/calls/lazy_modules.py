"""A lazy module (``nn.LazyLinear``) makes its parameters before its first compiled call, as eager does at its first call.

Its hook for that changes the class of the module it runs for. The optimised module keeps a class of its own over the new one, and the
user's module, which shares all else, becomes the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin


def initialised_first(
    call: Callable[..., Any], fast: nn.Module, user: nn.Module, optimised: Callable[[Any], Any]
) -> Callable[..., Any]:
    """``call``, before which the parameters of a lazy module are made if they are not there.

    Args:
        call: the compiled call of ``fast``.
        fast: the optimised module.
        user: the module that was optimised.
        optimised: makes the class of an optimised module of the class of the user's.
    """
    if not isinstance(fast, LazyModuleMixin):
        return call
    here, there = weakref.ref(fast), weakref.ref(user)

    def run(*args: Any, **kwargs: Any) -> Any:
        lazy: Any = here()
        if isinstance(lazy, LazyModuleMixin) and "_initialize_hook" in lazy.__dict__:
            _initialise(lazy, there(), args, kwargs, optimised)
        return call(*args, **kwargs)

    return run


def _initialise(
    fast: Any, user: Any, args: tuple[Any, ...], kwargs: dict[str, Any], optimised: Callable[[Any], Any]
) -> None:
    settled = fast.cls_to_become
    if user is None:  # what it shared is here, and the hook wants a class without slots
        plain = next(c for c in type(fast).__mro__ if issubclass(c, nn.Module) and c is not type(fast))
        user = object.__new__(plain)
        object.__setattr__(user, "__dict__", fast.__dict__)
    user._infer_parameters(user, args, kwargs)
    if settled is not None:
        fast.__class__ = optimised(settled)
