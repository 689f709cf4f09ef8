"""Sources and conditions from a file look things up and compare sizes; what else they would evaluate is refused."""

from typing import Any

import pytest
from torch._dynamo.source import (
    AttrSource,
    CallFunctionNoArgsSource,
    DefaultsSource,
    DictGetItemSource,
    GetItemSource,
    GlobalSource,
    GradSource,
    LocalSource,
)

from dcir.frontends.torch.kept.descriptions import Unkept
from dcir.frontends.torch.kept.sources import check_conditions, checked

X = LocalSource("x")


@pytest.mark.parametrize(
    "source",
    [
        X, GlobalSource("a.b"), AttrSource(X, "weight"), AttrSource(X, "not a name"), DictGetItemSource(X, "any 'text'"),
        GetItemSource(X, slice(1, None, 2)), DefaultsSource(X, 0), DefaultsSource(X, "k", is_kw=True),
    ],
)  # fmt: skip
def test_a_source_is_made_again(source: Any) -> None:
    assert checked(source) == source
    assert checked(source).name == source.name


def test_a_text_that_was_put_in_is_not_taken_over() -> None:
    source = AttrSource(X, "weight")
    source.__dict__["_name_template"] = "print({0})"
    assert checked(source)._name_template == "{0}.weight"


@pytest.mark.parametrize(
    "source",
    [
        CallFunctionNoArgsSource(X),
        GradSource(X, "grad or print()"),
        DefaultsSource(X, "k'] or [", is_kw=True),
    ],
)
def test_a_source_that_would_run_something_is_refused(source: Any) -> None:
    with pytest.raises(Unkept):
        checked(source)


@pytest.mark.parametrize(
    "text",
    [
        "L['x'].size()[0] == L['y'].size()[1]", "2 <= L['args'][0].size()[1]", "L['x'].stride()[0] == 4*L['x'].size()[1]",
        "L['fn'].__self__._modules['a'].weight.size()[0] <= 7 and not 3 == (L['x'].size()[0] // 2)", "max(1, L['n']) < 5",
    ],
)  # fmt: skip
def test_conditions_on_sizes_are_taken(text: str) -> None:
    check_conditions([text])


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "L['f']()", "L['x'].item() == 1", "(lambda: 1)()", "[1 for _ in L['x']]", "L['x'][L['f']()]",
        "1;2",
        "open('f')", "L['x'].size(L['f']())", "'a' * 9",
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(Unkept):
        check_conditions([text])
