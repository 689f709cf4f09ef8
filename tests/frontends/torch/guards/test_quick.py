"""Guards by the versions of dictionaries see every change that guards one by one do, and Dynamo's settings stay as they were."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import config

import dcir
from dcir.frontends.torch.guards import quick as quick_guards
from dcir.frontends.torch.guards.code_seen import CodeSeen


def data_of_another_shape(m: Any) -> None:
    m[3].weight.data, m[3].bias.data = torch.randn(7, 16), torch.randn(7)


def data_of_other_strides(m: Any) -> None:
    m[2][0].weight.data = torch.randn(16, 16).t()


def parameter(m: Any) -> None:
    m[2][0].weight = nn.Parameter(torch.randn(16, 16))


def child(m: Any) -> None:
    m[3] = nn.Linear(16, 9)


def grandchild(m: Any) -> None:
    m[2][0] = nn.Linear(16, 16)


def in_place(m: Any) -> None:
    m[2][0].weight.mul_(2)


def buffer(m: Any) -> None:
    m[2][2].running_mean = torch.randn(16)


def mode(m: Any) -> None:
    m[2][2].train()


def number(m: Any) -> None:
    m[2][2].eps = 0.5


CHANGES = (data_of_another_shape, data_of_other_strides, parameter, child, grandchild, in_place, buffer, mode, number)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.BatchNorm1d(16))
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), inner, nn.Linear(16, 4)).eval()


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_changes_are_seen(change: Callable[[Any], None]) -> None:
    m, x = model(), torch.randn(3, 8)
    fast = dcir.optimize(m)
    before = fast(x)
    for _ in range(4):  # the tags count from the second call on
        assert torch.equal(fast(x), before)
    change(m)
    got, wanted = fast(x), m(x)
    assert got.shape == wanted.shape
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    assert got.shape != before.shape or not torch.allclose(got, before, atol=1e-4)


@torch.no_grad()
def test_settings_hold_while_guards_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import guards

    seen, old = list[bool](), guards.GuardManagerWrapper.finalize

    def finalize(self: guards.GuardManagerWrapper) -> None:
        seen.append(config.use_recursive_dict_tags_for_guards)
        old(self)

    monkeypatch.setattr(guards.GuardManagerWrapper, "finalize", finalize)
    before = {name: getattr(config, name) for name in quick_guards._SETTINGS}
    m, x = model(), torch.randn(3, 8)
    dcir.optimize(m)(x)
    assert seen
    assert all(seen)
    assert {name: getattr(config, name) for name in before} == before


def test_settings_return_after_an_error() -> None:
    before = {name: getattr(config, name) for name in quick_guards._SETTINGS}

    def fails(*_: object) -> None:
        raise ValueError("no")

    quick = quick_guards.QuickGuards(fails, CodeSeen())  # type: ignore[arg-type]  # returns nothing, ever
    other = quick_guards.QuickGuards(lambda gm, _: gm, CodeSeen())
    other.backend(None, ())  # type: ignore[arg-type]  # any graph will do
    with pytest.raises(ValueError, match="no"):
        quick.backend(None, ())  # type: ignore[arg-type]
    other.end()
    assert config.use_recursive_dict_tags_for_guards
    quick.end()
    assert {name: getattr(config, name) for name in before} == before
