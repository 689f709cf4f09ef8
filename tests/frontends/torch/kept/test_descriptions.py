"""Descriptions are equal for what is made of the same code, and differ for what is not."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dcir.frontends.torch.kept.descriptions import Descriptions, Unkept, codes_of_module


def _made(text: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"__name__": "somewhere"}
    exec(text, names)
    found: Callable[..., Any] = names["f"]
    return found


def _text(value: Any) -> str:
    return Descriptions().of(value)


def test_functions_of_the_same_code_look_alike_whatever_lines_they_stand_in() -> None:
    assert _text(_made("def f(x):\n    return x + 1")) == _text(_made("\n\n# more\ndef f(x):\n    return x + 1"))


@pytest.mark.parametrize(
    "other",
    [
        "def f(x):\n    return x + 2", "def f(x, y=1):\n    return x + 1", "def f(x):\n    return x - 1",
        "def g(y):\n    def f(x):\n        return x + 1\n    return f\nf = g(1)",
        "def f(x):\n    return [x + 1 for _ in {1, 2}]",
    ],
)  # fmt: skip
def test_functions_of_other_code_do_not(other: str) -> None:
    assert _text(_made("def f(x):\n    return x + 1")) != _text(_made(other))


def test_what_a_cell_holds_counts() -> None:
    maker = "def g(y):\n    def f(x):\n        return x + y\n    return f\nf = g({})"
    assert _text(_made(maker.format(1))) == _text(_made(maker.format(1)))
    assert _text(_made(maker.format(1))) != _text(_made(maker.format(2)))


def test_a_class_is_what_all_its_bases_define(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Linear):
        pass

    before = _text(Own)
    assert before == _text(Own)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x)
    assert before != _text(Own)


def test_a_function_that_calls_itself_has_an_end() -> None:
    def outer() -> Callable[[int], int]:
        def f(n: int) -> int:
            return f(n - 1) if n else 0

        return f

    assert "itself" in _text(outer())


@pytest.mark.parametrize("value", [object(), torch.zeros(2), nn.Linear(2, 2), iter([1])])
def test_what_says_nothing_in_another_process_is_refused(value: Any) -> None:
    with pytest.raises(Unkept):
        _text(value)


def test_numbers_types_and_order_are_told_apart() -> None:
    values = [
        1,
        1.0,
        True,
        "1",
        (1,),
        [1],
        {1: 2},
        {"a": 1, "b": 2},
        {"b": 2, "a": 1},
        torch.float32,
        functools.partial(max, 1),
        max,
        None,
    ]
    assert len({_text(v) for v in values}) == len(values)


def test_a_modules_code_is_found_in_functions_classes_and_what_they_wrap() -> None:
    import dcir.frontends.torch.kept.descriptions as module

    names = {name for name, _ in codes_of_module(module)}
    assert {"Descriptions.of", "code_digest", "_parts_of"} <= names
