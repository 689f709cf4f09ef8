"""Static values: what leaves the loops, which factors move into weights, what stays and why, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import dcir
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.isa import host_isa
from dcir.transforms.base import Pass
from dcir.transforms.tidy.fold_constants import FoldConstants
from dcir.transforms.tidy.merge_common_subexpressions import MergeCommonSubexpressions
from dcir.transforms.tidy.simplify_algebra import SimplifyAlgebra
from dcir.transforms.tier1_operator.widen_products import WidenProducts
from dcir.transforms.tier2_fusion.fold_static import FoldStatic
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier2_fusion.fuse_siblings import FuseSiblings
from tests.harness import check_close, double, run_interpreted
from tests.transforms.imported import imported

Fn = Callable[..., Any]
BEFORE = (FoldConstants(), SimplifyAlgebra(), MergeCommonSubexpressions())


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def prepared(fn: Fn, inputs: list[torch.Tensor], passes: tuple[Pass, ...], dynamic: int = 1) -> tuple[Any, list[Any]]:
    """The imported function after passes, all inputs but the first ``dynamic`` ones static; and the outcomes."""
    done = imported(fn, *inputs)
    net = done.network
    net.static |= set(net.inputs[dynamic:])
    outcomes = []
    for p in passes:
        outcomes.append(p.apply(net))
        verify(net)
        net.validate()
    return done, outcomes


def check(fn: Fn, inputs: list[torch.Tensor], passes: tuple[Pass, ...], dynamic: int = 1) -> tuple[Network, list[Any]]:
    """Numbers after passes against float64, with eager's own error as the measure."""
    done, outcomes = prepared(fn, inputs, passes, dynamic)
    (got,) = run_interpreted(done, inputs)
    check_close(got, fn(*inputs), fn(*(double(t) for t in inputs)))
    return done.network, outcomes


def calls(net: Network) -> list[str]:
    """The kinds of operators that every call runs."""
    ready = net.preparable()
    return [op.spec.kind for op in net.ops() if op not in ready]


def statements(net: Network) -> list[str]:
    """The operators of the last program or epilogue."""
    spec = net.ops()[-1].spec
    p = spec if spec.kind == "program" else spec.epilogue
    return [s.op for s in p.body] if p is not None else []


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, mean, root * root + 0.5, w, b)


def norms(channels: int) -> list[tuple[int, ...]]:
    return [(channels,)] * 4


