"""List schedules keep what tasks wait for, give a thread to one task at a time, and are near the best of all."""

import itertools

import pytest

from dcir.cost.threads.schedule import Units, list_schedule, tails_of
from dcir.cost.threads.task_graph import Region
from tests.cost.threads.graphs import branches, chain, graph_of, random_graph, replayed


def whole(graph):
    return Region(0, len(graph))


def test_a_chain_on_one_team_takes_the_sum():
    slots = list_schedule(chain(4), Region(0, 4), [8] * 4, [1.0, 2.0, 3.0, 4.0], Units(1, 8), 0.5)
    assert [(s.start, s.end) for s in slots] == [(0, 1), (1, 3), (3, 6), (6, 10)]


def test_another_team_is_handed_over_to():
    slots = list_schedule(chain(3), Region(0, 3), [8, 2, 2], [1.0] * 3, Units(1, 8), 0.5)
    assert [s.start for s in slots] == [0.0, 1.5, 2.5]


def test_branches_lie_side_by_side_and_longest_first():
    graph = branches(1, (1, 1, 1))
    slots = list_schedule(graph, whole(graph), [1] * 5, [1.0, 2.0, 2.0, 4.0, 1.0], Units(2, 1), 0.0)
    assert slots[3].start == 1.0 and slots[3].team == slots[0].team
    assert (slots[1].start, slots[2].start, slots[4].end) == (1.0, 3.0, 6.0)


def test_whoever_ran_what_it_waits_for_goes_on():
    graph = graph_of([], [], [0], [1])
    slots = list_schedule(graph, whole(graph), [1] * 4, [1.0, 2.0, 1.0, 1.0], Units(2, 1), 10.0)
    assert slots[2].team == slots[0].team and slots[3].team == slots[1].team and slots[3].end == 3.0


def test_teams_of_different_sizes():
    graph = graph_of([], [], [])
    slots = list_schedule(graph, whole(graph), [3, 1, 4], [2.0, 2.0, 1.0], Units(4, 1), 0.0)
    assert [s.team for s in slots] == [(0, 3), (3, 1), (0, 4)] and [s.start for s in slots] == [0, 0, 2]


def test_a_region_begins_behind_the_one_before():
    graph = branches(1, (1, 1))
    first = list_schedule(graph, Region(0, 1), [2], [1.0], Units(1, 2), 0.5)
    slots = list_schedule(graph, Region(1, 3), [1, 1], [1.0, 1.0], Units(2, 1), 0.5, {0: first[0]})
    assert [s.start for s in slots] == [1.5, 1.5]


def test_tails():
    assert tails_of(branches(1, (1, 2)), Region(0, 5), [1.0] * 5) == [4.0, 2.0, 3.0, 2.0, 1.0]
    assert tails_of(branches(1, (1, 2)), Region(2, 4), [1.0] * 2) == [2.0, 1.0]


@pytest.mark.parametrize("units", [Units(1, 4), Units(2, 2), Units(4, 1)])
def test_schedules_of_random_graphs_can_be_run(units):
    for seed in range(40):
        graph = random_graph(seed, 18)
        teams = [1 + (seed + n) % 4 for n in range(18)]
        teams = [min(team, units.width) if units.count > 1 and units.width > 1 else team for team in teams]
        seconds = [1.0 + (7 * n + seed) % 5 for n in range(18)]
        slots = list_schedule(graph, whole(graph), teams, seconds, units, 0.25)
        assert [s.threads for s in slots] == teams
        assert [s.end - s.start for s in slots] == pytest.approx(seconds)
        end = replayed(graph, slots, 0.25, 4)
        path = max(tails_of(graph, whole(graph), seconds))
        assert end >= path and end <= sum(seconds) + 0.25 * len(graph)


def test_on_single_threads_it_takes_less_than_twice_the_bound():
    # Graham's: area over threads, and the critical path.
    for seed, threads in itertools.product(range(40), (2, 3, 4)):
        graph = random_graph(seed, 16)
        seconds = [1.0 + (5 * n + seed) % 7 for n in range(16)]
        slots = list_schedule(graph, whole(graph), [1] * 16, seconds, Units(threads, 1), 0.0)
        path = max(tails_of(graph, whole(graph), seconds))
        assert max(s.end for s in slots) <= sum(seconds) / threads + (1 - 1 / threads) * path + 1e-9


def test_small_graphs_are_near_the_best_of_all_orders():
    worst = 1.0
    for seed in range(25):
        graph = random_graph(seed, 6, 2)
        seconds = [1.0 + (3 * n + seed) % 4 for n in range(6)]
        slots = list_schedule(graph, whole(graph), [1] * 6, seconds, Units(2, 1), 0.0)
        worst = max(worst, max(s.end for s in slots) / best_of_all_orders(graph, seconds, 2))
    assert worst <= 1.3


def best_of_all_orders(graph, seconds, threads):
    """The shortest schedule without idle threads, by trying every order on every thread."""
    best = float("inf")
    for order in itertools.permutations(range(len(graph))):
        place = {task: i for i, task in enumerate(order)}
        if any(place[a] > place[t] for t, task in enumerate(graph.tasks) for a in task.after):
            continue
        ends, free = {}, [0.0] * threads
        for task in order:
            thread = min(range(threads), key=free.__getitem__)
            start = max([free[thread], *(ends[a] for a in graph.tasks[task].after)])
            ends[task] = free[thread] = start + seconds[task]
        best = min(best, max(free))
    return best
