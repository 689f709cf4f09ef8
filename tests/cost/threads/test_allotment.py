"""Teams of different sizes: the long branch gets more threads, until the critical path is no longer than what the threads can do."""

import itertools

from dcir.cost.threads.allotment import allotments
from dcir.cost.threads.curves import team_sizes
from dcir.cost.threads.task_graph import Region
from tests.cost.threads.graphs import branches, chain, graph_of


def scaling(work):
    return lambda task, threads: work[task] / threads + 1e-3 * threads


def test_a_chain_gets_all_threads():
    found = allotments(chain(3), Region(0, 3), scaling([100.0] * 3), team_sizes(8))
    assert found[0] == [1, 1, 1] and found[-1] == [8, 8, 8]


def test_one_team_grows_at_a_time():
    found = allotments(chain(3), Region(0, 3), scaling([300.0, 100.0, 1.0]), team_sizes(8))
    for a, b in itertools.pairwise(found):
        assert sum(x != y for x, y in zip(a, b, strict=True)) == 1 and sum(b) > sum(a)


def test_the_long_branch_gets_more():
    assert [6, 2] in allotments(graph_of([], []), Region(0, 2), scaling([300.0, 100.0]), team_sizes(8))


def test_what_does_not_scale_stays_on_one_thread():
    found = allotments(branches(1, (1, 1)), Region(1, 3), lambda task, threads: 1.0 + 0.1 * threads, team_sizes(8))
    assert found == [[1, 1]]


def test_as_many_tasks_as_threads_get_one_each():
    assert allotments(graph_of(*[[]] * 8), Region(0, 8), scaling([10.0] * 8), team_sizes(8)) == [[1] * 8]
