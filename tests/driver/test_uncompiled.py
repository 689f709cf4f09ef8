"""Nothing runs uncompiled in silence: a warning with reason and cure, a line in explain, an error under strict."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dcir
from dcir.errors import NotCompiledWarning, Unsupported


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Printing(nn.Module):
    def __init__(self, first: bool = False) -> None:
        super().__init__()
        self.layer, self.first = nn.Linear(4, 4), first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.first else self.layer(x)
        print(end="")
        return self.layer(x)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x * 3


class Disabled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def in_mode(f: Any, x: Tensor) -> Any:
    with Mode():
        return f(x)


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


# How a module is called, whether all of the call is uncompiled, and what is said.
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Tensor], Any], bool, str, str]] = {
    "print": (Printing, lambda f, x: f(x), False, "print", "Avoid calling"),
    "print first": (lambda: Printing(first=True), lambda f, x: f(x), False, "print", "Avoid calling"),
    "branch": (Branching, lambda f, x: f(x), False, "data-dependent branching", "torch.where"),
    "disabled": (Disabled, lambda f, x: f(x), True, "torch.compiler.disable", "Remove the"),
    "vmap": (layers, lambda f, x: torch.vmap(f)(x[None]), True, "torch.func (vmap)", "calls torch.func.vmap itself"),
    "grad": (layers, lambda f, x: torch.func.grad(lambda y: f(y).sum())(x), True, "torch.func (grad)", "dcir.optimize a function"),
    "jvp": (layers, lambda f, x: torch.func.jvp(f, (x,), (x,)), True, "torch.func (jvp)", "dcir.optimize a function"),
    "mode": (layers, in_mode, True, "dispatch mode", "leave the mode"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_is_told_once_and_explained(case: str) -> None:
    make, use, whole, reason, cure = CASES[case]
    model, x = make(), torch.randn(3, 4)
    fast = dcir.optimize(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.testing.assert_close(use(fast, x), use(model, x))
    texts = [str(w.message) for w in caught if w.category is NotCompiledWarning]
    assert len(texts) == 1, texts
    assert [w.filename for w in caught if w.category is NotCompiledWarning] == [__file__]
    assert texts[0].startswith("nothing of this call" if whole else "a part of this call")
    assert (
        reason in texts[0] and f"; try: {cure}" in texts[0].replace("try: Consider", "try: Avoid calling")
    ) or cure in texts[0]
    report = fast.dcir.explain()
    (found,) = report.uncompiled
    assert found.whole == whole and str(found) in str(report)
    assert report.to_json()["uncompiled"][0]["reason"] == found.reason
    assert ("nothing is compiled" in str(report)) == whole


@pytest.mark.parametrize("case", CASES)
def test_strict_refuses_it(case: str) -> None:
    make, use, _, reason, _ = CASES[case]
    fast = dcir.optimize(make(), strict=True)
    with pytest.raises(Unsupported) as refused:
        use(fast, torch.randn(3, 4))
    assert reason in refused.value.message and "strict=False runs it in PyTorch" in str(refused.value.hint)


def test_what_is_compiled_whole_says_nothing() -> None:
    for strict in (False, True):
        fast = dcir.optimize(layers(), strict=strict)
        with warnings.catch_warnings():
            warnings.simplefilter("error", NotCompiledWarning)
            fast(torch.randn(3, 4)).sum().backward()
            for _ in range(8):
                with torch.no_grad():
                    fast(torch.randn(3, 4))
        assert fast.dcir.explain().uncompiled == []


@pytest.mark.parametrize("strict", [False, True])
def test_a_module_that_computes_nothing(strict: bool) -> None:
    fast = dcir.optimize(nn.Identity(), strict=strict)
    assert str(fast.dcir.explain()).startswith("nothing compiled yet")
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCompiledWarning)
        for _ in range(3):
            fast(torch.ones(3))
    report = fast.dcir.explain()
    assert report.uncompiled == [] and sum(g.operators for g in report.graphs) == 0
    assert report.graphs or str(report) == "nothing to compile: a call computes nothing"


def test_transforms_inside_are_compiled() -> None:
    layer = nn.Linear(4, 4)
    fast = dcir.optimize(lambda x: torch.func.grad(lambda y: layer(y).square().sum())(x))
    x = torch.randn(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCompiledWarning)
        torch.testing.assert_close(fast(x), torch.func.grad(lambda y: layer(y).square().sum())(x))
    assert fast.dcir.explain().graphs


def test_functions_too() -> None:
    def fn(x: Tensor) -> Tensor:
        print(end="")
        return x * 2

    with pytest.warns(NotCompiledWarning, match="a part of this call is not compiled"):
        dcir.optimize(fn)(torch.ones(3))
    with pytest.raises(Unsupported, match="cannot be compiled"):
        dcir.optimize(fn, strict=True)(torch.ones(3))


def test_more_sizes_than_the_limit_are_an_error_under_strict() -> None:
    fast = dcir.optimize(lambda x: nn.functional.adaptive_avg_pool1d(x.T, 3), strict=True, shape_limit=1, dynamic=True)
    fast(torch.ones(2, 4))
    with pytest.raises(Unsupported, match="which is the limit"):
        fast(torch.ones(2, 5))


def test_the_dynamo_that_was_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = dcir.optimize(layers())
    with torch._dynamo.config.patch(disable=True), pytest.warns(NotCompiledWarning, match="disabled"):
        fast(torch.randn(3, 4))


def test_hooks_for_all_modules_are_an_error_under_strict() -> None:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *args: None)
    try:
        with pytest.raises(Unsupported, match="hook for all modules"):
            dcir.optimize(layers(), strict=True)(torch.randn(3, 4))
    finally:
        handle.remove()


def test_a_reason_given_for_disabling_is_what_is_told() -> None:
    apart = torch.compiler.disable(lambda x: x + 1, reason="it is measured (apart)")
    with pytest.warns(NotCompiledWarning) as caught:
        dcir.optimize(lambda x: apart(x * 2) * 3)(torch.ones(2))
    (text,) = [str(w.message) for w in caught]
    assert text.startswith("a part of this call is not compiled: it is measured (apart) (test_uncompiled.py:")
    assert "try" not in text
