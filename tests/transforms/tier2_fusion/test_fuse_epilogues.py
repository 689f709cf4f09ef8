"""Epilogues: what joins a product, what stays outside and why, their one form, and the numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network
from dcir.ir.statements import Load, Store
from dcir.ir.verify import verify
from dcir.transforms.tidy.merge_common_subexpressions import MergeCommonSubexpressions
from dcir.transforms.tier1_operator.pack_weights import PackWeights
from dcir.transforms.tier1_operator.widen_products import WidenProducts
from dcir.transforms.tier2_fusion.fold_static import FoldStatic
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier2_fusion.fuse_siblings import FuseSiblings
from dcir.transforms.tier3_layout.sink_copies import SinkCopies
from tests.harness import run_interpreted
from tests.transforms.imported import imported, same_numbers

Fn = Callable[..., Any]


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Batch norm in evaluation, with statistics and parameters made of a vector."""
    return F.batch_norm(x, w, w.abs() + 0.5, w * 2, w + 1)


def block(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Two convolutions with norms, added and activated."""
    return F.relu(norm(F.conv2d(F.relu(norm(F.conv2d(x, w, padding=1), s)), v), s) + x[:, :1])


def mixed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A product of rows, whose transposed result is added to another tensor."""
    batch, channels, positions = x.shape
    y = F.linear(w.expand(batch * positions, channels), w.t() @ w, b)
    return x + y.view(batch, positions, channels).transpose(1, 2)


X, W, B = (5, 7), (7, 9), (9,)
CHANGED: dict[str, tuple[Fn, list[tuple[int, ...]], list[str]]] = {
    "bias": (lambda x, w, b: torch.addmm(b, x, w), [X, W, B], ["contraction"]),
    "relu": (lambda x, w, b: F.relu(F.linear(x, w.t(), b)), [X, W, B], ["contraction"]),
    "gelu": (lambda x, w, b: F.gelu(F.linear(x, w.t(), b)), [X, W, B], ["contraction"]),
    "read twice": (lambda x, w: F.silu(x @ w), [X, W], ["contraction"]),
    "clamped, scaled, masked": (
        lambda x, w: torch.where(x[:, :1] > 0, F.hardtanh(x @ w * 0.3, 0.0, 6.0), -1.0),
        [X, W],
        ["contraction", "program", "program"],
    ),
    "residual": (lambda x, w, r: F.mish(x @ w + r), [X, W, (5, 9)], ["contraction"]),
    "residual of the operand": (
        lambda x, w: (lambda y: y @ w + y)(x.sin()),
        [(5, 5), (5, 5)],
        ["contraction", "program"],
    ),
    "residual made of two": (lambda x, w, r, s: x @ w + r * s, [X, W, (5, 9), (5, 9)], ["contraction"]),
    "broadcast operands": (
        lambda x, w, r, s: (x @ w - r) * s.exp(),
        [X, W, (5, 1), ()],
        ["program", "contraction"],
    ),
    "gate": (lambda x, w, v: F.silu(x @ w) * (x @ v), [X, W, W], ["contraction", "contraction"]),
    "the other gate": (lambda x, w, v: (x @ w) * F.sigmoid(x @ v), [X, W, W], ["contraction", "contraction"]),
    "one row": (lambda x, w, b: F.tanh(F.linear(x, w.t(), b)), [(1, 7), W, B], ["contraction"]),
    "batch": (lambda x, w, r: torch.tanh(x @ w + r), [(3, 5, 7), (3, 7, 9), (5, 9)], ["contraction"]),
    "batch in two parts": (
        lambda x, w, r: (x @ w).view(2, 3, 5, 9) + r[:, None, None, :],
        [(6, 5, 7), (6, 7, 9), (2, 9)],
        ["contraction"],
    ),
    "rows in two parts": (mixed, [(2, 8, 33), (66, 8), (8,)], ["contraction"] * 2),
    "columns in two parts that run on": (
        lambda x, w, r: (x @ w).view(5, 3, 3) + r,
        [X, W, (3, 3)],
        ["contraction"],
    ),
    "transposed": (lambda x, w, r: (x @ w).t() * r, [X, W, (9, 1)], ["contraction"]),
    "counted": (lambda x, w: (x @ w).tril(), [X, W], ["contraction"]),
    "of another type": (lambda x, w: (x @ w) > 0.5, [X, W], ["contraction"]),
    "convolution": (lambda x, w, b: F.relu6(F.conv2d(x, w, b)), [(2, 3, 7, 6), (4, 3, 3, 2), (4,)], ["forward"]),
    "only a bias": (lambda x, w, b: F.conv1d(x, w, b), [(2, 3, 7), (4, 3, 3), (4,)], ["forward"]),
    "groups": (
        lambda x, w, b: F.hardswish(norm(F.conv2d(x, w, b, groups=3), b)),
        [(2, 6, 7, 6), (6, 2, 3, 3), (6,)],
        ["program", "program", "program", "forward"],
    ),
    "one pixel": (lambda x, w, b: F.relu(F.conv2d(x, w, b)), [(2, 3, 3, 3), (4, 3, 3, 3), (4,)], ["forward"]),
    "flattened": (
        lambda x, w, r: F.relu(F.conv3d(x, w).flatten(2) + r),
        [(2, 3, 4, 5, 3), (4, 3, 2, 2, 2), (4, 24)],
        ["forward"],
    ),
    "block": (block, [(2, 4, 6, 6), (4, 4, 3, 3), (4, 4, 1, 1), (4,)], ["program"] * 4 + ["forward"] * 2),
}


def _kinds(net: Network) -> list[str]:
    return [op.spec.kind for op in net.ops()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CHANGED)
def test_changed(name: str, dtype: torch.dtype) -> None:
    fn, shapes, left = CHANGED[name]
    inputs = [rand(*s, dtype=dtype) for s in shapes]
    net = imported(fn, *inputs).network
    before = net.bytes_moved()
    outcome = FuseEpilogues().apply(net)
    assert outcome.changed
    assert net.bytes_moved() == before - outcome.saved_bytes
    assert sorted(_kinds(net)) == sorted(left) or name in ("groups", "block")
    assert not any(_follows(net, op) for op in net.ops())
    same_numbers(fn, *inputs, passes=(FuseEpilogues(),))
    same_numbers(fn, *inputs, passes=(FuseEpilogues(), FuseProducers(), FuseEpilogues()))
    assert not FuseEpilogues().apply(net).changed
    for op in net.ops():
        _check_form(op)


def _follows(net: Network, op: Op) -> bool:
    """Whether a loop nest reads a product."""
    return op.spec.kind == "program" and any(w.spec.kind != "program" for o in net.ins(op) for w in net.writers(o.data))


def _check_form(op: Op) -> None:
    """The loops of a product, its value first, other inputs by first use, no strides along extents of 1."""
    if op.spec.kind == "program" or op.spec.epilogue is None:
        return
    spec, p = op.spec, op.spec.epilogue
    assert p.outer == spec.shapes[2] and not p.inner and p.inputs[0] == spec.dtype
    used = list(dict.fromkeys(s.operand for s in p.body if isinstance(s, Load) and s.operand))
    assert used == list(range(1, len(p.inputs)))
    for s in p.body:
        if isinstance(s, (Load, Store)):
            assert all(n != 1 or not st for n, st in zip(p.outer, s.strides, strict=True))
    first = next(s for s in p.body if isinstance(s, Store))
    strides = spec.c if spec.kind == "contraction" else spec.y
    assert first.strides == tuple(st if n != 1 else 0 for st, n in zip(strides, p.outer, strict=True))


def test_equal_layers_are_equal_kernels() -> None:
    def fn(x: torch.Tensor, *w: torch.Tensor) -> torch.Tensor:
        for i in range(0, len(w), 2):
            x = F.relu(F.linear(x, w[i], w[i + 1])) + x
        return x

    net = imported(fn, rand(4, 6), *(rand(*s) for _ in range(3) for s in ((6, 6), (6,)))).network
    FuseEpilogues().apply(net)
    assert len(net.ops()) == 3 and len({op.spec for op in net.ops()}) == 1


def test_results_and_other_readers_get_their_value() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x @ w
        z = y + 1
        return y, F.relu(z), z.sum(0)

    inputs = rand(5, 7), rand(7, 9)
    same_numbers(fn, *inputs, passes=(FuseEpilogues(),))
    net = imported(fn, *inputs).network
    FuseEpilogues().apply(net)
    product = next(op for op in net.ops() if op.spec.kind == "contraction")
    assert len(product.spec.epilogue.outputs) == 3 and _kinds(net) == ["contraction", "program"]


def test_a_product_moves_behind_its_other_operand() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w) + torch.softmax(x, 1)[:, :1]

    inputs = rand(5, 7), rand(7, 9)
    same_numbers(fn, *inputs, passes=(FuseEpilogues(),))
    net = imported(fn, *inputs).network
    FuseEpilogues().apply(net)
    assert _kinds(net)[-1] == "contraction"


