"""Frames that only call their graph are told from those that do something else, too."""

from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
import torch
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

from dcir.frontends.torch.guards.hands_on import hands_on

SEEN: list[Any] = []


def compiled(fn: Callable[..., Any], *args: Any, dynamic: bool = False) -> CodeType:
    """What Dynamo makes of a function's frame."""
    torch._dynamo.reset()
    torch.compile(fn, backend="eager", dynamic=dynamic)(*args)
    (entry,) = _debug_get_cache_entry_list(fn.__code__)
    code = entry.code
    assert isinstance(code, CodeType)
    return code


def several(x: torch.Tensor, y: torch.Tensor) -> Any:
    return {"sum": x + y, "parts": [x * 2, (y, x - y)]}


def mean(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y).sum(0) / x.shape[0]


def appends(x: torch.Tensor, rows: list[torch.Tensor]) -> torch.Tensor:
    rows.append(x * 2)
    return x + 1


def sets(x: torch.Tensor, y: Any) -> torch.Tensor:
    y.seen = x * 2
    return x + 1


def keeps(x: torch.Tensor) -> torch.Tensor:
    SEEN.append(1)
    return x + 1


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


class Holder:
    pass


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [several, mean])
def test_what_only_calls_its_graph(fn: Callable[..., Any], dynamic: bool) -> None:
    assert hands_on(compiled(fn, torch.ones(3, 4), torch.ones(3, 4), dynamic=dynamic))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("fn", "args"), [(appends, ([],)), (sets, (Holder(),)), (keeps, ()), (breaks, ())], ids=lambda v: getattr(v, "__name__", "")
)  # fmt: skip
def test_what_does_something_else(fn: Callable[..., Any], args: tuple[Any, ...], dynamic: bool) -> None:
    assert not hands_on(compiled(fn, torch.ones(3, 4), *args, dynamic=dynamic))


def test_what_dynamo_did_not_make() -> None:
    assert not hands_on(mean.__code__)
