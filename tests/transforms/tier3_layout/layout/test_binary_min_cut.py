"""Cheapest choices against all choices, on chains, trees, grids and dense graphs; and what finding them takes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from dcir.transforms.tier3_layout.layout.binary_min_cut import Agreement
from tests.counted import growth


def total(labels: list[int], own: list[tuple[int, int]], pairs: dict[tuple[int, int], list[int]]) -> int:
    return sum(c[x] for c, x in zip(own, labels, strict=True)) + sum(
        t[2 * labels[a] + labels[b]] for (a, b), t in pairs.items()
    )


def table(rng: random.Random) -> list[int]:
    """A random table of labels that had rather agree."""
    t = [rng.randrange(20) for _ in range(4)]
    t[1] += max(0, t[0] + t[3] - t[1] - t[2])
    return t


@pytest.mark.parametrize("edges", ["chain", "tree", "ring", "dense", "none"])
@pytest.mark.parametrize("seed", range(8))
def test_least_of_all_choices(edges: str, seed: int) -> None:
    rng = random.Random(seed)
    n = 9
    kinds = {
        "chain": [(i, i + 1) for i in range(n - 1)],
        "tree": [(rng.randrange(i), i) for i in range(1, n)],
        "ring": [(i, (i + 1) % n) for i in range(n)],
        "dense": list(itertools.combinations(range(n), 2)),
        "none": [],
    }
    problem = Agreement()
    own = [(rng.randrange(40), rng.randrange(40)) for _ in range(n)]
    for c in own:
        problem.cost(problem.variable(), *c)
    pairs = {e: table(rng) for e in kinds[edges]}
    for (a, b), t in pairs.items():
        problem.pair(a, b, t)
    best = min(total(list(x), own, pairs) for x in itertools.product((0, 1), repeat=n))
    assert total(problem.solve(), own, pairs) == best


def test_costs_add_up_in_either_order() -> None:
    problem = Agreement()
    a, b = problem.variable(), problem.variable()
    problem.pair(a, b, (0, 3, 0, 0))
    problem.pair(b, a, (0, 0, 4, 0))
    problem.cost(a, 0, 5)
    problem.cost(b, 6, 0)
    assert problem.solve() == [1, 1]  # 5, where 6 and 7 are the others
    problem.cost(a, 0, 2)
    assert problem.solve() == [0, 0]


def test_equal_costs_change_nothing() -> None:
    problem = Agreement()
    a, b = problem.variable(), problem.variable()
    problem.pair(a, b, (0, 1, 1, 0))
    assert problem.solve() == [0, 0]


def test_refuses_labels_that_would_rather_differ() -> None:
    problem = Agreement()
    a, b = problem.variable(), problem.variable()
    with pytest.raises(ValueError, match="rather differ"):
        problem.pair(a, b, (1, 0, 0, 0))


def test_work_grows_with_the_depth_and_not_with_its_square() -> None:
    def deep(n: int) -> Callable[[], object]:
        rng = random.Random(0)
        problem = Agreement()
        for _ in range(n):
            problem.cost(problem.variable(), rng.randrange(100), rng.randrange(100))
        for i in range(1, n):
            problem.pair(i - 1, i, table(rng))
            if i % 4 == 0:
                problem.pair(i - 4, i, table(rng))
        return problem.solve

    assert growth(deep, 250, 8) < 1.1