def test_a_copy_leaves_no_epilogue() -> None:
    inputs = rand(5, 7), rand(7, 9)
    net = imported(lambda x, w: F.pad(x @ w, (1, 1)), *inputs).network
    assert FuseEpilogues().apply(net).changed == 1
    assert next(op.spec for op in net.ops() if op.spec.kind == "contraction").epilogue is None
    same_numbers(lambda x, w: F.pad(x @ w, (1, 1)), *inputs, passes=(FuseEpilogues(),))


def test_unchanged() -> None:
    net = imported(lambda x, w: torch.softmax(x @ w, 1), rand(5, 7), rand(7, 9)).network
    outcome = FuseEpilogues().apply(net)
    assert not outcome.changed and not outcome.refused


def test_unchanged_for_half_types_and_gradients() -> None:
    fn = lambda x, w: F.relu(x @ w)  # noqa: E731
    assert not FuseEpilogues().apply(imported(fn, rand(5, 7).bfloat16(), rand(7, 9).bfloat16()).network).changed
    back = torch.func.grad(lambda x, w: F.conv2d(x, w).sum())
    assert not FuseEpilogues().apply(imported(back, rand(2, 3, 6, 6), rand(4, 3, 3, 3)).network).changed


def test_a_stored_half_is_not_stored_wider_as_well() -> None:
    """Statistics of a half type read it as float32; both are read from the halves, whose results are the same."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ w
        wide = y.float()
        return y, torch.softmax(wide, 1)

    x, w = rand(5, 7).bfloat16(), rand(7, 9).bfloat16()
    net = imported(fn, x, w).network
    WidenProducts().apply(net)
    outcome = FuseEpilogues().apply(net)
    assert any("wider copy" in reason for reason in outcome.refused)
    (product,) = (op for op in net.ops() if op.label.startswith("contraction"))
    assert [net.containers[o.data].dtype for o in net.outs(product)] == ["bf16"]
    # Where a result is the wider copy itself, there is one write and no read less.
    net = imported(lambda x, w: (x @ w, (x @ w).float()), x, w).network
    WidenProducts().apply(net)
    assert not any("wider copy" in reason for reason in FuseEpilogues().apply(net).refused)


REFUSED: dict[str, tuple[Fn, list[tuple[int, ...]], str]] = {
    "a part": (lambda x, w: F.relu((x @ w)[:, 1:]), [X, W], "the consumer reads only a part of the product"),
    "every other column": (
        lambda x, w: F.relu((x @ w)[:, ::2]), [X, W], "the consumer reads only a part of the product"
    ),
    "repeated": (
        lambda x, w, r: (x @ w) + r, [X, W, (3, 5, 9)], "the consumer does not run over the product's results one to one"
    ),
    "heads": (
        lambda x, w, r: (x @ w).view(5, 3, 3) + r, [X, W, (3, 1)],
        "an operand walks a dimension of the product in several parts",
    ),
    "few rows": (mixed, [(2, 8, 31), (62, 8), (8,)], "an operand walks a dimension of the product in several parts"),
    "two ways": (lambda x, w: (x @ w) + (x @ w).t(), [X, (7, 5)], "the consumer reads it in two ways"),
    "needed before": (
        lambda x, w: (lambda y: y + torch.softmax(y, 1))(x @ w), [X, W], "another operator needs the product first"
    ),
    "windows": (
        lambda x, w: F.max_pool1d(x @ w, 2), [X, W], "the consumer reads it through indices or a mask"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, shapes, reason = REFUSED[name]
    inputs = [rand(*s) for s in shapes]
    net = imported(fn, *inputs).network
    if name == "two ways":
        MergeCommonSubexpressions().apply(net)
    outcome = FuseEpilogues().apply(net)
    assert reason in outcome.refused, outcome.refused
    same_numbers(fn, *inputs, passes=(FuseProducers(), FuseEpilogues()))


def test_refused_too_much() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, *r: torch.Tensor) -> torch.Tensor:
        y = x @ w
        for t in r:
            y = y * t
        return y

    inputs = [rand(5, 7), rand(7, 9), *(rand(9) for _ in range(4))]
    net = imported(fn, *inputs).network
    outcome = FuseEpilogues(max_operands=2).apply(net)
    assert outcome.changed == 2 and outcome.refused == {"the epilogue would have too many operands": 1}
    net = imported(fn, *inputs).network
    assert FuseEpilogues(max_statements=4).apply(net).refused == {"the epilogue would be too long": 1}
    same_numbers(fn, *inputs, passes=(FuseEpilogues(max_operands=2),))


def test_checked_indices_stay_before_the_product() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x @ w + r[i]

    inputs = rand(5, 7), rand(7, 9), rand(3, 9), torch.tensor([0, 2, 1, 1, 0])
    net = imported(fn, *inputs).network
    outcome = FuseEpilogues().apply(net)
    assert "indices have to be checked before the product" in outcome.refused and outcome.changed == 1
    same_numbers(fn, *inputs, passes=(FuseEpilogues(),))


def test_training_step() -> None:
    """The forward product stores what the gradient reads as well as the activation."""

    def loss(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(F.linear(x, w, b)), v).pow(2).mean()

    step = torch.func.grad(loss, argnums=(0, 1, 2, 3))
    inputs = rand(5, 7), rand(9, 7), rand(9), rand(3, 9)
    outcomes = same_numbers(step, *inputs, passes=(FuseEpilogues(), FuseProducers(), FuseEpilogues()))
    assert outcomes[0].changed


def _step(
    kind: int, y: torch.Tensor, z: torch.Tensor, w: torch.Tensor, k: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """One operator on tensors of shape (2, 6, 8)."""
    if kind < 6:
        products = [
            lambda: y @ w, lambda: F.linear(y, w, b), lambda: (y.transpose(1, 2) @ k[:, :, 0]).transpose(1, 2),
            lambda: F.conv1d(y, k, b[:6]), lambda: torch.bmm(y, y.transpose(1, 2)) @ y / 8,
            lambda: F.linear(y.reshape(12, 8), w).view(2, 6, 8),
        ]  # fmt: skip
        return products[kind]()
    if kind == 6:
        return torch.softmax(y, 2)
    if kind == 7:
        return torch.cat([y[:, :3], y[:, 3:].neg()], 1)
    if kind == 8:
        return (y.view(2, 6, 2, 4) + b[:6, None, None]).view(2, 6, 8)
    pointwise = [
        lambda: y + z, lambda: y * torch.sigmoid(z), lambda: F.gelu(y) + b, lambda: y.tril(), lambda: y.relu() * 0.5,
        lambda: torch.where(y > 0.1, z, y), lambda: torch.tanh(y),
    ]  # fmt: skip
    return pointwise[kind - 9]()


def _random(seed: int) -> tuple[Fn, list[torch.Tensor]]:
    """Products, views and pointwise operators in a random order; the last values are the results."""

    def fn(x: torch.Tensor, w: torch.Tensor, k: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rng = random.Random(seed)
        values = [x, x.sin()]
        for _ in range(14):
            values.append(_step(rng.randrange(16), rng.choice(values[-4:]), rng.choice(values), w, k, b))
        return tuple(values[-3:])

    return fn, [rand(2, 6, 8), rand(8, 8) / 3, rand(6, 6, 1) / 3, rand(8)]


@pytest.mark.parametrize("seed", range(40))
def test_random_functions(seed: int) -> None:
    fn, inputs = _random(seed)
    passes = (
        FuseEpilogues(),
        FoldStatic(),
        FuseProducers(),
        FuseEpilogues(),
        FuseSiblings(),
        SinkCopies(),
        PackWeights(),
    )
    done = imported(fn, *inputs)
    done.network.static |= set(done.network.inputs[1:])
    for p in passes:
        p.apply(done.network)
        verify(done.network)
        done.network.validate()
    for g, w in zip(run_interpreted(done, inputs), fn(*inputs), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)


def _head(*, static: bool = False, rows: int = 300) -> tuple[Network, dict[str, int]]:
    """Where 34 MB would have to be packed for an epilogue that saves 60 KB."""
    done = imported(lambda x, w: (x @ w) * 2.0, rand(rows, 180_000), rand(180_000, 50))
    if static:
        done.network.static.add(done.network.inputs[1])
    outcome = FuseEpilogues().apply(done.network)
    return done.network, outcome.refused


def test_refused_large_operand() -> None:
    net, refused = _head()
    assert refused == {"with an epilogue the product would have to pack a large operand in every call": 1}
    assert [op.spec.kind for op in net.ops()] == ["contraction", "program"]


def test_large_operand_that_is_packed_once() -> None:
    net, refused = _head(static=True)
    assert not refused
    assert [op.spec.kind for op in net.ops()] == ["contraction"]


def test_rows_are_packed_where_they_are_few() -> None:
    """The weights of a linear layer lie along the reduction: a short input is packed instead of them."""
    done = imported(lambda x, w: F.linear(x, w) * 2.0, rand(20, 2000), rand(4500, 2000))
    assert not FuseEpilogues().apply(done.network).refused
