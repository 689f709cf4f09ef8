"""What a program is for, as a condition that guards can ask."""

import itertools

import pytest

from dcir.frontends.torch.kept.sources import check_conditions
from dcir.frontends.torch.shapes.programs import Span
from dcir.ir.sizes import Bounds, Polynomial, size

BOUNDS = {"s0": Bounds(1, 4), "s1": Bounds(2, 5), "s2": Bounds(1, 1)}
PATHS = {name: f"L['args'][{i}].size()[1]" for i, name in enumerate(BOUNDS)}


class _Sized:
    def __init__(self, n: int) -> None:
        self.n = n

    def size(self) -> tuple[int, int]:
        return 0, self.n


@pytest.mark.parametrize(
    ("first", "follows"),
    [
        ({"s0": "s0", "s1": "s1", "s2": "s2"}, {}),
        ({"s0": "s0", "s1": "s0", "s2": "s2"}, {}),
        ({"s0": "s0", "s1": "s1", "s2": "s2"}, {"s1": 2 * size("s0") + size("s2") - 1}),
        ({"s0": "s0", "s1": "s1", "s2": "s2"}, {"s1": size("s0") * size("s0") * size("s2") + size("s0")}),
    ],
)
def test_the_condition_of_a_span_is_that_values_are_in_it(
    first: dict[str, str], follows: dict[str, Polynomial]
) -> None:
    span = Span(BOUNDS, first, follows)
    condition = span.condition(PATHS)
    check_conditions([condition])
    for values in itertools.product(range(7), repeat=3):
        met = eval(condition, {"L": {"args": [_Sized(n) for n in values]}})
        assert met == span.holds(dict(zip(BOUNDS, values, strict=True)))


def test_sizes_without_a_path_are_not_asked_for() -> None:
    span = Span(BOUNDS, dict.fromkeys(BOUNDS, "s0"))
    assert span.condition({}) == ""
    assert span.condition({"s1": "L['x'].size()[0]"}) == "2 <= L['x'].size()[0] <= 5"
