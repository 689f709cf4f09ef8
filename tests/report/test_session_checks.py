"""Every check lets through what it wants and says where something else stands."""

from __future__ import annotations

from typing import Any

import pytest

from dcir.report import session_checks as c


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (c.text, "x", 1),
        (c.flag, False, 0),
        (c.number, 1.5, float("nan")),
        (c.number, 1, True),
        (c.integer, -1, 1.0),
        (c.count, 0, -1),
        (c.one_of("a", "b"), "a", "c"),
        (c.optional(c.text), None, 1),
        (c.either(c.text, c.count), 3, None),
        (c.listed(c.count), [1, 2], [1, -2]),
        (c.listed(c.count), [], {}),
        (c.row(c.text, c.count), ["a", 1], ["a"]),
        (c.mapped(c.text), {"a": "b"}, {"a": 1}),
        (c.mapped(c.text), {}, []),
        (c.record({"a": c.text}), {"a": "b", "more": 1}, {}),
        (c.record({"a": c.text}), {"a": ""}, []),
    ],
)
def test_it_takes_the_one_and_not_the_other(check: c.Check, good: Any, bad: Any) -> None:
    check(good, "it")
    with pytest.raises(c.Wrong, match=r"^it"):
        check(bad, "it")


def test_it_says_where() -> None:
    check = c.record({"rows": c.listed(c.record({"n": c.count}))})
    with pytest.raises(c.Wrong, match=r"^it\.rows\[1\]\.n is no integer"):
        check({"rows": [{"n": 1}, {"n": "2"}]}, "it")
