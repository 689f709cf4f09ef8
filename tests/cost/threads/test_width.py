"""Widths: what is heavy over the longest way, level by level, and how much of the work lies beside it."""

import itertools

import pytest

from dcir.cost.threads.width import heaviest, width_of
from tests.cost.threads.graphs import branches, chain, dense, random_graph, tables, training


def test_a_chain_is_one_wide():
    w = width_of(chain(7), [1.0] * 7, [True] * 7)
    assert (w.heavy, w.depth, w.average, w.widest, w.parallelism, w.pools) == (7, 7, 1.0, 1, 1.0, 1)
    assert w.profile() == "1 x7"


def test_branches():
    # Fork, branches of 1, 2 and 3, join: twice.
    graph = branches(2, (1, 2, 3))
    w = width_of(graph, [1.0] * len(graph), [True] * len(graph))
    assert (w.heavy, w.depth, w.levels) == (15, 9, (1, 3, 2, 1, 1, 3, 2, 1, 1))
    assert w.average == pytest.approx(15 / 9) and w.pools == 2 and w.parallelism == pytest.approx(15 / 9)
    assert w.profile() == "1, 3, 2, 1 x2, 3, 2, 1 x2"


def test_light_tasks_make_nothing_deeper_and_hand_on():
    graph = branches(1, (3,))
    w = width_of(graph, [0, 0, 5, 0, 1], [False, False, True, False, True])
    assert (w.heavy, w.levels, w.work, w.critical_path) == (2, (1, 1), 6.0, 6.0)


def test_a_recommender_is_wide_and_has_its_work_in_a_row():
    graph = tables(26)
    w = width_of(graph, [0.0] * 26 + [1.0] * 4, [True] * 30)
    assert (w.heavy, w.depth, w.average, w.widest, w.parallelism) == (30, 4, 7.5, 27, 1.0)


def test_a_backward_is_twice_as_wide_as_its_forward():
    graph = training(50)
    w = width_of(graph, [1.0] * 101, [True] * 101)
    assert w.average == pytest.approx(101 / 51) and w.widest == 2


def test_nothing_is_one_wide():
    w = width_of(chain(2), [0.0, 0.0], [False, False])
    assert (w.heavy, w.depth, w.average, w.widest, w.parallelism, w.pools) == (0, 0, 1.0, 1, 1.0, 1)


def test_the_guideline_rounds_half_up():
    # 1.98 are two pools, and 2.5 are three.
    graph = branches(1, (1, 1))
    assert width_of(graph, [1.0] * 4, [True, True, True, False]).pools == 2
    assert width_of(tables(3), [1.0] * 7, [True] * 4 + [False] * 2 + [True]).pools == 3


def test_depth_is_that_of_the_graph_contracted_to_heavy_tasks():
    for seed, share in itertools.product(range(40), (2, 3)):
        graph = random_graph(seed, 20)
        heavy = [n % share == 0 for n in range(20)]
        # The nearest heavy tasks before each.
        near: list[set[int]] = []
        for task in graph.tasks:
            near.append(set().union(*({a} if heavy[a] else near[a] for a in task.after)))
        depth: dict[int, int] = {}
        for n in range(20):
            if heavy[n]:
                depth[n] = 1 + max((depth[a] for a in near[n]), default=0)
        w = width_of(graph, [1.0] * 20, heavy)
        assert (w.heavy, w.depth, sum(w.levels)) == (sum(heavy), max(depth.values()), sum(heavy))
        assert list(w.levels) == [sum(d == k for d in depth.values()) for k in range(1, w.depth + 1)]


def test_dense_networks_take_no_exponential_time():
    # 400 tasks of which each reads all before it have 2^398 ways through them.
    graph = dense(400)
    w = width_of(graph, [1.0] * 400, [True] * 400)
    assert (w.depth, w.critical_path) == (400, 400.0) and len(graph.separators) == 400  # at all


def test_heavy_by_weight():
    assert heaviest([50.0, 1.0, 30.0, 4.0, 15.0]) == [True, False, True, False, True]
    assert heaviest([0.0, 0.0]) == [False, False] and heaviest([]) == []
    assert heaviest([1.0] * 4, 0.5) == [True, True, False, False]
