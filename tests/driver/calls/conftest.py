"""Fixtures of the tests of the short way: whether each call took it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dcir.driver.calls import fast_path
from dcir.driver.calls.fast_path import QuickCalls


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing of Dynamo's from other tests, and the same random numbers."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call took the short way."""
    ways: list[bool] = []
    call = QuickCalls.call

    def noted(self: QuickCalls, args: Any, kwargs: Any) -> Any:
        result = call(self, args, kwargs)
        ways.append(result is not fast_path.MISS)
        return result

    gather = QuickCalls._gather

    def noting(direct: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            result = direct(*args)
            # After any other the next one is tried, or ``call``.
            ways.extend([True] * (result is not fast_path.MISS))
            return result

        return noted

    def gathered(self: QuickCalls) -> None:
        gather(self)
        self.direct[:] = map(noting, self.direct)

    monkeypatch.setattr(QuickCalls, "call", noted)
    monkeypatch.setattr(QuickCalls, "_gather", gathered)
    return ways
