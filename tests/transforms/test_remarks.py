"""Remarks of passes and switches of their places: what is told, under what name, at what cost, and what is done where a place is off."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn import functional as F

import dcir
from dcir.ir.network import Network
from dcir.ir.remarks import Remark, RewriteLog
from dcir.ir.sites import site_text
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.dace_transformation import DaceTransformation
from dcir.transforms.pipelines import PASSES, pipeline
from dcir.transforms.rule import Rule
from dcir.transforms.runner import PassRecord, run_passes
from dcir.transforms.tidy.run_in_order import RunInOrder
from dcir.transforms.tier1_operator.expand_loops import ExpandLoops
from dcir.transforms.tier1_operator.hoist_invariants import HoistInvariants
from dcir.transforms.tier1_operator.set_schedules import SetSchedules
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from tests.bodies import body, graph, loop, tensor
from tests.harness import run_interpreted
from tests.transforms.build import binary, network, reduce, unary
from tests.transforms.imported import imported

NO_PLACES = {
    "prepare-static": "what depends on parameters alone runs before the calls, or none of it does",
    "order-execution": "it chooses one order of all operators",
    "reuse-saved-tensors": "it is one plan of where values lie; nothing is rewritten",
    "reuse-result-buffers": "likewise",
    "plan-arena": "likewise",
    "set-schedules": "the user names its operators already",
}
"""Passes that ask for no place, and why."""


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def convolutions(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> Any:
    h = F.relu(F.batch_norm(F.conv2d(x, w, b, padding=1), b, b.abs() + 0.5, b * 2, b + 1))
    h = F.relu(F.conv2d(h, v) + h)
    return F.max_pool2d(h, 2), h.mean((2, 3)) * 1.0


def attention(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
    q, k, u = (x @ w).chunk(3, -1)
    mixed = torch.softmax(q @ k.transpose(-1, -2) * 0.3, -1) @ u
    h = F.layer_norm(x + mixed, (16,))
    return F.gelu(h @ v) + torch.zeros_like(h), h.sum(-1), (x @ w).exp()


def reductions(x: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> Any:
    table = rows.index_add(0, index, (x * 2).exp()[: len(index)])
    return torch.cat([x.sin() * 2, x.sin() + 1], 1), (x.double() ** 2).sum(), table.abs().mean(0)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "convolutions": (convolutions, (rand(2, 16, 12, 12), rand(16, 16, 3, 3), rand(16, 16, 1, 1), rand(16))),
    "attention": (attention, (rand(2, 8, 16), rand(16, 48), rand(16, 16))),
    "reductions": (reductions, (rand(600, 300), torch.arange(40) % 7, rand(9, 300))),
}


def remarks_of(records: Sequence[PassRecord], kind: str = "passed") -> list[Remark]:
    return [r for record in records for r in record.remarks if r.kind == kind]


def chain() -> Network:
    """abs, neg, exp, and a sum of each row."""
    return network([(40, 8)], lambda c, x: [reduce(c, "sum", unary(c, "exp", unary(c, "neg", unary(c, "abs", x))))])


@dataclass(frozen=True)
class Counts(Pass):
    """Of another package: it counts, and tells no place."""

    def apply(self, net: Network) -> PassResult:
        outcome = PassResult(changed=2)
        outcome.missed("it is no use")
        return outcome


# ---------------------------------------------------------------------- what is told
@pytest.mark.parametrize("name", FUNCTIONS)
def test_remarks_add_up_to_what_passes_count(name: str) -> None:
    fn, inputs = FUNCTIONS[name]
    done, plain = imported(fn, *inputs), imported(fn, *inputs)
    records = run_passes(done.network, pipeline(4), remarks=True)
    silent = run_passes(plain.network, pipeline(4))
    assert sum(r.changed for r in records) > 5
    for number, (record, other) in enumerate(zip(records, silent, strict=True)):
        passed = [r for r in record.remarks if r.kind == "passed"]
        assert sum(r.count for r in passed) == record.changed == other.changed, record.name
        missed: dict[str, int] = {}
        for r in record.remarks:
            assert (r.by, r.index) == (record.name, number)
            if r.kind == "missed":
                missed[r.reason] = missed.get(r.reason, 0) + r.count
        assert missed == record.refused == other.refused, record.name
        assert all(r.site or r.reason or record.name in NO_PLACES for r in passed), record.name
        assert not other.remarks
    # Who watches changes nothing.
    assert [(op.label, op.spec) for op in done.network.ops()] == [(op.label, op.spec) for op in plain.network.ops()]


def test_a_blocked_fusion_names_both_operators_and_why() -> None:
    def shared(x: torch.Tensor, w: torch.Tensor, z: torch.Tensor) -> Any:
        u = z.exp()
        return x @ w + u, u

    net = imported(shared, rand(8, 6), rand(6, 10), rand(8, 10)).network
    before = {op.label: op for op in net.ops()}
    (record,) = run_passes(net, (FuseEpilogues(),), remarks=True)
    (told,) = [r for r in record.remarks if r.kind == "missed"]
    assert told.reason == "an operand has other readers" and record.refused == {told.reason: 1}
    product, exp = told.ops
    assert product.what.startswith("product") and "exp" in exp.what and exp.label in before
    imported_product = next(label for label, op in before.items() if op.spec.kind == "contraction")
    assert {imported_product, exp.label} <= set(told.site.partition("@")[2].split("+"))
    assert told.figures["bytes"] == sum(net.moved_by(op) for op in net.ops())


def test_figures_are_those_of_the_operators() -> None:
    net = network([(4, 6)], lambda c, x: [unary(c, "exp", unary(c, "neg", x))])
    before = net.bytes_moved()
    (record,) = run_passes(net, (FuseProducers(),), remarks=True)
    (told,) = record.remarks
    assert told.figures == {"bytes": before, "flops": 2 * 24, "bytes_saved": before - net.bytes_moved()}
    assert [o.label for o in told.made] == [op.label for op in net.ops()]
    assert told.to_json()["args"] == told.figures and told.to_json()["pass"] == "fuse-producers"


def test_what_a_pass_only_counts_has_a_remark_without_a_place() -> None:
    (record,) = run_passes(chain(), (Counts(),), remarks=True)
    assert [(r.kind, r.reason, r.count, r.site) for r in record.remarks] == [
        ("passed", "", 2, ""), ("missed", "it is no use", 1, ""),
    ]  # fmt: skip
    (record,) = run_passes(chain(), (Counts(),))
    assert (record.changed, record.refused, record.remarks) == (2, {"it is no use": 1}, [])


def test_unless_asked_no_name_is_made() -> None:
    fn, inputs = FUNCTIONS["attention"]
    net = imported(fn, *inputs).network
    with (
        mock.patch.object(RewriteLog, "_seen", side_effect=AssertionError),
        mock.patch.object(RewriteLog, "__init__", side_effect=AssertionError),
    ):
        records = run_passes(net, pipeline(4))
    assert not remarks_of(records) and net.rewrites is None


def test_switches_alone_describe_nothing() -> None:
    with mock.patch.object(RewriteLog, "_name", side_effect=AssertionError):
        records = run_passes(chain(), pipeline(4), skip=["fuse-producers@nothing_1"])
    assert not remarks_of(records) and any(r.changed for r in records)


# ---------------------------------------------------------------------- names of places
def test_what_passes_made_is_named_by_what_it_was_made_of() -> None:
    net = chain()
    labels = sorted(op.label for op in net.ops())
    records = run_passes(net, (FuseProducers(),), remarks=True)
    *_, last = remarks_of(records)
    assert last.site == f"fuse-producers@{'+'.join(labels)}" and len(labels) == 4
    assert any(o.label not in labels for o in last.ops)


def test_a_place_keeps_its_name_when_another_one_is_off() -> None:
    def twice(c: Any, x: Any, y: Any) -> list[Any]:
        return [unary(c, "exp", unary(c, "neg", x)), unary(c, "sin", unary(c, "abs", y))]

    first, second = remarks_of(run_passes(network([(4, 8), (5, 7)], twice), (FuseProducers(),), remarks=True))
    net = network([(4, 8), (5, 7)], twice)
    (record,) = run_passes(net, (FuseProducers(),), remarks=True, skip=[first.site])
    (left,) = remarks_of([record])
    assert left.site == second.site != first.site
    # Containers and operators are numbered as they are made, so labels of what passes make are others.
    assert left.made[0].label != second.made[0].label and left.made[0].what == second.made[0].what
    assert (
        run_passes(network([(4, 8), (5, 7)], twice), (FuseProducers(),), skip=[first.site, second.site])[0].changed == 0
    )


def test_places_in_bodies_say_where_the_body_is() -> None:
    cells = [tensor(4), tensor(4)]

    def cell(c: Any, h: Any, w: Any) -> list[Any]:
        return [binary(c, "add", unary(c, "exp", unary(c, "neg", h)), unary(c, "abs", w))]

    def made() -> Network:
        inner = body(cells, cell, fixed=1)
        return graph(cells, lambda c, h, w: [unary(c, "neg", loop(c, inner, 3, [h], [], [w])[0])])

    net = made()
    (label,) = [op.label for op in net.ops() if op.spec.bodies()]
    passes = (HoistInvariants(), FuseProducers())
    records = run_passes(net, passes, remarks=True)
    hoisted, *fused = remarks_of(records)
    assert hoisted.site == f"hoist-invariants@{label}" and fused
    assert all(r.site.startswith(f"fuse-producers@{label}.0/") for r in fused)
    assert [sum(r.count for r in remarks_of([record])) for record in records] == [r.changed for r in records]
    off = run_passes(made(), passes, skip=[fused[0].site, hoisted.site])
    assert off[0].changed == 0 and off[1].skipped == [fused[0].site]


@pytest.mark.parametrize("name", ["convolutions", "attention"])
def test_places_are_the_same_in_every_process(name: str) -> None:
    code = (
        "from tests.transforms.test_remarks import FUNCTIONS, imported, pipeline, remarks_of, run_passes\n"
        f"fn, inputs = FUNCTIONS[{name!r}]\n"
        "records = run_passes(imported(fn, *inputs).network, pipeline(4), remarks=True)\n"
        "print(*[r.site for kind in ('passed', 'missed') for r in remarks_of(records, kind)], sep='\\n')\n"
    )
    root = str(Path(dcir.__file__).parents[1])
    texts = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
        run = subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True, check=True
        )
        texts.append(run.stdout)
    assert texts[0] == texts[1] and len(texts[0].splitlines()) > 12


# ---------------------------------------------------------------------- switches
def asks(p: Pass) -> bool:
    source = inspect.getsource(sys.modules[type(p).__module__])
    return isinstance(p, Rule) or ".allows(" in source or ".allowed(" in source


def test_every_pass_asks_or_says_why_not() -> None:
    others = (RunInOrder(), ExpandLoops(), SetSchedules(), DaceTransformation())
    found = {p.name: asks(p) for p in (*PASSES, *others)}
    assert {name for name, asked in found.items() if not asked} == set(NO_PLACES)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_place_can_be_switched_off(name: str) -> None:
    """Pass by pass: nothing is rewritten where the pass may not, it says so, and the numbers stay."""
    fn, inputs = FUNCTIONS[name]
    want = run_interpreted(imported(fn, *inputs), inputs)
    sites: dict[str, list[str]] = {}
    for r in remarks_of(run_passes(imported(fn, *inputs).network, pipeline(4), remarks=True)):
        if r.site and not r.reason.startswith("nobody reads"):
            sites.setdefault(r.by, []).append(r.site)
    assert len(sites) >= 4
    for by, places in sites.items():
        done = imported(fn, *inputs)
        records = run_passes(done.network, pipeline(4), remarks=True, skip=places)
        told = remarks_of(records, "missed")
        off = {r.site for r in told if r.reason == "switched off by the user"}
        # The first of them comes up in any case; what comes after may depend on it.
        assert places[0] in off and off <= set(places), by
        assert {site for r in records for site in r.skipped} == off
        left = [r.site for r in remarks_of(records) if r.by == by and not r.reason.startswith("nobody reads")]
        assert not set(left) & set(places), by
        for got, expected in zip(run_interpreted(done, inputs), want, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_place_that_nobody_asks_about_is_not_among_those_that_came_up() -> None:
    records = run_passes(chain(), (FuseProducers(),), skip=[site_text("fuse-producers", "program_99")])
    assert not any(r.skipped for r in records) and records[0].changed
