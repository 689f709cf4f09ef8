"""Operands that are rounded for one product: which products round them themselves, which do not and why, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.transforms.base import PassResult
from dcir.transforms.tier1_operator.widen_products import WidenProducts
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier2_fusion.round_as_packed import RoundAsPacked
from tests.harness import check_close, double, run_cpp, run_interpreted
from tests.transforms.imported import imported

pytestmark = pytest.mark.processor
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def rounded(fn: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> tuple[Network, PassResult]:
    """The pass after those that it needs; what is interpreted and generated against float64 of what eager multiplies."""
    done = imported(fn, x, w)
    net = done.network
    for p in (WidenProducts(), FuseEpilogues(), FuseProducers(), RoundAsPacked()):
        outcome = p.apply(net)
        verify(net)
        net.validate()
    want, exact = fn(x, w), fn(double(x), w.to(x.dtype).double())
    want, exact = (r if isinstance(r, tuple) else (r,) for r in (want, exact))
    for run in (run_interpreted, run_cpp):
        for got, eager, right in zip(run(done, (x, w)), want, exact, strict=True):
            check_close(got, eager, right, factor=1.5)
    assert not RoundAsPacked().apply(net).changed
    return net, outcome


def _linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w.to(x.dtype).t())


def _rounds(net: Network) -> list[str]:
    return [op.spec.rounds for op in net.ops() if op.spec.kind == "contraction"]


@pytest.mark.parametrize("dtype", TYPES)
def test_changed(dtype: str) -> None:
    """Weights of a layer, whole and as a part of a matrix with its columns side by side."""
    for fn in (_linear, lambda x, w: x @ w.t()[:, 3:].to(x.dtype)):
        net, outcome = rounded(fn, rand(300, 70, dtype=TYPES[dtype]), rand(37, 70))
        assert outcome.changed == 1 and _rounds(net) == [dtype]
        assert sum("f32" in getattr(op.spec, "inputs", ()) for op in net.ops()) == 0  # nothing else reads the weights


def test_another_reader_of_the_half_type_keeps_its_copy() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = w.to(x.dtype)
        return x @ half.t(), half

    net, outcome = rounded(fn, rand(300, 70, dtype=torch.bfloat16), rand(37, 70))
    assert outcome.changed == 1
    assert [op.spec.outputs for op in net.ops() if op.spec.kind == "program" and "f32" in op.spec.inputs] == [("bf16",)]


def test_a_product_of_the_half_type_with_itself_keeps_it() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        half = w.to(x.dtype)
        return torch.relu(half @ half.t() + x)

    _, outcome = rounded(fn, rand(300, 300, dtype=torch.bfloat16), rand(300, 70))
    assert not outcome.changed and "others read the rounded operand too" in outcome.refused


def test_unchanged() -> None:
    _, outcome = rounded(lambda x, w: torch.relu(x @ w.t()), rand(300, 7), rand(9, 7))
    assert not outcome.changed and not outcome.refused


def _twice(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    half = w.to(x.dtype).t()
    return torch.relu(x @ half), torch.sigmoid((x * 2) @ half)


REFUSED: dict[str, tuple[Callable[..., Any], int, str]] = {
    "few rows": (_linear, 3, "the product may read its operand where it lies"),
    "computed": (lambda x, w: x @ (w * 2).to(x.dtype).t(), 300, "what is rounded is computed first"),
    "two products": (_twice, 300, "others read the rounded operand too"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, rows, reason = REFUSED[name]
    _, outcome = rounded(fn, rand(rows, 70, dtype=torch.bfloat16), rand(37, 70))
    assert reason in outcome.refused and not outcome.changed


@pytest.mark.parametrize("dtype", TYPES)
def test_digits_that_the_type_lacks_are_gone(dtype: str) -> None:
    """The difference of two weights that are the same number in the half type is nothing."""
    t = TYPES[dtype]
    w = torch.tensor([1 + torch.finfo(t).eps / 4, 1.0]).repeat(16, 1)
    x = torch.tensor([1.0, -1.0], dtype=t).repeat(200, 1)
    done = imported(_linear, x, w)
    for p in (WidenProducts(), FuseEpilogues(), FuseProducers(), RoundAsPacked()):
        p.apply(done.network)
    assert _rounds(done.network) == [dtype]
    for run in (run_interpreted, run_cpp):
        (got,) = run(done, (x, w))
        assert not got.any()
