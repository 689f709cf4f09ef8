"""The count of lines tells work that grows with a number from work that grows with its square."""

from __future__ import annotations

from collections.abc import Callable

from tests.counted import growth, lines


def test_lines_are_those_of_what_is_called_too() -> None:
    def inner() -> None:
        for _ in range(10):
            pass

    assert 20 <= lines(inner) <= lines(lambda: (inner(), inner())) / 2


def test_work_that_grows_with_the_square_is_seen() -> None:
    def loop(n: int) -> None:
        for _ in range(n):
            pass

    def square(n: int) -> Callable[[], object]:
        return lambda: [loop(n) for _ in range(n)]

    assert growth(lambda n: lambda: loop(n), 100, 8) < 1.1
    assert growth(square, 10, 8) > 4
