"""Sizes of images at samples: bounds, conditions, and the numbers that take certain values there."""

import pytest

from dcir.errors import InvalidInput
from dcir.ir.sizes import Bounds, value_at
from dcir.ops.analysis.size_axes import Axes, Axis, axis, near
from dcir.ops.analysis.size_ladders import Ladder, ladder


def always(value):
    return True


def halves(levels):
    return ladder([lambda s, k=k: (s - 1) // 2**k for k in range(1, levels + 1)], 9)


def images(levels=2, high=509):
    """A batch, heights and widths."""
    made, taken = [axis(Ladder(), Bounds(2, 15), 0, lambda n: n < 16)], {3, 32, 64}
    for _ in range(2):
        found = axis(halves(levels), Bounds(2, high), sum(len(a.sizes) for a in made), always, taken)
        taken |= near(found.ladder.rungs(found.reach.high))
        made.append(found)
    return Axes(made, {3, 32, 64}, lambda values: True)


def test_bounds_reach_what_was_asked_for():
    axes = images()
    batch, height, width = axes.axes
    assert batch.reach == Bounds(2, 15) and height.reach.low == width.reach.low == 5
    assert 509 <= height.reach.high < width.reach.high < 560
    assert axes.samples[-1] == tuple(a.reach.high for a in axes.axes)
    for a in axes.axes:
        assert a.has(a.reach.low) and a.has(a.reach.high) and not a.has(a.reach.low - 1) and not a.has(a.reach.high + 1)


@pytest.mark.parametrize("levels", [0, 1, 3, 5])
def test_numbers_are_found(levels):
    axes = images(levels)
    handful, few, many = axes.turns
    assert len(handful) == 5 < len(few) < len(many)

    def at(sample, i, j):
        n, h, w = sample
        return n, axes.axes[1].ladder.levels(h)[i], axes.axes[2].ladder.levels(w)[j]

    def simple(n, h, w):
        return 12 * n * h * w - 7

    def general(n, h, w):
        return 3 * n * (h + 2) * (w - 1) - h * w + 5

    for i in range(levels + 1):
        for j in range(levels + 1):
            for numbers, made in ((handful, simple), (few, simple), (few, general), (many, general)):
                fit = axes.fit(numbers)
                values = tuple(made(*at(axes.samples[k], i, j)) for k in numbers)
                found = fit.through(values)
                assert found is not None
                for sample in [(2, 37, 41), (7, 64, 500), (15, 101, 36)]:
                    assert value_at(found, axes.parts(sample)) == made(*at(sample, i, j))
                assert fit.through((values[0] + 1, *values[1:])) is None
            assert axes.fit(handful).through(tuple(general(*at(axes.samples[k], i, j)) for k in handful)) is None


def test_squares_of_one_side():
    side = axis(halves(1), Bounds(2, 200), 0, always)
    axes = Axes([side], {3}, lambda values: True)
    numbers = axes.turns[1]
    found = axes.fit(numbers).through(tuple(((s + 1) // 2) ** 2 * 8 for (s,) in (axes.samples[k] for k in numbers)))
    assert found is not None and value_at(found, axes.parts((77,))) == 39 * 39 * 8


def test_squares_of_texts():
    """A batch and two lengths, one of which is on both sides of attention scores; images of two sides have no squares."""
    made, taken = [], {3}
    for k, high in enumerate((15, 127, 61)):
        made.append(axis(Ladder(), Bounds(2, high), k, always, taken))
        taken |= near(made[-1].ladder.rungs(made[-1].reach.high))
    axes = Axes(made, {3}, lambda values: True)

    def scores(n, s, t):
        return 4 * t * t

    def several(n, s, t):
        return 2 * n * t * t - 3 * n * s + s * s + 1

    for numbers, what in ((axes.turns[0], scores), (axes.turns[2], scores), (axes.turns[2], several)):
        found = axes.fit(numbers).through(tuple(what(*axes.samples[k]) for k in numbers))
        assert found is not None and value_at(found, axes.parts((7, 100, 31))) == what(7, 100, 31)
    assert axes.fit(axes.turns[1]).through(tuple(several(*axes.samples[k]) for k in axes.turns[1])) is None
    pictures = images(1)
    assert len(pictures.turns[2]) < len(axes.turns[2])


def test_conditions_restrict_what_is_left_over():
    found = axis(halves(2), Bounds(2, 300), 0, lambda s: s % 2 == 1 and s > 30)
    assert isinstance(found, Axis) and found.reach.low > 30
    assert list(found.sizes) == ["s0", "s1"] and found.sizes["s1"] == Bounds(0, 1)
    assert found.has(101) and not found.has(100)


@pytest.mark.parametrize(("holds", "reason"), [
    (lambda s: s % 4 in (0, 1, 3), "depends on each other"), (lambda s: s % 7 == 3, "depends on each other"), (lambda s: s < 30, "gaps"),
])  # fmt: skip
def test_gaps_are_refused(holds, reason):
    found = axis(halves(2), Bounds(2, 300), 0, holds)
    assert isinstance(found, str) and reason in found


def test_samples_that_nothing_holds_for():
    with pytest.raises(InvalidInput, match="no samples"):
        Axes([axis(Ladder(), Bounds(2, 60), 0, always)], (), lambda values: False)


def test_remainders_are_found_where_samples_are_not_a_handful():
    """How much larger a size is than twice its half, of both sides: zeros and ones, of which a handful may be anything's."""

    def side(low, taken):
        made = ladder([lambda s: s // 2, lambda s: s // 4, lambda s: s - s // 2 * 2, lambda s: s // 2 - s // 4 * 2], 9)
        assert len(made.remainders()) == 2
        return axis(made, Bounds(2, 509), low, always, taken)

    height = side(0, {3})
    width = side(len(height.sizes), {3, *near(height.ladder.rungs(height.reach.high))})
    axes = Axes([height, width], {3}, lambda values: True)
    handful, few, many = axes.turns
    for number in (lambda h, w: h % 2, lambda h, w: -(w // 2 % 2), lambda h, w: 7 - h // 2 % 2):
        values = [number(*axes.samples[k]) for k in many]
        assert axes.fit(handful).through(tuple(number(*axes.samples[k]) for k in handful)) is None
        assert len(set(values)) == 2
        for numbers in (few, many):
            found = axes.fit(numbers).through(tuple(number(*axes.samples[k]) for k in numbers))
            assert found is not None
            for sample in [(37, 41), (64, 500), (101, 38)]:
                assert value_at(found, axes.parts(sample)) == number(*sample)
    # Products of both are still polynomials of the sides alone.
    found = axes.fit(few).through(tuple((h // 2) * w * 3 + 1 for h, w in (axes.samples[k] for k in few)))
    assert found is not None and value_at(found, axes.parts((77, 30))) == 38 * 30 * 3 + 1
