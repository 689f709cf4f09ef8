"""The integer program of the partition against all choices there are."""

import itertools
import math
import random

import pytest

from dcir.frontends.torch.partition.solver import GAP, PartitionProblem, Value, evaluate, solve


def drawn(seed, count=9, steps=6, forward=5):
    """A small problem of every kind: values that cannot be kept, or not be computed again, or are kept in any case."""
    r = random.Random(seed)
    values = []
    for i in range(count):
        first = r.randrange(steps)
        begin = r.randrange(forward)
        stored = r.choice([None, 4, 8, 8, 16, 3])
        again = r.choice([1.0, 2.0, 5.0, 0.5]) if stored is None or r.random() < 0.85 else math.inf
        values.append(
            Value(
                f"v{i}",
                stored,
                live=r.choice([0, 4, 8, 16]),
                written=r.choice([0, 4, 8]),
                parents=tuple(sorted(r.sample(range(i), min(i, r.choice([0, 1, 1, 2]))))),
                store_seconds=r.random(),
                again_seconds=again,
                forced=stored is not None and r.random() < 0.1,
                forward=(begin, r.randrange(begin, forward)) if r.random() < 0.9 else None,
                needs=(first, r.randrange(first, steps)) if r.random() < 0.7 else None,
            )
        )
    base = [tuple(r.randrange(10) for _ in range(n)) for n in (forward, steps)]
    return PartitionProblem(tuple(values), *base)


@pytest.mark.parametrize("seed", range(60))
def test_as_good_as_the_best_of_all_choices(seed):
    problem = drawn(seed)
    free = [i for i, v in enumerate(problem.values) if v.stored is not None and not v.forced]
    subsets = itertools.chain.from_iterable(itertools.combinations(free, k) for k in range(len(free) + 1))
    every = [c for c in (evaluate(problem, s) for s in subsets) if c is not None]
    found = solve(problem)
    if not every:
        assert found is None
        return
    least, most = min(c.peak for c in every), max(c.peak for c in every)
    assert found.peak == least
    assert solve(problem, least - 1) is None
    for limit in (least, (least + most) // 2, most):
        best = min(c.seconds for c in every if c.peak <= limit)
        found = solve(problem, limit)
        assert found.peak <= limit and found.proven
        assert found.seconds <= best * (1 + 2 * GAP)


def test_a_chain_keeps_every_few_values():
    """Sixteen equal layers in less than half the memory: some are kept, none is computed more than once."""
    layers = 16
    values = tuple(
        Value(
            f"v{i}", 8, 8, 8, (i - 1,) if i else (), 0.1, 1.0,
            forward=(i, min(i + 1, layers - 1)), needs=(layers - 1 - i, layers - 1 - i),
        )
        for i in range(layers)
    )  # fmt: skip
    problem = PartitionProblem(values, (0,) * layers, (8,) * layers)
    keep_all = evaluate(problem, range(layers))
    assert keep_all.peak == 17 * 8 and not keep_all.again
    half = solve(problem, keep_all.peak // 2)
    assert half.proven and half.peak <= keep_all.peak // 2
    assert len(half.stored) + len(half.again) == layers
    # Five kept, and two of a run next to a gradient: no choice of so many equal layers needs less.
    assert solve(problem).peak == half.peak == (5 + 2 + 1) * 8


def test_what_cannot_be_had_is_no_choice():
    """A value that is needed, not kept and not to be computed again."""
    problem = PartitionProblem((Value("random", 8, again_seconds=math.inf, needs=(0, 0)),), (0,), (0,))
    assert evaluate(problem, ()) is None
    assert evaluate(problem, (0,)).peak == 8
    assert solve(problem, 7) is None
