"""A plan is data: it comes back as it was, and what gives a thread away twice is refused."""

import copy
import json

import pytest

from dcir.cost.threads.planner import Planner
from dcir.cost.threads.schedule import Slot
from dcir.cost.threads.thread_plan import GraphPlan, ThreadPlan
from dcir.cost.threads.topology import Cores
from dcir.errors import InvalidInput
from tests.cost.threads.graphs import Costs, branches, random_curves


def plan():
    graph = branches(2, (1, 2, 3))
    costs = Costs(Cores(8, 4))
    choice = Planner(graph, random_curves(1, len(graph)), costs).chosen(2.0)
    return ThreadPlan(costs.cores, (choice.plan, choice.settings["guideline"]))


def test_it_comes_back_as_it_was():
    made = plan()
    assert ThreadPlan.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert made.seconds == pytest.approx(sum(g.seconds for g in made.graphs))


def changed(change):
    data = json.loads(json.dumps(plan().to_json()))
    change(data)
    return data


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("graphs"),
        lambda d: d.update(format=0),
        lambda d: d["cores"].update(speed=3),
        lambda d: d["graphs"][0]["slots"][0].pop("start"),
        lambda d: d["graphs"][0]["slots"][0].update(first=-1),
        lambda d: d["graphs"][0]["slots"][0].update(threads=9),
        lambda d: d["graphs"][0]["slots"][0].update(threads=0),
        lambda d: d["graphs"][0]["slots"][0].update(end=-1.0),
        lambda d: d["graphs"][0]["slots"].append(copy.deepcopy(d["graphs"][0]["slots"][0])),
        lambda d: d["graphs"][0].update(seconds="soon"),
        lambda d: d.update(graphs=[None]),
    ],
)
def test_what_is_no_plan_is_refused(change):
    with pytest.raises(InvalidInput):
        ThreadPlan.from_json(changed(change))


def test_what_a_plan_says_of_itself():
    made = GraphPlan(
        "inference", "mine", 4.0, (Slot(0, 0, 4, 0.0, 1.0), Slot(1, 0, 2, 1.0, 2.0), Slot(2, 2, 2, 1.0, 4.0))
    )
    assert (made.team, made.most_beside, made.sizes()) == (4, 2, {2: 2, 4: 1})
    empty = GraphPlan("inference", "nothing", 0.0)
    assert (empty.team, empty.most_beside, empty.sizes()) == (1, 0, {})
