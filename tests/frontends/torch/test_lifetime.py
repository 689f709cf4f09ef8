"""What Dynamo keeps ends with the function it was compiled for."""

from __future__ import annotations

import gc
import weakref
from types import FunctionType
from typing import Any

import torch

from dcir.frontends.torch.lifetime import BorrowedBackend, drop_compiled_with


class Owner:
    """Compiles by handing on the graph."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Any]] = []

    def backend(self, gm: torch.fx.GraphModule, inputs: Any) -> Any:
        def compiled(*args: Any) -> Any:
            return gm.forward(*args)

        self.made.append(weakref.ref(compiled))
        return compiled


def _whole(x: torch.Tensor) -> torch.Tensor:
    return (x + 1) * 2


def _broken(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def _with_own_code(of: Any) -> FunctionType:
    return FunctionType(of.__code__.replace(), of.__globals__, of.__name__)


def test_graphs_end_with_the_function_and_the_backend_keeps_no_owner() -> None:
    """Those after a graph break too, though Dynamo's tables keep their code."""
    owner, function = Owner(), _with_own_code(_broken)
    backend, gone = BorrowedBackend(owner.backend), weakref.ref(owner)
    drop_compiled_with(function, backend)
    fast: Any = torch.compile(function, backend=backend)
    assert fast(torch.ones(2)).tolist() == [4.0, 4.0]
    made = owner.made
    del owner
    assert gone() is None
    assert len(made) == 2
    assert fast(torch.ones(2)).tolist() == [4.0, 4.0]
    assert all(compiled() is not None for compiled in made)
    del fast, function
    gc.collect()
    assert all(compiled() is None for compiled in made)


def test_a_reset_frees_what_is_compiled_while_the_function_lives() -> None:
    """The backend itself holds on to nothing."""
    torch._dynamo.reset()
    owner, function = Owner(), _with_own_code(_whole)
    backend = BorrowedBackend(owner.backend)
    drop_compiled_with(function, backend)
    fast: Any = torch.compile(function, backend=backend)
    fast(torch.ones(2))
    torch._dynamo.reset()
    gc.collect()
    assert owner.made[0]() is None
    assert fast(torch.ones(2)).tolist() == [4.0, 4.0]
