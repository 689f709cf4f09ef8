"""Products of bf16 numbers on a matrix unit: which are marked, when they no longer are, what passes leave to them, their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.isa import ISAS, host_isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.transforms.base import Pass
from dcir.transforms.pipelines import pipeline
from dcir.transforms.runner import run_passes
from dcir.transforms.tier1_operator.know_halves import KnowHalves
from dcir.transforms.tier1_operator.use_winograd import UseWinograd
from dcir.transforms.tier1_operator.widen_products import WidenProducts
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from tests.harness import check_close, double, run_cpp, run_interpreted
from tests.on_host import target
from tests.transforms.imported import imported

pytestmark = pytest.mark.processor
BF16, F32 = torch.bfloat16, torch.float32


def rand(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def image(*shape: int) -> torch.Tensor:
    return rand(*shape).to(memory_format=torch.channels_last)


def rewritten(
    fn: Callable[..., Any], args: Sequence[torch.Tensor], passes: Sequence[Pass], weights: int = 0, isa: str = "amx"
) -> tuple[Any, Network]:
    done = imported(fn, *args)
    net = done.network
    net.target = target(isa=isa)
    net.static |= set(net.inputs[len(args) - weights :])
    run_passes(net, passes)
    verify(net)
    net.validate()
    return done, net


def products(net: Network) -> list[Any]:
    return [op.spec for op in net.ops() if isinstance(op.spec, ContractionSpec | ConvolutionSpec)]


PLAIN = (WidenProducts(), FuseEpilogues(), FuseProducers(), KnowHalves())


def conv(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, padding=1)


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], list[bool]]] = {
    "a product": (lambda x, w: torch.relu(x @ w.t()), (rand(40, 70), rand(65, 70)), [True]),
    "of a product": (lambda x, y, z: (x @ y).relu() @ z, (rand(3, 40, 70), rand(3, 70, 90), rand(3, 90, 64)), [True, True]),
    "a convolution": (conv, (image(2, 32, 9, 9), image(64, 32, 3, 3)), [True]),
    "of a convolution": (
        lambda x, v, w: conv(conv(x, v).relu(), w), (image(2, 32, 9, 9), image(64, 32, 3, 3), image(32, 64, 3, 3)), [True, True],
    ),
    "copies": (lambda x, y: torch.cat([x, -x, x.abs()]).clamp(min=0, max=2) @ y, (rand(64, 80), rand(80, 70)), [True]),
    "f32": (lambda x, y: x @ y, (rand(64, 64, dtype=F32),) * 2, [False]),
    "f16": (lambda x, y: x @ y, (rand(64, 64, dtype=torch.float16),) * 2, [False]),
    "computed in f32": (lambda x, y: x.float().exp() @ y.float(), (rand(64, 64),) * 2, [False]),
    "a sum in f32": (lambda x, y: (x.float() + 1) @ y.float(), (rand(64, 64),) * 2, [False]),
    "beyond what bf16 has": (lambda x, y: x.float().clamp(max=1.001) @ y.float(), (rand(64, 64),) * 2, [False]),
    "one of f32": (lambda x, y: x.to(y.dtype) @ y, (rand(64, 64), rand(64, 64, dtype=F32)), [False]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_marked(name: str) -> None:
    fn, args, want = CASES[name]
    done, net = rewritten(fn, args, PLAIN)
    assert [s.halves for s in products(net)] == want
    assert not KnowHalves().apply(net).changed
    for run in (run_interpreted, run_cpp) if host_isa().matrix_unit else (run_interpreted,):
        (got,) = run(done, args)
        check_close(got, fn(*args), fn(*map(double, args)), factor=1.5)


def test_only_where_there_is_a_unit() -> None:
    for isa in ISAS:
        _, net = rewritten(lambda x, y: x @ y, (rand(64, 64), rand(64, 64)), PLAIN, isa=isa)
        assert [s.halves for s in products(net)] == [isa == "amx"]


def test_convolutions_also_where_pairs_are_multiplied() -> None:
    for isa in ISAS:
        args = image(2, 32, 9, 9), image(64, 32, 3, 3)
        done, net = rewritten(conv, args, PLAIN, isa=isa)
        assert [s.halves for s in products(net)] == [isa in ("amx", "avx512bf16")]
        if isa == host_isa().name:
            (got,) = run_cpp(done, args)
            check_close(got, conv(*args), conv(*map(double, args)), factor=1.5)


def test_what_is_no_longer_so_is_found_out() -> None:
    """An operand that a rewrite has scaled since."""
    _, net = rewritten(lambda x, y: (x @ y, x.float() * 1.5), (rand(64, 64), rand(64, 64)), PLAIN)
    (op,) = (op for op in net.ops() if isinstance(op.spec, ContractionSpec))
    scaled = next(
        o for other in net.ops() if other is not op for o in net.outs(other) if net.containers[o.data].role == "result"
    )
    net.rewire(op, op.spec, [scaled, *net.ins(op)[1:]], net.outs(op))
    assert KnowHalves().apply(net).changed == 1
    assert [s.halves for s in products(net)] == [False]


def test_factors_and_winograds_transforms_stay_out_of_such_weights() -> None:
    def block(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (conv(x, w) * g[:, None, None] + b[:, None, None]).relu()

    def scaled(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = conv(x, w).float() * g.float()[:, None, None] + b.float()[:, None, None]
        return y.relu().to(x.dtype)

    args = (image(2, 32, 56, 56), image(64, 32, 3, 3), rand(64), rand(64))
    assert any(isinstance(p, UseWinograd) for p in pipeline(4))
    for fn in (block, scaled):
        done, net = rewritten(fn, args, pipeline(4), weights=3)
        (spec,) = products(net)
        assert (spec.halves, spec.winograd) == (True, ())
        if host_isa().matrix_unit:
            (got,) = run_cpp(done, args)
            check_close(got, fn(*args), fn(*map(double, args)), factor=1.5)
    _, net = rewritten(scaled, args, pipeline(4), weights=3, isa="avx512")
    (spec,) = (s for s in products(net) if s.kind == "forward")
    assert spec.winograd
