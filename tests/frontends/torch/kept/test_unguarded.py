"""Who listens to Dynamo changes nothing that it makes: it looks at no value, and guards on none, that it would not without."""

import types

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from dcir.frontends.torch.kept.unguarded import listen

FUNCTIONS = types.ModuleType("functions")


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def carried(x: torch.Tensor) -> torch.Tensor:
    both = FUNCTIONS.used, FUNCTIONS.unused
    return both[0](x)


def test_what_is_read_and_not_used_has_no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    listen()
    monkeypatch.setattr(FUNCTIONS, "used", double, raising=False)
    monkeypatch.setattr(FUNCTIONS, "unused", double, raising=False)
    counter = CompileCounter()
    call = torch.compile(carried, backend=counter)
    x = torch.ones(3)
    assert torch.equal(call(x), x * 2)
    monkeypatch.setattr(FUNCTIONS, "unused", triple)
    assert torch.equal(call(x), x * 2) and counter.frame_count == 1
    monkeypatch.setattr(FUNCTIONS, "used", triple)
    assert torch.equal(call(x), x * 3) and counter.frame_count == 2
