"""Plans by simulation: machines of up to 128 cores and two sockets, all forms of graphs, and curves as they would be measured.

The plan is held against every number of pools times every number of threads that fit (the exhaustive sweep), the guideline and the
vendors' settings; and its time is found again by following it thread by thread.
"""

import itertools
import random

import pytest

from dcir.cost.threads.curves import Measured, Work, curve_of
from dcir.cost.threads.planner import ALL, CAPPED, CHOSEN, GUIDELINE, LATENCY, ONE, TENSORFLOW, THROUGHPUT, Planner
from dcir.cost.threads.schedule import Slot, Units, list_schedule
from dcir.cost.threads.task_graph import Region
from dcir.cost.threads.team_rates import TeamRates
from dcir.cost.threads.topology import Cores
from dcir.cost.threads.width import width_of
from tests.cost.test_machine import MODEL
from tests.cost.threads.graphs import (
    Costs,
    amdahl,
    branches,
    chain,
    dense,
    graph_of,
    random_curves,
    random_graph,
    replayed,
    tables,
    training,
)  # fmt: skip

MACHINES = [Cores(2, 2), Cores(4, 4), Cores(6, 6), Cores(16, 16), Cores(64, 32), Cores(128, 64)]
GRAPHS = {
    "chain": chain(20), "inception": branches(5, (1, 2, 3, 1)), "uneven": branches(3, (5, 1)), "recommender": tables(26),
    "backward": training(25), "dense": dense(15), "wide": branches(1, (1,) * 40), "apart": graph_of(*[[]] * 9),
    **{f"random {seed}": random_graph(seed, 30) for seed in range(4)},
}  # fmt: skip


def average(graph):
    return width_of(graph, [1.0] * len(graph), [True] * len(graph)).average


