"""Separators are the tasks that all others are before or behind, and regions lie between them."""

import itertools

import pytest

from dcir.cost.threads.task_graph import Region, TaskGraph, levels
from dcir.errors import InvalidGraph
from tests.cost.threads.graphs import branches, chain, dense, graph_of, random_graph, tables, training


def comparable(graph: TaskGraph) -> tuple[int, ...]:
    """Separators by their definition, from all that lies before each task."""
    before: list[set[int]] = []
    for task in graph.tasks:
        before.append(set(task.after).union(*(before[a] for a in task.after)))
    size = range(len(graph))
    return tuple(t for t in size if all(o == t or o in before[t] or t in before[o] for o in size))


@pytest.mark.parametrize(
    "graph", [chain(5), branches(3, (1, 2, 3)), tables(4), training(6), dense(7), graph_of([], [])]
)
def test_separators_are_those_of_the_definition(graph):
    assert graph.separators == comparable(graph)


def test_separators_of_random_graphs():
    found = set()
    for seed, size in itertools.product(range(60), (1, 2, 7, 25)):
        graph = random_graph(seed, size)
        assert graph.separators == comparable(graph), (seed, size)
        found.add(len(graph.separators) / size)
    assert len(found) > 4  # none and all are not the only answers


def test_regions_are_all_tasks_in_order():
    graph = branches(2, (1, 2))
    assert graph.regions == (Region(0, 1), Region(1, 4), Region(4, 5), Region(5, 8), Region(8, 9))
    assert training(3).regions == (Region(0, 1), Region(1, 7))
    assert TaskGraph(()).regions == ()


def test_nothing_runs_beside_a_separator_that_was_asked_for():
    graph = graph_of([], [], [0], [1], [])
    apart = graph.with_separators([2])
    assert 2 in apart.separators and comparable(apart) == apart.separators
    assert [t.after for t in apart.tasks] == [(), (), (0, 1), (1, 2), (2,)]
    assert graph.with_separators([]) == graph
    both = random_graph(3, 25).with_separators([4, 11])
    assert {4, 11} <= set(comparable(both))


def test_levels_count_what_is_asked_for():
    graph = branches(1, (1, 2))
    assert levels(graph, Region(0, 5)) == [1, 2, 2, 3, 4]
    assert levels(graph, Region(0, 5), [True, False, True, False, True]) == [1, 1, 2, 2, 3]
    assert levels(graph, Region(2, 4)) == [1, 2]


def test_a_task_waits_for_earlier_ones():
    with pytest.raises(InvalidGraph, match="task 1 waits for 1"):
        graph_of([], [1])
