"""Kernels wait for what they read, for calls into torch, and for readers of what they overwrite; image by image they are one task."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dcir.driver.measure.kernel_graph import kernel_graph
from dcir.driver.optimize import compiled_with
from dcir.driver.session import Session
from dcir.options import Options


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


def graphs(module, *inputs, backward=False, **options):
    """What each graph of a call is compiled to: its kind, kernels, network and library."""
    found = []

    def watch(kind, done, library, program):
        found.append((kind, kernel_graph(done.network, library), done.network, library))
        return program

    session = Session(Options.make(**{"dynamic": False, "threads": 2, **options}), watch=watch)
    with torch.set_grad_enabled(backward):
        out = compiled_with(module, session)(*inputs)
    if backward:
        out.sum().backward()
    return found


def before(graph, number):
    """All that a task waits for, directly or not."""
    found = set(graph.tasks[number].after)
    return found.union(*(before(graph, a) for a in found))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.left, self.right = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 24, 5, padding=2)
        self.head = nn.Linear(40 * 64, 5)

    def forward(self, x):
        x = self.stem(x).relu()
        return self.head(torch.cat([self.left(x).relu(), self.right(x).relu()], 1).flatten(1))


@pytest.mark.parametrize("level", [0, 2, 4])
def test_branches_wait_for_the_stem_and_the_head_for_both(level):
    ((kind, kernels, _, _),) = graphs(Branches().eval(), torch.randn(1, 3, 8, 8), level=level)
    assert kind == "inference"
    names = [t.name for t in kernels.graph.tasks]
    stem, left, right = (
        next(i for i, n in enumerate(names) if n.startswith("conv") and s in n) for s in ("3->16", "16->16", "16->24")
    )
    head = max(i for i, w in enumerate(kernels.works) if w.flops >= 2 * 40 * 64 * 5)
    assert stem in before(kernels.data, left) and stem in before(kernels.data, right)
    assert {left, right} <= before(kernels.data, head)
    assert left not in before(kernels.data, right) and right not in before(kernels.data, left)
    assert kernels.graph == kernels.data and kernels.openings == 1
    assert "head" in kernels.graph.tasks[head].place


@pytest.mark.parametrize("level", [0, 4])
def test_every_step_is_in_one_task_and_work_is_the_networks(level):
    ((_, kernels, net, library),) = graphs(Branches().eval(), torch.randn(4, 3, 8, 8), level=level)
    assert sorted(s for steps in kernels.steps for s in steps) == list(range(len(library.steps)))
    assert sum(w.nbytes for w in kernels.works) == net.bytes_moved()
    prepared = net.prepared_ops()
    assert sum(w.flops for w in kernels.works) == sum(op.spec.operations() for op in net.ops() if op not in prepared)
    known = [w.jobs for w in kernels.works]
    assert all(jobs and min(jobs) >= 1 for jobs in known)


def test_jobs_are_those_of_the_kernels():
    ((_, kernels, _, library),) = graphs(lambda x: x.sort(1).values, torch.randn(6, 9), level=4)
    names = [name for name, _ in library.steps]
    assert [w.jobs for w in kernels.works] == [library.jobs[name] for name in names]


def test_nothing_runs_beside_torch():
    def function(x, y):
        return torch.linalg.cholesky(x @ x.T + 9 * torch.eye(4)) + 1, (y * 2).sum(0) @ y

    ((_, kernels, _, _),) = graphs(function, torch.randn(4, 4), torch.randn(4, 4))
    calls = [i for i, w in enumerate(kernels.works) if w.torch]
    assert calls and set(calls) <= set(kernels.graph.separators) and not set(calls) <= set(kernels.data.separators)
    assert kernels.openings >= 1


def test_what_overwrites_waits_for_readers():
    def function(x, y):
        total = (x * y).sum()
        x.add_(1)
        return total

    ((_, kernels, net, _),) = graphs(function, torch.randn(64), torch.randn(64), level=1)
    assert net.updates
    ops = net.ops()
    writer = next(i for i, op in enumerate(ops) if any(o.data in net.updates for o in net.outs(op)))
    reader = next(i for i, op in enumerate(ops) if i != writer and net.inputs[0] in {o.data for o in net.ins(op)})
    assert len(kernels.data) == len(ops) and reader in before(kernels.data, writer)


def test_weights_gradients_lie_beside_the_rest_of_a_backward():
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(32, 32), nn.Tanh())))
    (_, forward, _, _), (kind, backward, _, _) = graphs(model, torch.randn(8, 32), backward=True)
    assert kind == "backward"
    everything = set().union(*(before(backward.data, n) for n in range(len(backward.data))))
    ends = [n for n in range(len(backward.data)) if n not in everything]
    assert len(ends) >= 3 and len(forward.data) >= 3


def test_operators_that_take_one_image_after_the_other_are_one_task():
    layers = [layer for _ in range(3) for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())]
    ((_, kernels, net, library),) = graphs(nn.Sequential(*layers).eval(), torch.randn(16, 64, 56, 56))
    if not net.streams:
        pytest.skip("this target runs them layer by layer")
    together = [i for i, steps in enumerate(kernels.steps) if len(steps) > 1]
    assert together and all(kernels.works[i].jobs == (16,) for i in together)
    assert len(kernels.data) < len(library.steps)


@pytest.mark.parametrize("backward", [False, True])
def test_waits_for_memory_hold_every_two_kernels_apart_that_use_the_same_bytes(backward):
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.Tanh())))
    shared = 0
    for _, kernels, net, library in graphs(model, torch.randn(2, 8, 12, 12), backward=backward):
        numbers = {library.steps[step][1]: task for task, steps in enumerate(kernels.steps) for step in steps}
        users: dict[str, set[int]] = {}
        written: dict[str, set[int]] = {}
        for number, op in enumerate(net.ops()):
            if number in numbers:
                for o in (*net.ins(op), *net.outs(op)):
                    users.setdefault(o.data, set()).add(numbers[number])
                for o in net.outs(op):
                    written.setdefault(o.data, set()).add(numbers[number])
        placed = {n: net.memory.placement(n) for n in users}
        for first, last in ((a, b) for a in users for b in written if a != b and placed[a] and placed[b]):
            (block, at), (other, begin) = placed[first], placed[last]
            if (
                block == other
                and at < begin + net.containers[last].nbytes
                and begin < at + net.containers[first].nbytes
            ):
                shared += 1
                for user in users[first]:
                    for writer in written[last] - {user}:
                        assert user in before(kernels.reused, writer) or writer in before(kernels.reused, user)
        assert all(set(d.after) <= set(r.after) for d, r in zip(kernels.data.tasks, kernels.reused.tasks, strict=True))
    assert shared