def sweep(planner):
    """Every number of pools with every number of threads that fit, and every number of threads at most for kernels in a row."""
    total = planner.threads
    found = {
        (count, width): planner.pools(count, width).seconds
        for count in range(1, total + 1)
        for width in range(1, total // count + 1)
        if count in (1, 2, 3, 4, 6, 8, 12, 16, 27, 32, 64, 128) and (width in (1, 2, 3, 5) or width % 4 == 0)
    }
    assert len(found) > total // 4
    return min(found.values())


@pytest.mark.parametrize("cores", MACHINES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_plans_are_as_good_as_the_best_of_a_sweep(name, cores):
    graph, costs = GRAPHS[name], Costs(cores)
    for seed in range(2):
        planner = Planner(graph, random_curves(seed, len(graph)), costs)
        choice = planner.chosen(average(graph))
        plan = choice.plan
        assert plan.seconds * 0.95 <= sweep(planner)
        for setting in choice.settings.values():
            assert plan.seconds <= setting.seconds * (1 + 1e-9), setting.setting
            assert replayed(graph, setting.slots, 0.0, cores.total) <= setting.seconds
        # Regions are handed over to from the one before only, so what is followed here is each wait and each thread.
        end = replayed(graph, plan.slots, 0.0, cores.total)
        assert plan.setting == CHOSEN and plan.seconds == pytest.approx(end + costs.opening(plan.team))
        if name in ("chain", "dense"):
            assert plan.most_beside == 1


def test_where_everything_scales_all_threads_are_best_and_simplest():
    graph = branches(4, (1, 2, 3))
    curves = [amdahl(1e-3, 0.0, 1024, 1024, barrier=0.0)] * len(graph)
    choice = Planner(graph, curves, Costs(Cores(16, 16))).chosen(average(graph))
    assert choice.made_of == {ALL: len(graph.regions)} and choice.plan.sizes() == {16: len(graph)}


def test_what_does_not_scale_lies_side_by_side():
    graph = branches(4, (1, 1, 1, 1))
    curves = [amdahl(1e-3, 1.0, 1, 1)] * len(graph)
    choice = Planner(graph, curves, Costs(Cores(4, 4))).chosen(average(graph))
    assert choice.plan.most_beside == 4 and max(choice.plan.sizes()) == 1
    assert choice.plan.seconds == pytest.approx(9e-3, rel=0.02)
    assert choice.settings[ALL].seconds > 2 * choice.plan.seconds


def test_small_kernels_in_a_row_get_fewer_threads():
    curves = [amdahl(2e-6, 0.0, 64, 64, barrier=1e-6), amdahl(1e-2, 0.0, 1024, 64, barrier=1e-6)] * 3
    plan = Planner(chain(6), curves, Costs(Cores(64, 64), handoff=1e-7)).chosen(1.0).plan
    assert [slot.threads for slot in plan.slots] == [1, 64] * 3 or plan.sizes()[1] == 3


def test_a_handover_that_costs_more_than_it_saves_is_not_made():
    curves = [amdahl(2e-6, 0.0, 64, 64, barrier=1e-7), amdahl(1e-2, 0.0, 1024, 64, barrier=1e-7)] * 3
    plan = Planner(chain(6), curves, Costs(Cores(8, 8), handoff=1e-3)).chosen(1.0).plan
    assert len(plan.sizes()) == 1


def test_long_branches_get_more_threads_than_short_ones():
    # Pools of equal size would leave the second one idle for most of the time.
    graph = graph_of([], [], [0, 1])
    curves = [amdahl(30e-3, 0.0, 1024, 1024, 1e-4), amdahl(10e-3, 0.0, 1024, 1024, 1e-4), amdahl(1e-6, 1.0, 1, 1)]
    choice = Planner(graph, curves, Costs(Cores(8, 8))).chosen(1.5)
    assert choice.made_of.get("allotted") == 1 and choice.plan.slots[0].threads > choice.plan.slots[1].threads


def test_settings_are_what_their_vendors_say():
    graph = tables(4)
    planner = Planner(graph, random_curves(0, len(graph)), Costs(Cores(32, 16)))
    found = {
        name: ({slot.first for slot in s.slots}, {slot.threads for slot in s.slots})
        for name, s in planner.settings(2.6).items()
    }
    assert found[ALL] == ({0}, {32}) and found[ONE] == ({0}, {1})
    assert found[GUIDELINE] == ({0, 10, 20}, {10})
    assert found[TENSORFLOW] == ({0, 16}, {16})
    assert found[LATENCY] == ({0}, {4}) and found[THROUGHPUT] == ({0}, {16})


def test_nothing_runs_beside_what_waits_for_all():
    graph = random_graph(5, 30).with_separators([10, 20])
    plan = Planner(graph, random_curves(5, 30), Costs(Cores(8, 8))).chosen(3.0).plan
    for number in (10, 20):
        mine = plan.slots[number]
        assert all(s.end <= mine.start or s.start >= mine.end for s in plan.slots if s.task != number)


def test_every_opening_of_a_team_is_paid():
    curves = [amdahl(1e-3, 0.0, 64, 64)] * 3
    one, three = (Planner(chain(3), curves, Costs(Cores(4, 4)), n).chosen(1.0).plan.seconds for n in (1, 3))
    assert three - one == pytest.approx(2 * 5e-6)


def test_one_core_has_one_plan():
    graph = branches(2, (1, 2))
    choice = Planner(graph, random_curves(1, len(graph)), Costs(Cores(1, 1))).chosen(1.5)
    assert choice.made_of == {ALL: len(graph.regions)} and choice.plan.sizes() == {1: len(graph)}


def test_an_empty_graph():
    choice = Planner(graph_of(), [], Costs(Cores(4, 4)), openings=0).chosen(1.0)
    assert choice.plan.slots == () and choice.plan.seconds == 0.0


@pytest.mark.parametrize("make", [dense, training, chain], ids=["dense", "backward", "chain"])
def test_curves_are_asked_a_number_of_times_that_is_linear(make):
    asked = {}
    for size in (20, 40, 80):
        graph = make(size)
        planner = Planner(graph, random_curves(0, len(graph)), Costs(Cores(16, 8)))
        planner.chosen(average(graph))
        asked[size] = planner.asked / len(graph)
    assert asked[80] <= 1.1 * asked[20]


def test_equal_kernels_are_asked_once():
    planner = Planner(chain(100), [amdahl(1e-3, 0.1, 64, 8)] * 100, Costs(Cores(16, 16)))
    planner.chosen(1.0)
    assert planner.asked < 20


def test_small_graphs_are_near_the_best_of_all_teams_and_orders():
    """All sizes of teams for all kernels, each scheduled: the planner tries a few of these."""
    ratios = []
    for seed in range(12):
        graph, costs = random_graph(seed, 5, 2), Costs(Cores(4, 4), handoff=0.0)
        curves = random_curves(seed + 50, 5)
        whole = Region(0, 5)
        best = min(
            max(
                s.end
                for s in list_schedule(
                    graph, whole, teams, [c.seconds(n) for c, n in zip(curves, teams, strict=True)], Units(4, 1), 0.0
                )
            )
            for teams in itertools.product((1, 2, 3, 4), repeat=5)
        )
        plan = Planner(graph, curves, costs).chosen(average(graph)).plan
        ratios.append(best / max(slot.end for slot in plan.slots))
    assert min(ratios) >= 0.8 and sum(ratios) / len(ratios) >= 0.95


def test_plans_by_what_two_threads_tell_hold_on_many():
    """Curves of which 1 and 2 threads were measured, on a machine whose kernels have serial parts: the plan as it turns out."""
    machine = TeamRates(Cores(64, 64), MODEL)
    draw = random.Random(3)
    graph = branches(4, (1, 2, 2))
    works = [Work(int(10 ** draw.uniform(5, 9)), 1 << 16, (draw.choice((4, 64, 4096)),)) for _ in graph.tasks]
    serial = [draw.choice((0.0, 0.05, 0.3)) for _ in works]
    real = []
    for work, part in zip(works, serial, strict=True):
        model = curve_of(work, machine, {})
        times = {n: model.seconds(1) * part + (1 - part) * model.seconds(n) for n in range(1, 65)}
        real.append(Measured.of(times))
    known = [curve_of(w, machine, {n: r.seconds(n) for n in (1, 2)}) for w, r in zip(works, real, strict=True)]
    plan = Planner(graph, known, machine).chosen(average(graph)).plan
    turned_out = followed(graph, plan.slots, [r.seconds(s.threads) for r, s in zip(real, plan.slots, strict=True)])
    best = Planner(graph, real, machine).chosen(average(graph)).plan
    assert turned_out <= 1.1 * max(slot.end for slot in best.slots)
    assert turned_out <= max(s.end for s in Planner(graph, real, machine).settings(average(graph))[ALL].slots)


def followed(graph, slots, seconds):
    """When the last kernel ends, if each takes so long and threads keep their order."""
    ends: dict[int, float] = {}
    free = [0.0] * 1024
    for slot in sorted(slots, key=lambda s: (s.start, s.task)):
        team = range(slot.first, slot.first + slot.threads)
        start = max([0.0, *(free[t] for t in team), *(ends[a] for a in graph.tasks[slot.task].after)])
        ends[slot.task] = start + seconds[slot.task]
        for t in team:
            free[t] = ends[slot.task]
    return max(ends.values())


def test_what_is_made_of_regions_is_told():
    graph = branches(3, (1, 1, 1))
    curves = [amdahl(1e-3, 1.0, 1, 1) if 1 <= n % 4 <= 3 else amdahl(1e-3, 0.0, 1024, 1024) for n in range(len(graph))]
    choice = Planner(graph, curves, Costs(Cores(4, 4))).chosen(average(graph))
    assert sum(choice.made_of.values()) == len(graph.regions) and len(choice.made_of) >= 2
    assert all(isinstance(slot, Slot) for slot in choice.plan.slots)
    assert CAPPED in choice.made_of or ALL in choice.made_of


def test_a_smaller_team_is_taken_where_opening_it_costs_less():
    class Dear(Costs):
        def opening(self, threads):
            return 1e-6 * threads if threads > 1 else 0.0

    curves = [amdahl(4e-5, 0.0, 64, 64, barrier=1e-8)] * 3
    plan = Planner(chain(3), curves, Dear(Cores(64, 64)), openings=2).chosen(1.0).plan
    best = min(Planner(chain(3), curves, Dear(Cores(64, 64)), openings=2).pools(1, n).seconds for n in range(1, 65))
    assert 1 < plan.team < 64 and plan.seconds <= best / 0.95
