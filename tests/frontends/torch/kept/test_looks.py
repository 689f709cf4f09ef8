"""A look is repeated when an object that it depends on is another one, and not before."""

import types
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest

from dcir.frontends.torch.kept.looks import Look, Sign, codes, contents


def one() -> int:
    return 1


def two() -> int:
    return 2


class Names:
    """A table of functions, and how often it was looked at."""

    def __init__(self) -> None:
        self.table: dict[str, Any] = {"a": FunctionType(one.__code__, {}), "b": two, "c": 3}
        self.looks = 0
        self.look: Look[list[FunctionType], str] = Look(self.functions, self.sign, self.find)

    def functions(self) -> list[FunctionType]:
        return [f for f in self.table.values() if isinstance(f, FunctionType)]

    def sign(self, functions: list[FunctionType]) -> Sign:
        return Sign([*contents([self.table], FunctionType), *codes(functions)], [len(self.table)])

    def find(self, functions: list[FunctionType]) -> Iterator[str]:
        self.looks += 1
        for name, f in self.table.items():
            if isinstance(f, FunctionType) and f.__code__.co_name == "one":
                yield name


def test_what_has_not_changed_is_looked_at_once() -> None:
    names = Names()
    assert [names.look.found(), names.look.found()] == [["a"], ["a"]]
    names.table["c"] = 4  # of no class that counts
    assert names.look.found() == ["a"]
    assert names.looks == 1


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda t: t.update(b=one), ["a", "b"]),
        (lambda t: t.update(d=one), ["a", "d"]),
        (lambda t: t.pop("a"), []),
        (lambda t: t.update(x=t.pop("a")), ["x"]),
        (lambda t: setattr(t["a"], "__code__", two.__code__), []),
        (lambda t: t.update(c=one), ["a", "c"]),
        (lambda t: t.update(a=types.FunctionType(one.__code__, {})), ["a"]),
    ],
)
def test_what_has_changed_is_looked_at_again(change: Any, found: list[str]) -> None:
    names = Names()
    names.look.found()
    change(names.table)
    assert names.look.found() == found
    assert names.looks == 2