CONV = [(2, 3, 7, 6), (5, 3, 3, 2)]
FOLDED: dict[str, tuple[Fn, list[tuple[int, ...]], list[str]]] = {
    "norm after a convolution": (
        lambda x, w, *n: F.relu(norm(F.conv2d(x, w), *n)), [*CONV, *norms(5)],
        ["load", "load", "add", "const", "max", "store"],
    ),
    "with a bias": (
        lambda x, w, b, *n: norm(F.conv2d(x, w, b), *n), [*CONV, (5,), *norms(5)], ["load", "load", "add", "store"]
    ),
    "groups and a residual": (
        lambda x, w, *n: norm(F.conv1d(x, w, padding=1, groups=3), *n) + x, [(2, 6, 7), (6, 2, 3), *norms(6)],
        ["load", "load", "add", "load", "add", "store"],
    ),
    "a kernel in channels-last": (
        lambda x, w, *n: norm(F.conv2d(x, w.to(memory_format=torch.channels_last)), *n), [*CONV, *norms(5)],
        ["load", "load", "add", "store"],
    ),
    "norm after a linear layer": (
        lambda x, w, b, *n: norm(F.linear(x, w, b), *n), [(4, 7), (9, 7), (9,), *norms(9)], ["load", "load", "add", "store"]
    ),
    "one row": (
        lambda x, w, b, *n: norm(F.linear(x, w, b), *n), [(1, 7), (9, 7), (9,), *norms(9)], ["load", "load", "add", "store"]
    ),
    "a number": (lambda x, w: (x @ w) / 3.0, [(4, 7), (7, 9)], []),
    "a scalar": (lambda x, w, s: (x @ w) * s.exp(), [(4, 7), (7, 9), ()], []),
    "a matrix for all of a batch": (lambda x, w, s: (x @ w) * s, [(3, 4, 7), (7, 9), (9,)], []),
    "a batch of weights": (lambda x, w, s: (x @ w) * s, [(3, 4, 7), (3, 7, 9), (3, 1, 9)], []),
    "weights on the left": (lambda x, w, s: torch.tanh((w @ x) * s + 1), [(7, 4), (9, 7), (9, 1)],
                            ["load", "const", "add", "tanh", "store"]),
    "the same factor twice": (lambda x, w: F.relu((x @ w) * -0.3) - (x @ w) * -0.3, [(4, 7), (7, 9)],
                              ["load", "const", "max", "sub", "store"]),
    "of both signs": (
        lambda x, w, *n: F.silu(norm(F.conv2d(x, w), *n)), [*CONV, *norms(5)],
        ["load", "load", "add", "neg", "exp", "const", "add", "div", "store"],
    ),
    "minus": (lambda x, w, b: b - (x @ w), [(4, 7), (7, 9), (9,)], ["load", "load", "add", "store"]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FOLDED)
def test_changed_factors_move_into_weights(name: str, dtype: torch.dtype) -> None:
    fn, shapes, left = FOLDED[name]
    inputs = [rand(*s, dtype=dtype) for s in shapes]
    net, outcomes = check(fn, inputs, (*BEFORE, FuseEpilogues(), FoldStatic()))
    assert outcomes[-1].changed and len(calls(net)) == 1 and statements(net) == left
    assert not FoldStatic().apply(net).changed
    after = (FuseProducers(), FuseEpilogues(), FuseSiblings())
    net, _ = check(fn, inputs, (*BEFORE, FuseEpilogues(), FoldStatic(), *after))
    assert len(calls(net)) == 1 and statements(net) == left


HOISTED: dict[str, tuple[Fn, list[tuple[int, ...]], list[str]]] = {
    "norm": (
        lambda x, *n: F.relu(norm(x, *n)), [(2, 5, 4), *norms(5)],
        ["load", "load", "mul", "load", "add", "const", "max", "store"],
    ),
    "a table": (lambda x, w: x + w.exp().t(), [(4, 5), (5, 4)], ["load", "load", "add", "store"]),
    "two tables": (lambda x, w, v: x * (w - v).abs(), [(4, 5), (4, 5), (5,)], ["load", "load", "mul", "store"]),
    "scaled to a range": (
        lambda x: torch.tanh((x / 255.0 - 0.5) / 0.25), [(4, 5)], ["load", "const", "mul", "const", "add", "tanh", "store"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOISTED)
def test_changed_static_values_leave_the_loops(name: str) -> None:
    fn, shapes, left = HOISTED[name]
    inputs = [rand(*s) for s in shapes] + ([rand(3)] if len(shapes) == 1 else [])
    whole = (lambda x, _: fn(x)) if len(shapes) == 1 else fn
    net, _ = check(whole, inputs, (*BEFORE, FuseProducers(), FoldStatic()))
    assert len(calls(net)) == 1 and statements(net) == left
    assert not FoldStatic().apply(net).changed
    net, _ = check(
        whole, inputs, (*BEFORE, FoldStatic(), FuseProducers(), FoldStatic(), FuseProducers(), FuseSiblings())
    )
    assert len(calls(net)) == 1 and statements(net) == left


def test_equal_layers_stay_equal_kernels() -> None:
    def fn(x: torch.Tensor, *p: torch.Tensor) -> torch.Tensor:
        for i in range(0, len(p), 5):
            x = F.relu(norm(F.conv2d(x, p[i], padding=1), *p[i + 1 : i + 5]))
        return x

    inputs = [rand(2, 4, 5, 5), *(rand(*s) for _ in range(3) for s in ((4, 4, 3, 3), *norms(4)))]
    net, _ = check(fn, inputs, (*BEFORE, FuseEpilogues(), FoldStatic()))
    ready = net.preparable()
    assert len({op.spec for op in net.ops() if op not in ready}) == 1
    assert len({op.spec for op in ready}) < len(ready) / 2


def test_unchanged() -> None:
    fn = lambda x, w, b: F.relu(x @ w + b)  # noqa: E731
    inputs = [rand(4, 7), rand(7, 9), rand(9)]
    _, outcomes = prepared(fn, inputs, (FuseEpilogues(), FoldStatic()))
    assert not outcomes[-1].changed and not outcomes[-1].refused
    everything = [rand(2, 3, 7, 6), *(rand(*s) for s in [CONV[1], *norms(5)])]
    _, outcomes = prepared(
        FOLDED["norm after a convolution"][0], everything, (FuseEpilogues(), FoldStatic()), dynamic=6
    )
    assert not outcomes[-1].changed  # nothing is static: a training step


def test_unchanged_half_types() -> None:
    inputs = [rand(4, 7).bfloat16(), rand(7, 9).bfloat16(), rand(9).bfloat16()]
    _, outcomes = prepared(lambda x, w, s: (x @ w) * s, inputs, (FuseEpilogues(), FoldStatic()))
    assert not outcomes[-1].changed


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_changed_a_factor_of_a_half_type(half: torch.dtype) -> None:
    """A layer's scale behind its product, as in ConvNeXt: the product is widened, the factor is as the user has it.

    Weights that a matrix unit multiplies as they are stay so.
    """
    inputs = [rand(4, 7).to(half), rand(7, 9).to(half), rand(9).to(half), rand(9).to(half)]
    passes = (WidenProducts(), FuseProducers(), FuseEpilogues(), FoldStatic())
    _, outcomes = check(lambda x, w, b, s: torch.addmm(b, x, w) * s, inputs, passes)
    on_unit = half is torch.bfloat16 and host_isa().matrix_unit
    assert bool(outcomes[-1].changed) != on_unit
    assert any("matrix unit" in reason for reason in outcomes[-1].refused) == on_unit


REFUSED: dict[str, tuple[Fn, list[tuple[int, ...]], int, str]] = {
    "weights of the caller": (
        lambda x, w, s: (x @ w) * s, [(4, 7), (7, 9), (9,)], 2, "the weights of the product are not static"
    ),
    "along rows": (
        lambda x, w, s: (x @ w) * s, [(4, 7), (7, 9), (4, 1)], 1, "the factor varies along other dimensions than the weights"
    ),
    "a factor per matrix of a batch": (
        lambda x, w, s: torch.bmm(x, w.expand(3, 7, 9)) * s, [(3, 4, 7), (7, 9), (3, 1, 1)], 1,
        "the factor varies along other dimensions than the weights",
    ),
    "pixels": (
        lambda x, w, s: F.conv2d(x, w) * s, [*CONV, (5, 5)], 1, "the factor varies along other dimensions than the weights"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, shapes, dynamic, reason = REFUSED[name]
    inputs = [rand(*s) for s in shapes]
    _, outcomes = check(fn, inputs, (*BEFORE, FuseEpilogues(), FoldStatic()), dynamic)
    if reason:
        assert outcomes[-1].refused == {reason: 1}


def test_refused_a_static_value_larger_than_its_parts() -> None:
    fn = lambda x, s, t: x + s.exp() * t  # noqa: E731
    _, outcomes = check(fn, [rand(9, 9), rand(9, 1), rand(1, 9)], (FuseProducers(), FuseProducers(), FoldStatic()))
    assert outcomes[-1].refused == {"a static value is larger than what it is made of": 1}


def test_two_factors_stay() -> None:
    fn = lambda x, w: (x @ w) * 0.3 + torch.tanh((x @ w) * 0.5)  # noqa: E731
    _, outcomes = check(fn, [rand(4, 7), rand(7, 9)], (*BEFORE, FuseEpilogues(), FoldStatic()))
    assert not outcomes[-1].changed


def test_a_result_keeps_its_value() -> None:
    """The product itself is a result, so its weights stay; the norm is folded as a program."""

    def fn(x: torch.Tensor, w: torch.Tensor, *n: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, w)
        return torch.cat([y.flatten(), norm(y, *n).flatten()])

    inputs = [rand(*s) for s in (*CONV, *norms(5))]
    _, outcomes = check(fn, inputs, (*BEFORE, FuseEpilogues(), FoldStatic()))
    assert outcomes[-1].changed


def test_far_from_zero() -> None:
    """A mean of many deviations: the folded norm loses digits, but no more than eager's error allows for convolutions."""
    inputs = [rand(*s) for s in (*CONV, *norms(5))]
    inputs[4] = inputs[4] * 3
    check(FOLDED["norm after a convolution"][0], inputs, (*BEFORE, FuseEpilogues(), FoldStatic()))


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 6, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(6)
        self.second = torch.nn.Conv2d(6, 6, 3, padding=1, groups=3, bias=False)
        self.other = torch.nn.BatchNorm2d(6)
        self.head = torch.nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> Any:
        y = F.hardswish(self.norm(self.first(x)))
        y = F.relu(self.other(self.second(y)) + y)
        return self.head(y.mean((2, 3))) / 3.0


def test_parameters_that_change_are_seen() -> None:
    """In-place changes, a loaded state and new statistics reach folded and packed weights."""
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
        net.first.weight.data = torch.randn(6, 3, 3, 3)
    same()


@pytest.mark.parametrize("bias", [False, True])
def test_a_sum_that_rounds_to_whole_numbers_stays(bias: bool) -> None:
    torch.manual_seed(0)
    line = torch.nn.Linear(32, 48, bias=bias).eval()
    large = 1.5 * 2.0**23
    with torch.no_grad():
        y = dcir.optimize(lambda x: (line(x) * 8 + large) - large)(rand(16, 32))
    assert torch.equal(y, y.round()) and len(y.unique()) > 5


def test_infinite_factors_do_not_reach_weights() -> None:
    """What is divided by 0 is infinite behind the product, and the product of it would be NaN."""
    torch.manual_seed(0)
    line, std = torch.nn.Linear(32, 48).eval(), torch.ones(48)
    std[::5] = 0
    x = rand(16, 32)
    for fn in (lambda x: (line(x) / std).clamp(-10, 10), lambda x: torch.tanh(line(x) * 1e25 * 1e25)):
        with torch.no_grad():
            torch.testing.assert_close(dcir.optimize(fn)(x), fn(x))
