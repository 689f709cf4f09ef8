"""Convolutions as products over unfolded images: which, which not and why, and the numbers of all three kinds."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dcir
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.transforms.base import PassResult
from dcir.transforms.tier1_operator.lower_to_im2col import LowerToIm2col
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from tests.endtoend.follows_eager import follow
from tests.harness import check_close, double, run_interpreted
from tests.transforms.imported import imported

ALWAYS = LowerToIm2col(channels=0, least=0)
CASES = {
    "plain": ((1, 4, 5, 5), (12, 4, 3, 3), {}),
    "classifier": ((2, 3, 4, 5), (9, 3, 4, 5), {}),
    "padded": ((2, 3, 4, 5), (7, 3, 3, 2), {"padding": (2, 1)}),
    "strided": ((1, 2, 9, 8), (5, 2, 3, 4), {"stride": (2, 3), "padding": 1}),
    "dilated": ((2, 2, 9, 8), (5, 2, 2, 3), {"dilation": (3, 2), "padding": (0, 2)}),
    "one dimension": ((2, 3, 9), (4, 3, 5), {"stride": 2, "padding": 3}),
    "three dimensions": ((1, 2, 4, 3, 5), (6, 2, 2, 3, 2), {"padding": (1, 0, 1)}),
}  # fmt: skip


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def rewritten(fn: Any, inputs: list[torch.Tensor], unfold: LowerToIm2col = ALWAYS) -> tuple[Network, PassResult, Any]:
    done = imported(fn, *inputs)
    net = done.network
    FuseEpilogues().apply(net)
    outcome = unfold.apply(net)
    verify(net)
    net.validate()
    assert not unfold.apply(net).changed
    return net, outcome, done


def count(net: Network, kind: type) -> int:
    return sum(isinstance(op.spec, kind) for op in net.ops())


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("case", list(CASES))
def test_forward(case: str, last: bool) -> None:
    x_shape, w_shape, settings = CASES[case]
    if last and len(x_shape) != 4:
        pytest.skip("channels-last is for images")
    inputs = [rand(*x_shape), rand(*w_shape), rand(w_shape[0])]
    if last:
        inputs[:2] = [t.to(memory_format=torch.channels_last) for t in inputs[:2]]
    conv = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(x_shape)]

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.silu(conv(x, w, b, **settings))

    net, outcome, done = rewritten(fn, inputs)
    assert outcome.changed == 1 and outcome.saved_bytes <= 0
    assert not count(net, ConvolutionSpec) and count(net, ContractionSpec) == 1
    (got,) = run_interpreted(done, inputs)
    check_close(got, fn(*inputs), fn(*(double(t) for t in inputs)))


@pytest.mark.parametrize("case", list(CASES))
def test_gradients(case: str) -> None:
    x_shape, w_shape, settings = CASES[case]
    rank = len(x_shape) - 2
    each = {k: [v] * rank if isinstance(v, int) else list(v) for k, v in settings.items()}
    args = [each.get("stride", [1] * rank), each.get("padding", [0] * rank), each.get("dilation", [1] * rank)]
    x, w = rand(*x_shape), rand(*w_shape)
    y = torch.ops.aten.convolution(x, w, None, *args, False, [0] * rank, 1)

    def fn(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ops.aten.convolution_backward(
            dy, x, w, None, *args, False, [0] * rank, 1, [True, True, False]
        )[:2]  # fmt: skip

    inputs = [rand(*y.shape, seed=1), x, w]
    net, outcome, done = rewritten(fn, inputs)
    assert outcome.changed == 2 and count(net, ContractionSpec) == 2
    for got, want, exact in zip(run_interpreted(done, inputs), fn(*inputs), fn(*map(double, inputs)), strict=True):
        check_close(got, want, exact)


def test_forward_and_weight_gradient_share_the_unfolded_image() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w) + F.conv2d(x, v)

    inputs = [rand(1, 4, 4, 4), rand(12, 4, 3, 3), rand(12, 4, 3, 3, seed=1)]
    net, outcome, done = rewritten(fn, inputs)
    assert outcome.changed == 2
    unfolded = [c for c in net.containers.values() if c.shape == (4, 36)]
    assert len(unfolded) == 1
    (got,) = run_interpreted(done, inputs)
    check_close(got, fn(*inputs), fn(*map(double, inputs)))


@pytest.mark.parametrize(
    ("shapes", "settings", "reason"),
    [
        (((1, 64, 20, 20), (64, 64, 3, 3)), {}, "it has too many results for its weights"),
        (((1, 4, 3, 3), (64, 4, 3, 3)), {}, "it has too many results for its weights"),
        (((1, 64, 3, 3), (1024, 32, 3, 3)), {"groups": 2}, "it has groups, or a half type"),
    ],
)
def test_refused(shapes: tuple[tuple[int, ...], ...], settings: dict[str, int], reason: str) -> None:
    inputs = [rand(*s) for s in shapes]
    _, outcome, _ = rewritten(lambda x, w: F.conv2d(x, w, **settings), inputs, LowerToIm2col())
    assert not outcome.changed and reason in outcome.refused


def test_static_weights_stay_packed() -> None:
    done = imported(lambda x, w: F.conv2d(x, w), x := rand(1, 64, 3, 3), w := rand(1024, 64, 3, 3))
    done.network.static |= {done.network.inputs[1]}
    outcome = LowerToIm2col().apply(done.network)
    assert not outcome.changed and "its weights are packed once" in outcome.refused
    assert x.shape[1] == w.shape[1]


@pytest.mark.parametrize("last", [False, True])
def test_trains(last: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 1), nn.Conv2d(32, 512, 7), nn.ReLU(), nn.Conv2d(512, 5, 1))
    model = model.to(memory_format=torch.channels_last) if last else model
    x = torch.randn(1, 3, 10, 11)
    fast = dcir.optimize(copy.deepcopy(model), verify="passes")
    fast(x).sum().backward()
    lines = [line.split() for line in str(fast.dcir.explain()).splitlines() if " lower-to-im2col " in line]
    assert sorted(int(line[2]) for line in lines) == [1, 2]
    assert not follow(model, {"input": x}, train=True).wrong
