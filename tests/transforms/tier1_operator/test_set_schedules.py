"""Schedules that a user sets: by pattern, refused where the kernel cannot have them, in the text and in the report, and the numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import dcir
from dcir.driver.targets.host import host_machine
from dcir.errors import InvalidSchedule, OptionError
from dcir.ir.schedule import Schedule
from dcir.transforms.pipelines import pipeline
from dcir.transforms.runner import run_passes
from dcir.transforms.tier1_operator.set_schedules import SetSchedules, with_schedules
from tests.harness import check_close, double
from tests.transforms.imported import imported

pytestmark = pytest.mark.processor

ONE = Schedule.of(parallel={})


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w)


def test_changed_what_a_pattern_names() -> None:
    net = imported(two, rand(4, 6), rand(6, 5)).network
    first, last = net.ops()
    for pattern in ("contraction", "product m4 *", first.label, "product m? n5 k6"):
        first.own_schedule = None
        assert SetSchedules(((pattern, ONE),)).apply(net).changed == 1
        assert first.own_schedule == ONE and last.own_schedule is None
    assert SetSchedules((("contraction", ONE),)).apply(net).changed == 0


def test_the_first_pattern_that_fits_counts() -> None:
    net = imported(two, rand(4, 6), rand(6, 5)).network
    other = Schedule.of(vector="")
    assert SetSchedules((("contraction", ONE), ("*", other))).apply(net).changed == 2
    assert [op.own_schedule for op in net.ops()] == [ONE, other]


def test_what_fits_nothing_is_told() -> None:
    net = imported(two, rand(4, 6), rand(6, 5)).network
    outcome = SetSchedules((("convolution*", ONE),)).apply(net)
    assert outcome.changed == 0 and dict(outcome.refused) == {"no operator fits 'convolution*'": 1}


def test_what_is_no_schedule_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="no schedule"):
        SetSchedules((("contraction", {"parallel": 2}),))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="schedule"):
        dcir.optimize(two, schedule=3)
    with pytest.raises(OptionError, match="not implemented yet"):
        dcir.optimize(two, schedule={"*": ONE}, target="dace")


def test_it_comes_behind_what_rewrites() -> None:
    passes = with_schedules(pipeline(4), [("*", ONE)])
    at = passes.index(SetSchedules((("*", ONE),)))
    assert not any(p.final for p in passes[:at]) and all(p.final for p in passes[at + 1 :])
    net = imported(two, rand(4, 6), rand(6, 5)).network
    run_passes(net, passes)
    assert {op.own_schedule for op in net.ops()} == {ONE}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(16, 32, 3, padding=1), nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 96), nn.Linear(96, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.conv(x)).mean(2).transpose(1, 2)
        return self.down(torch.sigmoid(self.up(self.norm(h))))


LANES = host_machine().isa.vector_bytes // 4
PANELS = Schedule.of(registers={"m": 3, "n": 16}, tiles={"k": 16, "m": 9})
SCHEDULES: dict[str, tuple[int, dict[str, Schedule]]] = {
    "vectors at level 0": (0, {"*": Schedule.of(method="loops", parallel={})}),
    "loop nests of products": (0, {"contraction": Schedule.of(method="loops", order=["i1"])}),
    "tiles": (0, {"contraction": Schedule.of(method="tiles", registers={"m": 2, "n": 16}, tiles={"k": 20, "n": 32})}),
    "panels": (0, {"contraction": replace(PANELS, method="packing")}),
    "direct": (
        0,
        {"convolution *": Schedule.of(method="direct", registers={"w": 3, "co": 16}, tiles={"h": 3, "ci": 9})},
    ),
    "one job": (1, {"loops *": ONE, "contraction": ONE}),
    "scalars": (1, {"loops *": Schedule.of(vector="")}),
    "packed before": (1, {"contraction": PANELS}),
    "pixels": (
        1,
        {"convolution *": Schedule.of(registers={"w": 3, "co": min(16, 2 * LANES)})},
    ),
    "whole rows": (4, {"loops *": Schedule.of(near=[]), "contraction": replace(PANELS, order=("k",))}),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_numbers(name: str) -> None:
    torch.manual_seed(0)
    network = Network().eval()
    level, mine = SCHEDULES[name]
    x = rand(2, 16, 20, 20)
    report = explained(network, x, level=level, schedule=mine)
    (record,) = (p for p in report.graphs[0].passes if p.name == "set-schedules")
    assert record.changed and not record.refused
    assert sorted(report.graphs[0].schedules) != sorted(explained(network, x, level=level).graphs[0].schedules)


def explained(network: nn.Module, x: torch.Tensor, **options: Any) -> Any:
    """The report of a network whose results are right."""
    torch._dynamo.reset()
    fast = dcir.optimize(network, strict=True, **options)
    exact = Network().double()
    exact.load_state_dict({k: v.double() for k, v in network.state_dict().items()})
    with torch.no_grad():
        check_close(fast(x), network(x), exact(*double((x,))), what=str(options))
    return fast.dcir.explain()


def test_the_report_has_every_kernels_schedule() -> None:
    network, x = Network().eval(), rand(2, 16, 20, 20)
    report = explained(network, x, schedule={"contraction": Schedule.of(method="vector", parallel={})})
    found = {what.split(" ")[0]: schedule for what, schedule, _ in report.graphs[0].schedules}
    assert found["product"].startswith("vector: m 40 n ") and "parallel" not in found["product"]
    assert all(schedule in report.to_text() for schedule in found.values())


def test_an_error_says_where() -> None:
    torch._dynamo.reset()
    fast = dcir.optimize(Network().eval(), schedule={"contraction": Schedule.of(registers={"m": 100, "n": 16})})
    with torch.no_grad(), pytest.raises(InvalidSchedule, match="registers") as refused:
        fast(rand(2, 16, 20, 20))
    assert "contraction" in str(refused.value.where) and refused.value.hint


def test_explain_says_what_runs_once() -> None:
    """Kernels that prepare weights are no part of a call."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    fast = dcir.optimize(model)
    with torch.no_grad():
        fast(torch.randn(32, 64))
    lines = str(fast.dcir.explain()).splitlines()
    first = lines.index("  kernels run as (once: when parameters change):") + 1
    counts = [line.split()[0] for line in lines[first:] if line.startswith("      ")]
    assert "once" in counts and any(c.isdigit() for c in counts)
