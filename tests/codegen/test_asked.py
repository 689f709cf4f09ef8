"""Schedules that are asked for: every kernel's own gives the same text again, another one another text, an impossible one is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dcir.codegen.choices import MODELS
from dcir.codegen.cpp.emitters import EMITTERS
from dcir.cost.machine import Machine
from dcir.errors import InvalidSchedule
from dcir.ir.loop_nest import LoopNest
from dcir.ir.operator import Operator
from dcir.ir.schedule import COLLAPSED, PLAIN, Schedule
from dcir.isa import ISAS
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import panel_width
from dcir.ops.library.sort import SortSpec
from tests.codegen.test_schedule import pointwise, softmax, total

MACHINES = {f"{isa}-{threads}": Machine(ISAS[isa], threads) for isa in ("avx2", "avx512", "amx") for threads in (1, 3)}


def product(m: int, n: int, k: int, *batch: int, panel: int = 0, columns: bool = False) -> ContractionSpec:
    """Rows times rows, or times columns that lie along k, or times panels."""
    a, b, c = torch.empty(*batch, m, k), torch.empty(*batch, k, n), torch.empty(*batch, m, n)
    strides = torch.empty(*batch, n, k).mT.stride() if columns else b.stride()
    if panel:
        strides = (0,) * (len(batch) + 2)
    return ContractionSpec(alike("f32"), batch, m, n, k, a.stride(), strides, c.stride(), panel)


def convolution(
    kind: str,
    n: int,
    cin: int,
    cout: int,
    size: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    *,
    last: bool = False,
) -> ConvolutionSpec:
    out = (size - 1) // stride + 1
    form = torch.channels_last if last else torch.contiguous_format
    x = torch.empty(n, groups * cin, size, size).to(memory_format=form).stride()
    y = torch.empty(n, groups * cout, out, out).to(memory_format=form).stride()
    w = torch.empty(groups * cout, cin, kernel, kernel).stride()
    low = (kernel // 2,) * 2
    return ConvolutionSpec(
        kind,
        alike("f32"),
        n,
        groups,
        cin,
        cout,
        (size, size),
        (kernel,) * 2,
        (out, out),
        (stride,) * 2,
        low,
        (1, 1),
        x,
        w,
        y,
        False,
    )


def specs(machine: Machine) -> dict[str, Operator]:
    """Operators whose kernels have many forms."""
    panel = panel_width("f32", machine.isa)
    found: dict[str, Operator] = {
        "pointwise": pointwise(600, 400, 2), "one row": pointwise(1, 1 << 17), "softmax": softmax(700, 90), "rows": total(500, 700),
        "columns": total(500, 700, across=True), "long columns": total(5000, 3000, across=True), "largest": total(70, 900, "argmax"),
        "product": product(130, 770, 1800), "rows of columns": product(6, 512, 4096, columns=True), "batch": product(40, 50, 64, 12),
        "many": product(1300, 600, 500), "column": product(700, 1, 300), "swapped": product(4, 900, 30, columns=True),
        "packed": product(70, 330, 801, panel=panel), "deep": product(300, 700, 9000, panel=panel),
        "few": product(2, 700, 900, panel=panel),
    }  # fmt: skip
    for kind in ("forward", "backward_data", "backward_weight"):
        found |= {
            f"{kind} planes": convolution(kind, 2, 24, 40, 28, 3), f"{kind} last": convolution(kind, 2, 64, 64, 28, 3, last=True),
            f"{kind} strided": convolution(kind, 2, 16, 32, 29, 3, 2), f"{kind} point": convolution(kind, 2, 64, 96, 14, 1, last=True),
            f"{kind} groups": convolution(kind, 1, 16, 16, 14, 3, groups=4, last=True),
            f"{kind} depthwise": convolution(kind, 1, 1, 1, 14, 3, groups=32, last=True),
        }  # fmt: skip
    return found


def planned(spec: Operator, machine: Machine, schedule: Schedule | None = None) -> Any:
    return EMITTERS.plan(spec, machine, MODELS, schedule)


@pytest.mark.parametrize("name", list(specs(MACHINES["avx2-1"])))
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_kernels_own_schedule_makes_it_again(machine: Machine, name: str) -> None:
    spec = specs(machine)[name]
    plan = planned(spec, machine)
    assert plan.schedule is not None and plan.schedule.method and str(plan.schedule)
    assert planned(spec, machine, plan.schedule) == plan


WISHES: dict[str, tuple[Operator, Schedule]] = {
    "one job": (product(130, 770, 1800), Schedule.of(parallel={})),
    "tile": (product(130, 770, 1800), Schedule.of(method="tiles", registers={"m": 3, "n": 16})),
    "blocks": (product(130, 770, 1800), Schedule.of(method="tiles", tiles={"k": 200, "n": 96})),
    "nothing packed": (product(130, 768, 1800), Schedule.of(method="tiles", packed=[])),
    "panels first": (product(130, 770, 1800), Schedule.of(method="packing", parallel={"n": 3}, registers={"m": 4, "n": 16})),
    "sweeps": (product(130, 770, 1800), Schedule.of(method="packing", tiles={"k": 300, "m": 24})),
    "deep blocks": (product(130, 770, 1800), Schedule.of(method="packing", order=["k"], tiles={"k": 600})),
    "copied rows": (product(130, 770, 1800), Schedule.of(method="packing", tiles={"m": 24}, packed=["B"], near=["A"])),
    "dots": (product(6, 512, 4096, columns=True), Schedule.of(method="dot", registers={"m": 2, "n": 3}, parallel={"n": 2})),
    "a loop nest": (product(130, 770, 180), Schedule.of(method="loops", vector="")),
    "rows on one thread": (pointwise(600, 400), Schedule.of(parallel={})),
    "no vector": (pointwise(600, 400), Schedule.of(vector="")),
    "tiles of a row": (pointwise(1, 1 << 17), Schedule.of(parallel={"i0": 8}, tiles={"i0": 1 << 14})),
    "lanes": (total(500, 700), Schedule.of(registers={"i1": 16})),
    "lanes of vectors": (total(500, 700), Schedule.of(registers={"i1": 128})),
    "columns in lanes": (total(500, 700), Schedule.of(vector="i0")),
    "no lanes": (total(500, 700), Schedule.of(vector="", tiles={"i1": 50})),
    "nothing near": (softmax(700, 90), Schedule.of(near=[])),
    "pixels": (convolution("forward", 2, 24, 40, 28, 3), Schedule.of(method="direct", registers={"w": 4, "co": 16}, tiles={"h": 7})),
    "channels": (convolution("forward", 2, 24, 40, 28, 3), Schedule.of(method="direct", tiles={"ci": 8}, parallel={"n": 2, "co": 2})),
    "regions": (convolution("forward", 2, 64, 64, 28, 3, last=True), Schedule.of(method="nhwc", tiles={"h": 4})),
    "shares": (convolution("forward", 2, 64, 64, 28, 3, last=True), Schedule.of(method="nhwc", parallel={"pixels": 2, "co": 2})),
}  # fmt: skip


@pytest.mark.parametrize("name", WISHES)
def test_what_is_asked_for_is_in_the_text(name: str) -> None:
    spec, wish = WISHES[name]
    machine = Machine(ISAS["avx2"], 3)
    plan, other = planned(spec, machine), planned(spec, machine, wish)
    assert wish.missed(plan.schedule) and not wish.missed(other.schedule)
    assert plan != other
    # What came out is a schedule of its own, too.
    assert planned(spec, machine, other.schedule) == other


def test_loops_in_another_order() -> None:
    nest = product(20, 30, 40, 5).loop_nest()
    machine = Machine(ISAS["avx2"], 1)
    made = planned(nest, machine, Schedule.of(method="loops", order=["i2", "i1"], vector=""))
    assert made.schedule.order == ("i2", "i1", "i0", "i3") and [n for _, n in made.schedule.loops] == [30, 20, 5, 40]
    code = made.phases[0].code
    assert code.index("< 30;") < code.index("< 20;") < code.index("< 5;") < code.index("< 40;")


def test_plain_loops_have_nothing_but_loops() -> None:
    for spec in (product(20, 30, 400), convolution("forward", 2, 8, 4, 9, 3), softmax(70, 90), pointwise(600, 400, 2)):
        plan = planned(spec, Machine(ISAS["avx512"], 4), PLAIN)
        text = plan.globals + "".join(p.code for p in plan.phases)
        assert [p.jobs for p in plan.phases] == [1]
        assert "#pragma" not in text and "dcir_tile" not in text and "[64]" not in text


SORT = SortSpec("f32", (8,), 30, 30, False, (30, 1), (30, 1), (30, 1))
IMPOSSIBLE: dict[str, tuple[Callable[[], Operator], Schedule, str]] = {
    "registers": (lambda: product(130, 770, 1800), Schedule.of(method="tiles", registers={"m": 9, "n": 16}), "of 16 registers"),
    "half a vector": (lambda: product(130, 770, 1800), Schedule.of(method="tiles", registers={"m": 2, "n": 12}), "whole vectors"),
    "loops of a tile": (lambda: product(130, 770, 1800), Schedule.of(registers={"k": 2}), "made of m and n"),
    "jobs": (lambda: product(13, 770, 1800), Schedule.of(method="tiles", parallel={"m": 100}), "cannot be dealt to 100 jobs"),
    "method": (lambda: product(130, 770, 1800), Schedule.of(method="dot"), "more than 16 rows"),
    "no method": (lambda: product(130, 770, 1800), Schedule.of(method="magic"), "no such method"),
    "near memory": (lambda: product(130, 770, 90000), Schedule.of(method="tiles", tiles={"n": 96}), "near memory"),
    "packed": (lambda: product(130, 770, 1800), Schedule.of(method="tiles", packed=[]), "no whole vectors"),
    "half a panel": (lambda: product(130, 770, 1800), Schedule.of(method="packing", registers={"m": 2, "n": 24}), "no part of a panel"),
    "unknown loop": (lambda: pointwise(600, 400), Schedule.of(order=["i7"]), "no loop"),
    "inner loops first": (lambda: total(500, 700), Schedule.of(method="loops", order=["i1", "i0"]), "cannot run inside"),
    "inner loops dealt": (lambda: total(500, 700), Schedule.of(parallel={"i1": 700}), "cannot be dealt to jobs"),
    "parts of rows": (lambda: total(50000, 700), Schedule.of(parallel={"i0": 4}), "point by point"),
    "vector": (lambda: product(20, 30, 40, 5).loop_nest(), Schedule.of(method="loops", vector="i0"), "cannot be the vector loop"),
    "lanes": (lambda: total(500, 700), Schedule.of(registers={"i1": 5}), "partial results"),
    "an inner loop alone": (lambda: total(500, 700), Schedule.of(order=["i1"]), "cannot run inside"),
    "near": (lambda: softmax(700, 90), Schedule.of(near=["v0", "x"]), "cannot wait in near memory"),
    "what it does not have": (lambda: pointwise(600, 400), Schedule.of(packed=["A"]), "cannot have packed"),
    "channels": (lambda: convolution("forward", 2, 24, 40, 28, 3), Schedule.of(method="direct", parallel={"co": 50}), "50 jobs"),
    "pixels": (lambda: convolution("forward", 2, 24, 40, 28, 3), Schedule.of(method="direct", registers={"w": 40, "co": 8}), "registers"),
    "other convolution": (lambda: convolution("forward", 2, 24, 40, 28, 3), Schedule.of(method="grouped"), "method 'grouped'"),
    "one form": (lambda: SORT, Schedule.of(parallel={}), "takes no schedule"),
    "no loop nest": (lambda: SORT, PLAIN, "equal to no loop nest"),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_is_refused(name: str) -> None:
    make, wish, what = IMPOSSIBLE[name]
    with pytest.raises(InvalidSchedule, match=what) as refused:
        planned(make(), Machine(ISAS["avx2"], 2), wish)
    assert refused.value.hint


def test_nothing_is_asked_after_a_plan() -> None:
    spec, machine = product(130, 770, 1800), Machine(ISAS["avx2"], 2)
    with pytest.raises(InvalidSchedule):
        planned(spec, machine, Schedule(method="magic"))
    assert planned(spec, machine) == planned(spec, machine, Schedule())
    assert isinstance(spec.loop_nest(), LoopNest) and planned(spec.loop_nest(), machine).schedule.method == COLLAPSED
