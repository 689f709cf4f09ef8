"""Packed weights: which are packed and how, which stay and why, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import dcir
from dcir.ir.memory_plan import PREPARED
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.isa import host_isa
from dcir.ops.library.packing import panel_width, panels
from dcir.transforms.base import PassResult
from dcir.transforms.tidy.merge_common_subexpressions import MergeCommonSubexpressions
from dcir.transforms.tidy.prepare_static import PrepareStatic
from dcir.transforms.tier1_operator.pack_weights import PackWeights
from dcir.transforms.tier2_fusion.fold_static import FoldStatic
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from tests.harness import check_close, double, run_interpreted
from tests.transforms.imported import imported

Fn = Callable[..., Any]


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def check(fn: Fn, inputs: list[torch.Tensor], dynamic: int = 1) -> tuple[Network, PassResult]:
    """Epilogues, folding and packing, all inputs but the first ``dynamic`` ones static; numbers against float64."""
    done = imported(fn, *inputs)
    net = done.network
    net.static |= set(net.inputs[dynamic:])
    passes = (FuseProducers(), FuseEpilogues(), FoldStatic(), FuseProducers(), PackWeights())
    for p in passes:
        outcome = p.apply(net)
        verify(net)
        net.validate()
    (got,) = run_interpreted(done, inputs)
    if inputs[0].dtype == torch.float64:  # nothing more exact to compare with
        torch.testing.assert_close(got, fn(*inputs), rtol=1e-13, atol=1e-14)
    else:
        check_close(got, fn(*inputs), fn(*(double(t) for t in inputs)))
    assert not PackWeights().apply(net).changed
    return net, outcome


def product(net: Network) -> Any:
    """The spec of the only operator that every call runs."""
    ready = net.preparable()
    (op,) = (op for op in net.ops() if op not in ready)
    return op.spec


def _column(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """A product with its weights on the left, whose result lies along their rows, with a residual and a factor per row."""
    return ((w @ x.t()).t().contiguous() + x[:, :1]) * s


CHANGED: dict[str, tuple[Fn, list[tuple[int, ...]]]] = {
    "linear": (lambda x, w, b: F.relu(F.linear(x, w, b)), [(18, 7), (33, 7), (33,)]),
    "whole panels": (lambda x, w: x @ w, [(17, 7), (7, 64)]),
    "few columns": (lambda x, w: x @ w, [(17, 7), (7, 8)]),
    "one row": (lambda x, w: x @ w, [(1, 7), (7, 33)]),
    "one column": (lambda x, w: w @ x, [(7, 1), (33, 7)]),
    "strided": (lambda x, w: x @ w[::2, 1::3], [(20, 4), (8, 40)]),
    "rows of a batch": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [(3, 9, 7), (35, 7), (35,)]),
    "one matrix for all": (lambda x, w: torch.bmm(x, w.expand(3, 7, 40)), [(3, 9, 7), (7, 40)]),
    "a batch of weights": (lambda x, w, b: torch.baddbmm(b, x, w), [(3, 18, 7), (3, 7, 35), (3, 1, 35)]),
    "weights on the left": (_column, [(35, 40), (40, 40), (40,)]),
    "folded": (lambda x, w, s, t: torch.tanh((x @ w) * s.exp() + t), [(18, 7), (7, 33), (33,), (33,)]),
}
CONVOLUTIONS: dict[str, tuple[Fn, list[tuple[int, ...]]]] = {
    "convolution": (lambda x, w, b: F.relu(F.conv2d(x, w, b)), [(2, 3, 7, 6), (35, 3, 3, 2), (35,)]),
    "one dimension": (lambda x, w: F.conv1d(x, w, stride=2, padding=1), [(2, 3, 17), (8, 3, 3)]),
    "three dimensions": (lambda x, w: F.conv3d(x, w), [(2, 3, 4, 5, 3), (33, 3, 2, 2, 3)]),
    "groups": (lambda x, w: F.conv2d(x, w, groups=2), [(2, 6, 7, 6), (70, 3, 3, 2)]),
    "small groups": (lambda x, w, b: F.relu(F.conv2d(x, w, b, groups=3)), [(2, 6, 7, 6), (9, 2, 3, 3), (9,)]),
    "channels-last weights": (
        lambda x, w: F.conv2d(x, w.to(memory_format=torch.channels_last)), [(2, 3, 7, 6), (35, 3, 3, 2)]
    ),
    "folded": (
        lambda x, w, s, m: F.batch_norm(F.conv2d(x, w), m, s * s + 0.5, s, m), [(2, 3, 7, 6), (35, 3, 3, 2), (35,), (35,)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CHANGED)
def test_changed(name: str, dtype: torch.dtype) -> None:
    fn, shapes = CHANGED[name]
    net, outcome = check(fn, [rand(*s, dtype=dtype) for s in shapes])
    assert outcome.changed == 1 and product(net).panel == panel_width(
        "f32" if dtype == torch.float32 else "f64", host_isa()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_changed_convolution(name: str, dtype: torch.dtype) -> None:
    fn, shapes = CONVOLUTIONS[name]
    net, outcome = check(fn, [rand(*s, dtype=dtype) for s in shapes])
    assert outcome.changed == 1 and product(net).panel


def test_changed_depthwise() -> None:
    """Depthwise weights lie tap by tap, channels side by side."""
    net, outcome = check(lambda x, w, b: F.conv2d(x, w, b, groups=6), [rand(2, 6, 7, 6), rand(6, 1, 3, 2), rand(6)])
    assert outcome.changed == 1
    assert product(net).panel == 0 and product(net).w == (1, 6, 12, 6)


def test_equal_weights_are_packed_once() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.sin(torch.sin(x @ w) @ w)

    net, outcome = check(fn, [rand(18, 9), rand(9, 9)])
    assert outcome.changed == 2 and len(net.preparable()) == 1
    before = len(net.ops())
    MergeCommonSubexpressions().apply(net)
    assert len(net.ops()) == before


def test_packed_weights_leave_the_call() -> None:
    net, _ = check(lambda x, w: x @ w, [rand(18, 9), rand(9, 33)])
    before = net.bytes_moved()
    outcome = PrepareStatic().apply(net)
    packed = panels(33, panel_width("f32", host_isa())) * 9 * panel_width("f32", host_isa())
    assert net.memory.nbytes(PREPARED) == packed * 4 and outcome.saved_bytes >= 4 * (9 * 33 + packed)
    assert net.bytes_moved() == before - outcome.saved_bytes


def test_unchanged() -> None:
    _, outcome = check(lambda x, w: x @ w, [rand(18, 7), rand(7, 9)], dynamic=2)
    assert not outcome.changed and not outcome.refused
    _, outcome = check(lambda x, w: x @ w, [rand(18, 7).bfloat16(), rand(7, 9).bfloat16()])
    assert not outcome.changed and not outcome.refused


REFUSED: dict[str, tuple[Fn, list[tuple[int, ...]], str]] = {
    "few columns": (lambda x, w: x @ w, [(33, 7), (7, 3)], "too few columns for a panel"),
    "on the left": (
        lambda x, w: w @ x, [(7, 33), (33, 7)], "the weights are on the left, and the result does not lie along their rows"
    ),
    "few channels a group": (
        lambda x, w: F.conv2d(x, w, groups=2), [(2, 6, 7, 16), (4, 3, 3, 9)],
        "the channels of a group would leave most of a panel empty",
    ),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w), [(2, 6, 7, 6), (6, 3, 3, 2)], "only convolutions read packed weights"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, shapes, reason = REFUSED[name]
    _, outcome = check(fn, [rand(*s) for s in shapes])
    assert outcome.refused == {reason: 1} and not outcome.changed


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 33, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(33)
        self.deep = torch.nn.Conv2d(33, 33, 3, padding=1, groups=33, bias=False)
        self.other = torch.nn.BatchNorm2d(33)
        self.head = torch.nn.Linear(33, 45)

    def forward(self, x: torch.Tensor) -> Any:
        y = F.hardswish(self.norm(self.first(x)))
        y = F.relu(self.other(self.deep(y)) + y)
        return F.gelu(self.head(y.flatten(2).transpose(1, 2)))


def test_parameters_that_change_are_seen() -> None:
    """In-place changes, a loaded state, new statistics and replaced tensors reach folded and packed weights."""
    torch.manual_seed(0)
    net = _Net().eval()
    fast = dcir.optimize(net)
    x = rand(2, 3, 9, 7)

    def same() -> None:
        with torch.no_grad():
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)

    same()
    with torch.no_grad():
        for b in net.buffers():
            if b.is_floating_point():
                b.uniform_(0.5, 2)
        for p in net.parameters():
            p.mul_(1.5).add_(0.1)
    same()
    torch.manual_seed(1)
    net.load_state_dict(_Net().state_dict())
    same()
    with torch.no_grad():
        net.first.weight.data = torch.randn(33, 3, 3, 3)
    same()


def test_a_rounding_to_another_half_type_stays() -> None:
    weight, x = torch.zeros(64, 64), torch.zeros(8, 64)
    weight[:, 0], weight[:, 1], x[:, 0], x[:, 1] = 1 + 2.0**-9, 1, 1, -1
    weight = weight.half()
    with torch.no_grad():
        y = dcir.optimize(lambda x: F.linear(x, weight.bfloat16()))(x.bfloat16())
    assert not y.any()
