"""What Dynamo keeps of an optimised module ends with the module, not with the next ``torch._dynamo.reset``.

Compiled frames hang on code objects, and those are held by Dynamo's tables, by tracebacks it took, and by the user's classes; every
backend that compiled is in a table of Dynamo. Through the one a module that is gone would keep its libraries mapped,
through the other its scratch memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import fx


class _Lent:
    """A compiled graph, until it is taken back."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        self.compiled: Callable[..., Any] | None = compiled


class BorrowedBackend:
    """A backend for Dynamo that keeps neither its owner alive nor, after ``end``, what it compiled.

    Args:
        method: the owner's method that compiles; the owner lives as long as anybody calls what was compiled with it.
    """

    def __init__(self, method: Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]) -> None:
        assert isinstance(method, MethodType)
        self._method = weakref.WeakMethod(method)
        self._lent: weakref.WeakSet[_Lent] = weakref.WeakSet()

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        method = self._method()
        assert method is not None, "whoever compiles is in a call of the owner's"
        return self.lend(method(gm, example_inputs))

    def lend(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled graph for Dynamo, which can be taken back."""
        lent = _Lent(compiled)
        self._lent.add(lent)

        def run(*args: Any) -> Any:
            return lent.compiled(*args)  # type: ignore[misc]  # nobody is left to call it once it is None

        return run

    def end(self) -> None:
        """Take back what was compiled; backward passes that autograd still needs live on, with what they belong to."""
        for lent in list(self._lent):
            lent.compiled = None


def drop_compiled_with(function: FunctionType, backend: BorrowedBackend) -> None:
    """When ``function`` dies, have Dynamo drop what ``backend`` compiled for it, and for the frames after its graph breaks.

    ``function`` has code of its own, which nobody runs any more then.
    """
    weakref.finalize(function, _drop, weakref.ref(function.__code__), backend).atexit = False


def drop_code_with(function: FunctionType) -> None:
    """When ``function`` dies, have Dynamo drop what is compiled for the code that it has been given."""
    weakref.finalize(function, _forget, weakref.ref(function.__code__)).atexit = False


def _drop(own: weakref.ref[CodeType], backend: BorrowedBackend) -> None:
    backend.end()
    _forget(own)


def _forget(own: weakref.ref[CodeType]) -> None:
    from torch._C._dynamo.eval_frame import reset_code

    code = own()
    if code is not None:
        reset_code(code)
