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
    call: Callable[..., Any],
    fast: nn.Module,
    user: nn.Module,
    optimised: Callable[[Any], Any],
    plain: Callable[[Any], nn.Module],
) -> Callable[..., Any]:
    """``call``, before which the parameters of a lazy module are made if they are not there.

    Args:
        call: the compiled call of ``fast``.
        fast: the optimised module.
        user: the module that was optimised.
        optimised: makes the class of an optimised module of the class of the user's.
        plain: makes a module like the user's of the optimised one.
    """
    if not isinstance(fast, LazyModuleMixin):
        return call
    here, there = weakref.ref(fast), weakref.ref(user)

    def run(*args: Any, **kwargs: Any) -> Any:
        lazy: Any = here()
        if isinstance(lazy, LazyModuleMixin) and "_initialize_hook" in lazy.__dict__:
            settled = lazy.cls_to_become
            own: Any = there() or plain(lazy)  # whose class the hook can change
            own._infer_parameters(own, args, kwargs)
            if settled is not None:
                lazy.__class__ = optimised(settled)
        return call(*args, **kwargs)

    return run
