"""Products of half types: which become f32's, what is widened once, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dcir.ir.network import Network, Operand
from dcir.ir.statements import Narrow
from dcir.ir.verify import verify
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from dcir.transforms.base import PassResult
from dcir.transforms.tier1_operator.pack_weights import PackWeights
from dcir.transforms.tier1_operator.widen_products import HALVES, WidenProducts
from dcir.transforms.tier2_fusion.fold_static import FoldStatic
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from tests.harness import check_close, double, run_cpp, run_interpreted
from tests.on_host import on_host
from tests.transforms.imported import imported

Fn = Callable[..., Any]
pytestmark = pytest.mark.processor
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def rand(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def widened(
    fn: Fn, *inputs: torch.Tensor, more: tuple[Any, ...] = (), dynamic: int | None = None
) -> tuple[Network, PassResult]:
    """The pass and ``more`` after it; what is interpreted and what is generated against float64 of the same numbers."""
    done = imported(fn, *inputs)
    net = done.network
    if dynamic is not None:
        net.static |= set(net.inputs[dynamic:])
    outcome = WidenProducts().apply(net)
    for p in (None, *more):
        if p is not None:
            p.apply(net)
        verify(net)
        net.validate()
    want, exact = fn(*inputs), fn(*(double(t) for t in inputs))
    results = (want, exact) if isinstance(want, tuple) else ((want,), (exact,))
    for run in (run_interpreted, run_cpp):
        for got, eager, right in zip(run(done, inputs), *results, strict=True):
            check_close(got, eager, right, factor=1.5)
    assert not WidenProducts().apply(net).changed
    return net, outcome


def products(net: Network) -> list[Any]:
    return [op.spec for op in net.ops() if op.spec.kind not in ("program",)]


def _gradients(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    none = [0, 0]
    return torch.ops.aten.convolution_backward(
        g, x, w, None, [2, 1], [1, 1], [1, 1], False, none, 1, [True, True, False]
    )[:2]  # type: ignore[no-any-return]


CHANGED: dict[str, tuple[Fn, list[tuple[int, ...]]]] = {
    "linear": (lambda x, w, b: F.linear(x, w, b), [(5, 7), (33, 7), (33,)]),
    "strided": (lambda x, w: x[::2] @ w[::2, 1::3], [(9, 4), (8, 40)]),
    "broadcast": (lambda x, w: torch.bmm(x, w.expand(3, 7, 40)), [(3, 9, 7), (7, 40)]),
    "one number": (lambda x, w: x @ w, [(1, 1), (1, 1)]),
    "batch": (lambda x, y: torch.bmm(x, y.transpose(1, 2)), [(3, 9, 7), (3, 4, 7)]),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, padding=1), [(2, 3, 7, 6), (5, 3, 3, 2), (5,)]),
    "channels last": (
        lambda x, w: F.conv2d(x.to(memory_format=torch.channels_last), w, groups=2), [(2, 6, 7, 6), (4, 3, 3, 2)]
    ),
    "transposed convolution": (lambda x, w: F.conv_transpose2d(x, w, stride=2), [(2, 6, 4, 5), (6, 3, 3, 2)]),
    "gradients": (_gradients, [(2, 3, 7, 6), (5, 3, 3, 2), (2, 5, 4, 7)]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CHANGED)
def test_changed(name: str, dtype: str) -> None:
    fn, shapes = CHANGED[name]
    net, outcome = widened(fn, *(rand(*s, dtype=TYPES[dtype]) for s in shapes))
    assert outcome.changed == len(products(net)) and {s.dtype for s in products(net)} == {"f32"}


def test_what_two_products_read_is_widened_once() -> None:
    """Of x, v, w and the two results none is written twice."""
    x, v, w = (rand(6, 6, dtype=torch.bfloat16) for _ in range(3))
    net, outcome = widened(lambda x, v, w: (x @ v, x.t() @ w), x, v, w)
    assert outcome.changed == 2 and len(net.ops()) == 2 + 3


def test_unchanged() -> None:
    for dtype in (torch.float32, torch.float64):
        done = imported(lambda x, w: x @ w, rand(5, 7, dtype=dtype), rand(7, 9, dtype=dtype))
        outcome = WidenProducts().apply(done.network)
        assert not outcome.changed and not outcome.refused


def test_refused() -> None:
    net = on_host(Network())
    x, w, y = (Operand(net.add_container(shape, "bf16", "input")) for shape in ((0, 3), (3, 4), (0, 4)))
    net.add_op(ContractionSpec(alike("bf16"), (), 0, 4, 3, (3, 1), (4, 1), (4, 1)), [x, w], [y])
    outcome = WidenProducts().apply(net)
    assert not outcome.changed and outcome.refused == {"the product is empty": 1}


@pytest.mark.parametrize("dtype", HALVES)
def test_operands_are_rounded_where_they_are_made(dtype: str) -> None:
    """What goes from one product's registers to the next product has the digits that a store would have left it; and is not stored."""
    t = TYPES[dtype]
    x, w, b, v = rand(9, 40, dtype=t), rand(40, 40, dtype=t), rand(40, dtype=t), rand(40, 33, dtype=t)
    net, _ = widened(
        lambda x, w, b, v: F.relu(F.linear(x, w, b)) @ v, x, w, b, v, more=(FuseEpilogues(), FuseProducers()), dynamic=1
    )
    first = products(net)[0]
    assert first.epilogue.outputs == ("f32",) and any(isinstance(s, Narrow) for s in first.epilogue.body)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rows", [1, 2, 7, 29])
def test_static_weights_stay_half(rows: int, dtype: str) -> None:
    """Weights are packed as they are: half the bytes of what f32 would take, and nothing is left of the widening."""
    t = TYPES[dtype]
    x, w, b = rand(rows, 300, dtype=t), rand(45, 300, dtype=t), rand(45, dtype=t)
    passes = (FuseEpilogues(), FoldStatic(), FuseProducers(), PackWeights())
    net, _ = widened(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b, more=passes, dynamic=1)
    (spec,) = products(net)
    assert spec.stored == dtype and spec.panel and len(net.preparable()) == 1


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rows", [1, 9])
def test_special_numbers(rows: int, dtype: str) -> None:
    """NaN, infinities and the smallest numbers of f16 go through packed weights, and results round to them."""
    t = TYPES[dtype]
    x = torch.ones(rows, 1, dtype=t)
    least = float(torch.finfo(t).smallest_normal)
    numbers = [0.0, -0.0, 1.0, torch.inf, -torch.inf, torch.nan, least, -least, float(torch.finfo(t).max)]
    numbers += [2**-24, 3 * 2**-24, -1023 * 2**-24] if dtype == "f16" else []
    w = torch.tensor(numbers).to(t).repeat(4)[None, :].contiguous()
    net, _ = widened(lambda x, w: x @ w, x, w, more=(FoldStatic(), PackWeights()), dynamic=1)
    assert products(net)[0].stored == dtype
