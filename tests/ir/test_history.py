"""Snapshots share the versions of what a pass left alone, say what became of the rest, and cost nothing unless asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import dcir
from dcir.ir.history import IMPORT, History
from dcir.report.kept_graph import KeptGraph
from tests.view.models import block


def kept(**options: Any) -> KeptGraph:
    torch._dynamo.reset()
    model, inputs = block()
    fast = dcir.optimize(model, history=True, **options)
    with torch.no_grad():
        fast(*inputs)
    (only,) = fast.dcir.session.keeper.done()
    return only


def test_the_last_snapshot_is_the_network_and_the_first_the_import() -> None:
    found = kept()
    history, net = found.history, found.network
    assert net is not None
    assert history.snapshots[0].after == IMPORT
    last = [history.versions[v] for v in history.snapshots[-1].order]
    assert [v.label for v in last] == [op.label for op in net.ops()]
    assert [v.spec for v in last] == [op.spec for op in net.ops()]
    assert [[a.data for a in v.reads] for v in last] == [[o.data for o in net.ins(op)] for op in net.ops()]
    assert history.snapshots[-1].bytes == net.bytes_moved()
    assert {v.made_by for v in (history.versions[n] for n in history.snapshots[0].order)} == {"frontend"}


def test_there_is_a_snapshot_for_every_pass_that_changed_something() -> None:
    found = kept()
    changed = [n for n, p in enumerate(found.record.passes) if p.changed]
    assert [s.after for s in found.history.snapshots] == [IMPORT, *changed]
    for s in found.history.snapshots[1:]:
        assert s.bytes == found.record.passes[s.after].bytes_after


def test_what_a_pass_leaves_alone_keeps_its_number() -> None:
    found = kept().history
    shared = 0
    for number in range(1, len(found.snapshots)):
        before, now = set(found.snapshots[number - 1].order), set(found.snapshots[number].order)
        d = found.difference(number)
        assert set(d.removed) | {a for a, _ in d.changed} == before - now
        assert set(d.added) | {b for _, b in d.changed} == now - before
        assert all(found.versions[a].label == found.versions[b].label for a, b in d.changed)
        shared += len(before & now)
    assert shared > 0
    assert len(found.versions) < sum(len(s.order) for s in found.snapshots)


def test_a_fused_operator_knows_the_versions_whose_work_it_does() -> None:
    found = kept()
    history = found.history
    labels = {history.versions[v].label for v in history.snapshots[0].order}
    fused = [v for v in history.versions if len(v.before) > 1]
    assert fused
    for v in fused:
        numbers = set(v.came_from)
        assert all(set(history.versions[b].came_from) <= numbers for b in v.before)
    assert labels >= {history.versions[b].label for v in fused for b in v.before} or len(history.snapshots) > 2


def test_a_rewired_operator_is_a_new_version_and_an_equal_one_is_not() -> None:
    model, inputs = block()
    opened = dcir.open(model, inputs)
    history, net = History(), opened.network
    history.note(net, IMPORT, 0, 0)
    history.note(net, 0, 0, 0)
    assert history.snapshots[0].order == history.snapshots[1].order
    first = net.ops()[0]
    net.rewire(first, first.spec, net.ins(first), net.outs(first), made_by="edit")
    history.note(net, 1, 0, 0)
    d = history.difference(2)
    assert [(history.versions[a].label, history.versions[b].made_by) for a, b in d.changed] == [(first.label, "edit")]
    assert not d.added and not d.removed and not d.moved


def test_an_order_that_changes_is_told() -> None:
    model, inputs = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)]), (torch.randn(2, 8),)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.relu(self.parts[0](x)), torch.relu(self.parts[1](x))

    net = dcir.open(Both().eval(), inputs).network
    history = History()
    history.note(net, IMPORT, 0, 0)
    ops = net.ops()
    half = len(ops) // 2
    net.set_order([*ops[half:], *ops[:half]])
    history.note(net, 0, 0, 0)
    d = history.difference(1)
    assert (d.removed, d.added, d.changed) == ((), (), ()) and d.moved == len(ops)


def test_nothing_is_kept_unless_asked_for() -> None:
    torch._dynamo.reset()
    model, inputs = block()
    fast = dcir.optimize(model)
    with torch.no_grad():
        fast(*inputs)
    assert fast.dcir.session.keeper is None


def test_the_same_code_is_made_with_and_without() -> None:
    torch._dynamo.reset()
    model, inputs = block()
    fast = dcir.optimize(model)
    with torch.no_grad():
        fast(*inputs)
    assert kept().record.key == fast.dcir.session.graphs[0].key != ""
