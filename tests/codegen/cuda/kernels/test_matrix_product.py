"""Products of halves on the matrix units: sizes and layouts, what runs before and after, and sums in parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dcir.codegen.cuda.emitters import plan_of
from dcir.ir.refusal import Refusal
from dcir.ops.library.fused_product import FusedProduct
from tests.codegen.cuda.products import (
    activated,
    check_products,
    matrices,
    normalised,
    normalised_and_kept,
    run,
    stored,
    summed,
    turned,
)
from tests.codegen.cuda.running import planned
from tests.codegen.cuda.twin import Twin

SIZES = [(2, 8, 8), (16, 32, 32), (130, 40, 72), (128, 128, 64), (5, 7, 3), (37, 200, 33), (140, 65, 96)]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_sizes(dtype: str, tmp_path: Path) -> None:
    check_products([FusedProduct(s, stored(s)) for s in (matrices(*size, dtype) for size in SIZES)], tmp_path)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("a", "b"), [("rows", "columns"), ("columns", "rows"), ("columns", "columns")])
def test_layouts(a: str, b: str, tmp_path: Path) -> None:
    sizes = [(130, 72, 40), (33, 24, 70), (136, 128, 64)]
    check_products([FusedProduct(s, stored(s)) for s in (matrices(*size, a=a, b=b) for size in sizes)], tmp_path)


def test_rows_with_gaps(tmp_path: Path) -> None:
    s = replace(matrices(20, 24, 40), a=(48, 1))
    plan = planned(spec := FusedProduct(s, stored(s)))
    twin = Twin(plan.launches, tmp_path)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0x3F00, 0x4000, n).astype(np.uint16) for n in (20 * 48, 24 * 40))
    outs, want = np.zeros(20 * 24, np.uint16), np.zeros(20 * 24, np.uint16)
    twin.run(plan, [a, b], [outs])
    spec.reference([a, b], [want])
    assert np.abs(outs.astype(int) - want.astype(int)).max() <= 1


def test_what_follows_is_stored_and_nothing_else(tmp_path: Path) -> None:
    specs = [
        FusedProduct(s, activated(s)) for s in (matrices(*size) for size in ((130, 40, 72), (16, 64, 16), (9, 13, 20)))
    ]
    _, plans = check_products(specs, tmp_path)
    assert all(len(p.launches) == 1 and not p.workspace for p in plans)


def test_sums_of_columns(tmp_path: Path) -> None:
    specs = [
        FusedProduct(s, summed(s))
        for s in (matrices(*size) for size in ((300, 40, 24), (16, 128, 16), (130, 13, 20), (129, 32, 8)))
    ]
    _, plans = check_products(specs, tmp_path)
    assert all(len(p.launches) == 2 for p in plans)


def test_what_is_done_before(tmp_path: Path) -> None:
    """Zeros beyond the edges stay zeros, whatever the prologue makes of them."""
    specs = [
        FusedProduct(s, summed(s), normalised(s))
        for s in (matrices(*size) for size in ((140, 40, 72), (33, 24, 20), (64, 128, 40)))
    ]
    specs += [
        FusedProduct(s, stored(s), turned(s))
        for s in (matrices(*size, a="columns") for size in ((40, 24, 1300), (13, 40, 37)))
    ]
    specs += [FusedProduct(s, activated(s), normalised(s)) for s in (matrices(33, 24, 20),)]
    check_products(specs, tmp_path)


def test_what_is_done_before_is_stored_where_others_want_it(tmp_path: Path) -> None:
    """Once, though blocks of several columns make it."""
    specs = [
        FusedProduct(s, stored(s), normalised_and_kept(s))
        for s in (matrices(*size) for size in ((140, 40, 72), (33, 264, 20)))
    ]
    check_products(specs, tmp_path)


@pytest.mark.in_turn(2)
def test_blocks_share_the_steps_of_few_tiles(tmp_path: Path) -> None:
    """Sums of parts are joined before the tail; as a weight's gradient is, both operands may lie in columns."""
    sizes = [(40, 24, 1300, "columns"), (9, 130, 1024, "rows")]
    specs = [FusedProduct(s, activated(s)) for s in (matrices(m, n, k, a=a) for m, n, k, a in sizes)]
    _, plans = check_products(specs, tmp_path)
    assert [p.launches[0].grid[1] for p in plans] == [2, 2] and all(len(p.launches) == 2 for p in plans)


@pytest.mark.in_turn(2)
def test_orders_of_threads_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = matrices(200, 48, 40)
    plan = planned(spec := FusedProduct(s, summed(s)))
    twin, found = Twin(plan.launches, tmp_path), []
    for order in ("forwards", "backwards", "7"):
        monkeypatch.setenv("DCIR_TWIN_ORDER", order)
        found.append(run(spec, plan, twin, np.random.default_rng(0)))
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize(("spec", "why"), [
    (lambda s: FusedProduct(replace(s, batch=(2,), a=(0, *s.a), b=(0, *s.b), c=(0, *s.c)), stored(s)), "more than a product"),
    (lambda s: FusedProduct(replace(s, a=(16, 2)), stored(s)), "neither rows nor columns"),
    (lambda s: FusedProduct(matrices(8, 8, 8, "f32"), stored(matrices(8, 8, 8, "f32"))), "halves of one type"),
    (lambda s: FusedProduct(s, stored(s), summed(s)), "it sums"),
])  # fmt: skip
def test_refused(spec: object, why: str) -> None:
    refused = plan_of(spec(matrices(8, 8, 8)))  # type: ignore[operator]
    assert isinstance(refused, Refusal) and why in refused.reason
