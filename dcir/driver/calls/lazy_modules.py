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
    ours = type(fast)
    fast._infer_parameters(fast, args, kwargs)
    fast.__class__ = ours if settled is None else optimised(settled)
    if user is not None and settled is not None:
        user.__class__ = settled
