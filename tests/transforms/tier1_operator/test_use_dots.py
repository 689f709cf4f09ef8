"""Products of bf16 in pairs: which are marked, which are not and why, and the numbers of a layer, of training and of rounded weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.isa import ISAS, host_isa
from dcir.transforms.base import PassResult
from dcir.transforms.pipelines import pipeline
from dcir.transforms.tier1_operator.pack_weights import PackWeights
from dcir.transforms.tier1_operator.use_dots import UseDots
from dcir.transforms.tier1_operator.widen_products import WidenProducts
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier2_fusion.round_as_packed import RoundAsPacked
from tests.harness import check_close, double, run_cpp, run_interpreted
from tests.on_host import target
from tests.transforms.imported import imported

pytestmark = pytest.mark.processor
BF16 = torch.bfloat16


def rand(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def marked(fn: Callable[..., Any], *args: torch.Tensor, weights: int = 0) -> tuple[Network, PassResult]:
    """The pass between those around it, the last ``weights`` arguments static; what is interpreted, and generated where the processor
    can, against float64."""
    done = imported(fn, *args)
    net = done.network
    net.target = target(isa="avx512bf16")
    net.static |= set(net.inputs[len(args) - weights :])
    for p in (WidenProducts(), FuseEpilogues(), FuseProducers()):
        p.apply(net)
    outcome = UseDots().apply(net)
    for p in (PackWeights(), RoundAsPacked()):
        p.apply(net)
        verify(net)
        net.validate()
    assert not UseDots().apply(net).changed
    want, exact = fn(*args), fn(*map(double, args))
    for run in (run_interpreted, run_cpp) if host_isa().dots else (run_interpreted,):
        (got,) = run(done, args)
        check_close(got, want, exact, factor=1.5)
    return net, outcome


def _products(net: Network) -> list[Any]:
    return [op.spec for op in net.ops() if op.spec.kind == "contraction"]


def test_products_of_two_inputs() -> None:
    net, outcome = marked(lambda x, w: torch.relu(x @ w.t()), rand(100, 70), rand(65, 70))
    assert outcome.changed == 1 and [(s.dots, s.panel) for s in _products(net)] == [(True, 0)]


def test_products_of_products() -> None:
    """A result that is rounded as it is stored, and is read again; batches."""
    net, outcome = marked(lambda x, y, z: (x @ y).relu() @ z, rand(3, 100, 70), rand(3, 70, 90), rand(3, 90, 64))
    assert outcome.changed == 2 and all(s.dots for s in _products(net))


def test_weights_that_a_product_rounds() -> None:
    """f32 weights of a product under autocast are rounded as they are packed, with an epilogue or without."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w.to(x.dtype).t()

    done = imported(fn, rand(300, 70), rand(64, 70, dtype=torch.float32))
    net = done.network
    net.target = target(isa="avx512bf16")
    for p in (WidenProducts(), FuseEpilogues(), FuseProducers(), UseDots(), RoundAsPacked()):
        p.apply(net)
    assert [(s.dots, s.rounds) for s in _products(net)] == [(True, "bf16")]
    verify(net)


def test_packed_weights() -> None:
    """Static weights lie in panels of pairs, for one row, too; an odd number of steps."""
    net, outcome = marked(lambda x, w: x @ w.t(), rand(1, 71), rand(40, 71), weights=1)
    (spec,) = _products(net)
    assert outcome.changed == 1 and spec.dots and spec.panel and spec.stored == "bf16"
    packed = next(net.ins(op)[1] for op in net.ops() if op.spec == spec)
    assert net.containers[packed.data].shape[-3:] == (36, spec.panel, 2)


def test_copies_hold_what_they_are_copied_from() -> None:
    _, outcome = marked(lambda x, y: torch.cat([x, x]) @ y, rand(64, 80), rand(80, 70))
    assert outcome.changed == 1


UNMARKED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], str | None]] = {
    "f32": (lambda x, y: x @ y, (rand(64, 64, dtype=torch.float32),) * 2, None),
    "f16": (lambda x, y: x @ y, (rand(64, 64, dtype=torch.float16),) * 2, None),
    "computed in f32": (lambda x, y: (x.float() * 3).exp() @ y.float(), (rand(64, 64),) * 2, None),
    "one of f32": (lambda x, y: x.to(y.dtype) @ y, (rand(64, 64), rand(64, 64, dtype=torch.float32)), None),
    "small": (
        lambda x, y: x @ y, (rand(8, 64), rand(64, 64)), "turning both operands into pairs would take longer than is saved",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNMARKED)
def test_unmarked(name: str) -> None:
    fn, args, reason = UNMARKED[name]
    net, outcome = marked(fn, *args)
    assert not outcome.changed and not any(s.dots for s in _products(net))
    assert list(outcome.refused) == ([] if reason is None else [reason])


def test_only_where_the_processor_has_the_instruction() -> None:
    done = imported(lambda x, y: x @ y, rand(64, 64), rand(64, 64))
    WidenProducts().apply(done.network)
    for isa in ISAS:
        net = done.network.clone()
        net.target = target(isa=isa)
        assert UseDots().apply(net).changed == (isa == "avx512bf16")
    assert any(isinstance(p, UseDots) for p in pipeline(4))
