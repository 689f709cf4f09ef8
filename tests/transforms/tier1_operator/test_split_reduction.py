"""Split reductions: which are split and how, which are left alone, which are refused and why, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dcir.codegen.cpp.kernels.loop_nest import plan_program
from dcir.cost.machine import Machine
from dcir.ir.statements import Load, Store
from dcir.ir.verify import verify
from dcir.isa import ISAS
from dcir.ops.lowering import Lowering, Ref
from dcir.transforms.tier1_operator.split_reduction import SplitReduction
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from tests.harness import run_cpp
from tests.transforms.build import network, reduce
from tests.transforms.imported import imported, same_numbers

MACHINE = Machine(ISAS["avx2"], 2)
SMALL = SplitReduction(min_inner=16, min_rows=16, min_points=64, chunk=20)


def test_changed_sum_of_everything() -> None:
    net = network([(1 << 20,)], lambda c, x: [reduce(c, "sum", x)])
    assert SplitReduction().apply(net).changed == 1
    first, last = net.ops()
    assert first.spec.outer == (64,) and first.spec.inner == (16384,)
    assert last.spec.outer == () and last.spec.inner == (64,)
    assert first.made_by == last.made_by == "split-reduction"
    verify(net)
    net.validate()


def test_changed_columns_have_fewer_jobs_than_results() -> None:
    net = network([(8192, 768)], lambda c, x: [reduce(c, "sum", x, 0)])
    assert SplitReduction().apply(net).changed == 1
    first, last = net.ops()
    assert first.spec.outer == (32, 768) and first.spec.inner == (256,)
    assert last.spec.outer == (768,) and last.spec.inner == (32,)
    assert last.spec.body[0] == Load(0, (1, 768), last.spec.body[0].dtype)


def test_changed_several_loops() -> None:
    def make(c: Lowering, x: Ref) -> list[Ref]:
        k = c.kernel([3], [6, 35])
        v = k.load(x, [35, 105, 1])
        mean = k.body.reduce("sum", v) / 210.0
        for value in (mean, k.body.reduce("max", v) - mean):
            dst = c.new((3,), "f32")
            k.store(dst, value, (1, 0, 0))
            results.append(dst)
        k.done()
        return results

    results: list[Ref] = []
    net = network([(6, 3, 35)], make)
    assert SplitReduction(min_inner=16, min_points=64, chunk=7).apply(net).changed == 1
    first, last = net.ops()
    assert first.spec.outer == (6, 5, 3) and first.spec.inner == (7,) and len(first.spec.outputs) == 2
    assert last.spec.outer == (3,) and last.spec.inner == (6, 5) and len(last.spec.outputs) == 2
    verify(net)


def stored_and_summed(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A value per point that others read too, and its sums: what the gradient of an activation after a norm comes to."""
    d = g * torch.sigmoid(x)
    return d, d.sum((0, 1)) * 2, (d * x).sum((0, 1))


def test_changed_what_is_stored_per_point() -> None:
    torch.manual_seed(0)
    args = torch.randn(6, 70, 48), torch.randn(6, 70, 48)
    fuse = FuseProducers(row_bytes=1 << 20, block_bytes=1 << 20)
    fused, outcome = same_numbers(stored_and_summed, *args, passes=(fuse, SMALL))
    assert fused.changed and outcome.changed == 1
    done = imported(stored_and_summed, *args)
    for step in (fuse, SMALL):
        step.apply(done.network)
    first, last = done.network.ops()
    assert len(first.spec.outputs) == 3 and len(last.spec.outputs) == 2
    assert not any(isinstance(s, Store) and all(s.strides) for s in last.spec.body)
    for got, want in zip(run_cpp(done, list(args)), stored_and_summed(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_numbers_of_wide_rows() -> None:
    """More columns than a job's registers hold, a number of them that no vector divides: jobs take whole rows."""
    torch.manual_seed(0)
    args = torch.randn(8, 400, 150), torch.randn(8, 400, 150)
    done = imported(stored_and_summed, *args)
    FuseProducers().apply(done.network)
    assert SplitReduction().apply(done.network).changed
    first = done.network.ops()[0].spec
    assert first.outer[-1] == 150 and "dcir_width<150>" in "".join(q.code for q in plan_program(first, MACHINE).phases)
    for got, want in zip(run_cpp(done, list(args)), stored_and_summed(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


def test_rows_beside_each_other_are_split_earlier() -> None:
    assert SplitReduction().apply(network([(512, 768)], lambda c, x: [reduce(c, "sum", x, 0)])).changed == 1
    assert not SplitReduction().apply(network([(32, 768, 16)], lambda c, x: [reduce(c, "sum", x, 2)])).changed


def test_unchanged() -> None:
    for shape in ((100, 16), (1 << 17, 4)):
        outcome = SplitReduction().apply(network([shape], lambda c, x: [reduce(c, "sum", x)]))
        assert not outcome.changed and not outcome.refused


REFUSED: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], Any]]] = {
    "it has enough results for all threads": ((100, 32), lambda x: x.sum(-1)),
    "the first position of a largest value has to be found in order": ((3, 64), lambda x: x.argmax(-1)),
    "a later stage goes over the inner loops again": ((3, 64), lambda x: torch.softmax(x, -1)),
    "the inner loops have no divisor near the chunk": ((3, 61), lambda x: x.sum(-1)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused(reason: str) -> None:
    shape, fn = REFUSED[reason]
    outcome = SMALL.apply(imported(fn, torch.randn(shape)).network)
    assert not outcome.changed and outcome.refused[reason] == 1


def several(x: torch.Tensor, h: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Reductions of all kinds, with something before and after."""
    return (
        x.exp().sum((0, 2)) * 2 + 1,
        x.mean(),
        x.amax((0, 1)),
        x.amin(),
        x.sum(1) + h.float().sum(1)[:, :1],
        h.sum(),
        (x > 2.9).any(),
        (n > 0).all(0),
        n.sum(),
        torch.prod(x.tanh() + 1, 2),
        torch.linalg.vector_norm(x),
    )


def inputs() -> list[torch.Tensor]:
    """Arguments of ``several``."""
    torch.manual_seed(1)
    return [torch.randn(4, 24, 50), torch.randn(4, 24, 50).bfloat16(), torch.randint(-5, 90, (120, 3))]


def test_numbers() -> None:
    (outcome,) = same_numbers(several, *inputs(), passes=(SMALL,))
    assert outcome.changed >= 8


def test_numbers_of_generated_code() -> None:
    done = imported(several, *inputs())
    SMALL.apply(done.network)
    for got, want in zip(run_cpp(done, inputs()), several(*inputs()), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2 if want.dtype == torch.bfloat16 else 1e-4, atol=1e-4)
