"""Torch's control flow (cond, while_loop, scan, associative_scan, map) is compiled, with plain Python's numbers.

A case is written once, over ``flow``: torch's operators in what is compiled, and plain Python in the reference.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan, associative_scan_op
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import dcir
from dcir.driver import api
from dcir.errors import IndexOutOfRange, NotCompiledWarning
from tests.harness import check_close, double

pytestmark = pytest.mark.in_turn(3)

torch_map: Any = torch._higher_order_ops.map
ZERO = torch.tensor(0)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class Torch:
    """The operators; ``pairwise`` is what associative_scan calls for pointwise functions, if it is asked on a GPU."""

    cond, while_loop, scan, map = (staticmethod(f) for f in (torch.cond, while_loop, scan, torch_map))

    @staticmethod
    def associative_scan(f: Any, xs: Any, dim: int = 0, reverse: bool = False) -> Any:
        return associative_scan(f, xs, dim, reverse, combine_mode="generic")

    @staticmethod
    def pairwise(f: Any, xs: list[Tensor]) -> Any:
        return associative_scan_op(lambda *ab: f(ab[: len(xs)], ab[len(xs) :]), xs, ())


class Plain:
    """The same in Python."""

    @staticmethod
    def cond(flag: Any, then: Any, otherwise: Any, operands: Sequence[Any] = ()) -> Any:
        return (then if flag else otherwise)(*operands)

    @staticmethod
    def while_loop(test: Any, body: Any, values: Any) -> Any:
        while test(*values):
            values = body(*values)
        return values

    @staticmethod
    def scan(f: Any, init: Any, xs: Any, dim: int = 0, reverse: bool = False) -> Any:
        leaves, spec = pytree.tree_flatten(xs)
        parts = [pytree.tree_unflatten(row, spec) for row in zip(*(x.unbind(dim) for x in leaves), strict=True)]
        ys = []
        for part in reversed(parts) if reverse else parts:
            init, y = f(init, part)
            ys.append(y)
        return init, pytree.tree_map(lambda *y: torch.stack(y, dim), *(reversed(ys) if reverse else ys))

    @staticmethod
    def map(f: Any, xs: Any, *args: Any) -> Any:
        return Plain.scan(lambda none, x: (none, f(x, *args)), None, xs)[1]

    @staticmethod
    def associative_scan(f: Any, xs: Any, dim: int = 0, reverse: bool = False) -> Any:
        return Plain.scan(lambda a, b: (b if a is None else f(a, b),) * 2, None, xs, dim, reverse)[1]

    pairwise = associative_scan


def on(flow: Any, then: Any, otherwise: Any, x: Tensor) -> Any:
    """A branch for numbers whose sum is positive, and another."""
    return flow.cond(x.sum() > 0, then, otherwise, (x,))


def times(flow: Any, n: Any, f: Callable[..., Any], *values: Any) -> Any:
    """What ``n`` calls make of values."""
    return flow.while_loop(lambda i, *v: i < n, lambda i, *v: (i + 1, *f(i, *v)), (ZERO, *values))


def along(flow: Any, f: Callable[[Tensor, Tensor], Tensor], x: Tensor, init: Tensor | None = None) -> Any:
    """A scan that gives every value that it hands on."""
    return flow.scan(lambda c, x: (y := f(c, x), y * 1), x[0] * 2 if init is None else init, x)


# A function of ``flow`` (here f) and tensors, and per tensor itself, or a shape of random numbers.
TYPES = (
    torch.arange(4), torch.tensor([True, False, True, True]), torch.linspace(-2, 1, 8).double().view(4, 2),
    torch.linspace(-1, 2, 12).bfloat16().view(4, 3),
)  # fmt: skip
CONDS: dict[str, tuple[Any, ...]] = {
    "two branches": (lambda f, x: on(f, torch.sin, lambda x: x.cos() * 2, x * 2) + 1, (3, 4)),
    "a product in one branch": (
        lambda f, x, w: on(f, lambda x: (x @ w).relu(), lambda x: x.mean() * x.new_ones(3, 5), x), (3, 4), (4, 5)),
    "views and inputs": (
        lambda f, x: (on(f, lambda y: y.t()[1:].clone(), lambda y: y[:, :3].t().clone(), x * 2), x), (3, 4)),
    "the same value twice": (
        lambda f, x: on(f, lambda x: (x.sin(), x.sin(), x.sum()), lambda x: (x + 1, x * x, x.max()), x), (3, 4)),
    "trees": (
        lambda f, x: f.cond(
            x[0, 0] > 0, lambda d: {"a": d["b"][0] * 2, "c": (d["d"] + 3, d["b"][0].mean())},
            lambda d: {"a": d["b"][0] - 1, "c": (d["d"].exp(), d["d"].sum())}, ({"b": (x,), "d": x[0] * 2},)), (3, 4)),
    "all types": (
        lambda f, *given: f.cond(given[0].sum() > 0, lambda x, i, b, d, h: (x + i, i * 3, ~b, d.exp(), h * 2),
                                 lambda x, i, b, d, h: (x * i, i - 1, b | (i > 2), d + x[:2], h + 1), given),
        (4,), *TYPES),
    "a bool of one element": (lambda f, x: f.cond(x[:, 0] > 0, torch.sin, torch.exp, (x,)), (1, 4)),
    "transposed stepped and expanded operands": (
        lambda f, x, y, z: f.cond(x.sum() > 0, lambda a, b, c: a @ b.exp() + c, lambda a, b, c: (c.t() + a.t()).t() @ b,
                                  (x.t(), y[:, ::2], z[0].expand(4, 3))), (3, 4), (3, 5), (2, 3)),
    "cond in cond": (
        lambda f, x: on(f, lambda x: f.cond(x[0, 0] > 0, torch.sin, torch.cos, (x,)), lambda x: f.cond(
            x[0, 1] > 0, lambda x: x * 2, lambda x: f.cond(x.max() > 2, torch.exp, torch.tanh, (x,)), (x,)), x),
        (3, 4)),
    "a convolution or a pooling": (
        lambda f, x, w: on(f, lambda x: F.conv2d(x, w, padding=1), lambda x: F.max_pool2d(x, 3, 1, 1), x),
        (2, 3, 6, 6), (3, 3, 3, 3)),
    "attention or norm and softmax": (
        lambda f, x: on(f, lambda x: F.scaled_dot_product_attention(x, x * 0.5, x + 1),
                        lambda x: F.layer_norm(x, (8,)).softmax(1), x), (2, 5, 8)),
    "no operands": (lambda f, x: x * f.cond(x[0] > 0, lambda: torch.arange(4), lambda: 3 - torch.arange(4)), (4,)),
    "scalars": (lambda f, x, y: f.cond(x > y, lambda x, y: x * y, lambda x, y: x - y.exp(), (x, y)), (), ()),
    "large matrices": (
        lambda f, x, w: on(f, lambda y: y @ w.t() / 8, lambda y: torch.cat([y] * 4, 1), on(
            f, lambda x: (x @ w / 16).relu(), lambda x: x[:, :64].tanh() - 1, x)), (64, 256), (256, 64)),
    "no elements": (lambda f, x: on(f, lambda x: x.sum(0), lambda x: x.sum(0) - 1, x), (0, 4)),
    "scan in cond": (
        lambda f, x: on(f, lambda x: f.scan(lambda c, x: (c * 0.5 + x, c.sin()), x[0].clone(), x),
                        lambda x: (x.sum(0), x.exp()), x), (6, 4)),
    "map and while in cond": (
        lambda f, x: on(f, lambda x: f.map(lambda x: x.softmax(0), x),
                        lambda x: times(f, 3, lambda i, x: [x.sin() + i], x)[1], x), (3, 4)),
}  # fmt: skip
WHILES: dict[str, tuple[Any, ...]] = {
    "perhaps never": (lambda f, x, n: times(f, n, lambda i, x: [(x * 1.5).sin()], x), (3, 4), torch.tensor(5.0)),
    "a product until it is small": (
        lambda f, x, w: f.while_loop(lambda x: x.norm() > 0.2, lambda x: (x @ w / w.norm(),), (x,)), (3, 4), (4, 4)),
    "all types": (
        lambda f, *given: f.while_loop(lambda x, i, b, d, h: i[3] < 8, lambda x, i, b, d, h: (
            x + i.sum() * 0.25, i + 1, ~b, d @ d[:2] * 0.25 + 1, h * 0.5 + x[:3].bfloat16()), given), (5,), *TYPES),
    "trees": (
        lambda f, x, y: times(f, 3, lambda i, d: [{"a": (d["a"][0] + d["b"].sum(), d["a"][1] * 2), "b": d["b"] / 2}],
                              {"a": (x, x + 1), "b": y}), (3,), (2, 2)),
    "while in while": (
        lambda f, x: f.while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, f.while_loop(
            lambda j, x: j < i, lambda j, x: (j + 1, x.sin() + i), (i * 0, x * 2))[1]), (ZERO, x)), (3, 4)),
    "cond in while": (
        lambda f, x, w: times(f, 6, lambda i, x: [f.cond(
            x.sum() > i - 3, lambda x: (x @ w).tanh(), lambda x: x + 1 / (i + 1), (x,))], x), (3, 4), (4, 4)),
    "scan in while": (
        lambda f, x, n: times(f, n, lambda i, x: [along(f, lambda c, x: c * 0.5 + x, x)[1]], x),
        (4, 3), torch.tensor(3.0)),
    "transposed values": (
        lambda f, x, y: times(f, 3, lambda i, a, b: (a + b.mean(), b * 0.5 + a[:3].sum()), x.t(), y.permute(2, 0, 1)),
        (4, 6), (2, 3, 4)),
    "values that are swapped": (
        lambda f, a, b: times(f, 5, lambda i, a, b, c: (b.clone(), c.clone(), a.clone()), a, b, a + b), (3,), (3,)),
    "a carried bool": (
        lambda f, x, b: f.while_loop(lambda b, x: b.clone(), lambda b, x: ((x < 3).all(), x + 0.75), (b, x)),
        (3,), torch.tensor(True)),
    "a root": (
        lambda f, x, a: f.while_loop(lambda r: (r * r - a.abs()).abs() > 1e-3, lambda r: ((r + a.abs() / r) / 2,),
                                     (x.abs() + 1,)), (), torch.tensor(7.0)),
    "convolution softmax and constants": (
        lambda f, x, w: times(f, torch.tensor(3), lambda i, x: [
            F.conv1d(x, w, padding=1).softmax(-1) + torch.arange(8) * torch.tensor(0.5)], x), (1, 2, 8), (2, 2, 3)),
    "decoding": (
        lambda f, x, w: f.while_loop(lambda i, t: ((i < 7) & (t.gather(0, i) != 10))[0], lambda i, t: (
            i + 1, torch.where(torch.arange(8) == i + 1, (F.embedding(t.gather(0, i), x) @ w).argmax(-1), t)),
                                     (ZERO[None] * 1, torch.arange(8) * 0)), (11, 6), (6, 11)),
    "written rows": (
        lambda f, x: times(f, 3, lambda i, x: [
            x.index_copy(0, i[None] + 1, x.index_select(0, i[None]).sin() + 1).index_add(0, i[None] * 0, x[1:2])], x),
        (4, 3)),
    "large matrices": (lambda f, x, w: times(f, 3, lambda i, x: [(x @ w / 16).relu() - 0.5], x), (64, 256), (256, 256)),
    "many trips": (lambda f, x: times(f, 3001, lambda i, x: [x * 0.5 + 1], x), (2,)),
    "a loop behind a loop": (
        lambda f, x: times(f, 9, lambda i, x: [x * 0.5], *times(f, 4, lambda i, x: [x.sin()], x)[1:]), (2, 3)),
}  # fmt: skip
SCANS: dict[str, tuple[Any, ...]] = {
    "a cell": (
        lambda f, x, h, w, u: along(f, lambda h, x: (h @ w + x @ u).tanh(), x, h), (6, 2, 3), (2, 4), (4, 4), (3, 4)),
    "backwards": (lambda f, x: f.scan(lambda c, x: (c * 0.5 + x, c - x), 0 * x[0], x, reverse=True), (5, 4)),
    "the second dimension": (
        lambda f, x: f.scan(lambda c, x: (c.sin() + x, c + x), x[:, 0] * 2, x, dim=1), (3, 5, 4)),
    "every second part and flipped ones": (
        lambda f, x, y: f.scan(lambda c, ab: (c + ab[0] * ab[1], c.cos()), x[0] * 2, (x[::2], y.flip(0))),
        (7, 4), (4, 4)),
    "transposed and expanded parts": (
        lambda f, x, y: f.scan(lambda c, p: (c * p[0] + p[1], p[0] - c), y * 2, (x.t(), y.expand(6, 4))), (4, 6), (4,)),
    "a transposed value": (
        lambda f, x, y: f.scan(lambda c, x: (c * 0.5 + x.sum(), c.t() @ x), y.t(), x), (3, 4), (2, 4)),
    "trees": (
        lambda f, x: f.scan(lambda c, x: ({"a": c["a"] + x["x"], "b": [c["b"][0] * 0.5 + x["y"].sum()]}, (
            x["x"] @ c["a"].t(), [c["b"][0] * 2])), {"a": x[0] * 2, "b": [x.mean()]}, {"x": x, "y": x[:, 0]}),
        (4, 3, 2)),
    "all types": (
        lambda f, *xs: f.scan(lambda c, p: (
            (c[0] + p[0], c[1] * 2 + p[1], c[2] ^ p[2], c[3] * p[3], c[4] * 0.5 + p[4]),
            (c[1] + p[1], ~c[2], p[4].float() * p[0][0], c[3] + 1)), tuple(x[1].clone() for x in xs), xs),
        (4, 5), *TYPES),
    "one trip": (lambda f, x: f.scan(lambda c, x: (c + x, c * x), x[0].exp(), x), (1, 3)),
    "scalars": (lambda f, x, a: f.scan(lambda c, x: (c * a + x, c - a), x[1] * 2, x), (6,), ()),
    "what it got": (
        lambda f, x: f.scan(lambda c, x: ((c[0] * 1, x.clone()), (x.clone(), c[1] * 1)), (x[0] * 2, x[1] * 3), x),
        (5, 3)),
    "views and the same several times": (
        lambda f, x: f.scan(lambda c, x: (c * 0.5 + x, (c.t().clone(), c[1:, ::2].clone(), c.clone(),
                                                        c[0].expand(2, 4) * 1, c.clone())), x[0] + 1, x), (5, 3, 4)),
    "a stack that nobody reads": (lambda f, x: along(f, lambda c, x: c.sin() + x, x)[0], (5, 4)),
    "an end that nobody reads": (lambda f, x: along(f, lambda c, x: c.sin() + x, x)[1], (5, 4)),
    "scan in scan in scan": (
        lambda f, x, w: f.scan(lambda c, x: f.scan(lambda c, x: f.scan(
            lambda c, x: ((c @ w / 3 + x).tanh(), c * 2), c, x, reverse=True), c, x), x[0, 0, 0] * 2, x, reverse=True),
        (4, 3, 2, 5), (5, 5)),
    "cond in scan": (
        lambda f, x, w: along(f, lambda c, x: f.cond(
            x.sum() > 0, lambda c, x: (c @ w).tanh() + x, lambda c, x: c * 0.5, (c, x)), x), (6, 4), (4, 4)),
    "while in scan": (
        lambda f, x: f.scan(lambda c, x: (f.while_loop(
            lambda n, c: c.abs().sum() < 9, lambda n, c: (n + 1, c * 2 + n), (ZERO, c))[1] / 5 + x, c * 2), x[0] * 2,
                              x), (3, 4)),
    "map in scan": (
        lambda f, x: f.scan(lambda c, x: (c * 0.5, f.map(lambda r: r.softmax(0) * c, x)), x[0, 0] * 2, x), (3, 2, 4)),
    "convolution norm and softmax": (
        lambda f, x, w: along(f, lambda c, x: F.layer_norm(F.conv1d(c + x, w, padding=1), (8,)).softmax(1), x),
        (4, 2, 3, 8), (3, 3, 3)),
    "attention": (
        lambda f, x, w: along(
            f, lambda c, x: c + 0.5 * F.scaled_dot_product_attention(c @ w, x, x + c, is_causal=True), x),
        (3, 2, 5, 8), (8, 8)),
    "large matrices": (
        lambda f, x, w: f.scan(lambda c, x: ((c @ w / 16 + x).tanh(), c.mean(1)), x[0] * 2, x),
        (3, 64, 256), (256, 256)),
    "constants": (
        lambda f, x: f.scan(lambda c, x: (c * torch.tensor([1, 2, -1]) + x, (
            torch.arange(3) + c, torch.ones(2, 2), torch.full_like(x, 3))), x[0] * 2, x), (4, 3)),
    "a table": (
        lambda f, i, t: f.scan(lambda c, i: (c + t[i].sum(0), F.embedding(i, t) * c), t[0] * 2, i),
        torch.tensor([[1, 3], [0, 0], [4, 2]]), (5, 4)),
    "sorts and sums": (
        lambda f, x: f.scan(lambda c, x: (c.cumsum(0) * 0.1 + x, (c + x).sort().values), x[0] * 2, x), (4, 6)),
    "scans behind one another": (
        lambda f, x: along(f, lambda c, x: (c - x).cos(), along(f, lambda c, x: (c + x).sin(), x)[1]), (5, 3)),
}  # fmt: skip
MAPS: dict[str, tuple[Any, ...]] = {
    "a matrix": (lambda f, x, w: f.map(lambda x: (x @ w).softmax(-1), x), (5, 3, 4), (4, 4)),
    "trees and an argument": (
        lambda f, x, a: f.map(lambda d, a: (d["x"] * a + d["y"][0], {"z": d["x"].sum()}), {"x": x, "y": [x.exp()]}, a),
        (5, 3), (3,)),
    "map in map": (lambda f, x, w: f.map(lambda x: f.map(lambda y: y.softmax(0) @ w, x) * 2, x), (3, 4, 5), (5, 5)),
    "cond in map": (lambda f, x: f.map(lambda x: on(f, torch.sin, lambda y: y + 1, x), x), (3, 4)),
    "scan in map": (lambda f, x: f.map(lambda x: along(f, lambda c, x: c * 0.5 + x, x)[1], x), (3, 4, 5)),
    "transposed stepped and expanded parts": (
        lambda f, x, y: f.map(lambda p: (p[0] * p[1], p[0].clone()), (x.t()[::2], y.expand(3, 4))), (4, 6), (4,)),
    "one part with a convolution": (lambda f, x, w: f.map(lambda x: F.conv1d(x[None], w), x), (1, 2, 8), (3, 2, 3)),
    "large matrices": (lambda f, x, w: f.map(lambda x: (x @ w / 16).relu(), x), (3, 64, 256), (256, 64)),
    "integers": (
        lambda f, i, x: f.map(lambda i: (i * 2, x[i], i > 2, i.double() / 3), i), torch.arange(6).view(2, 3), (6,)),
}  # fmt: skip
ASSOCIATIVE: dict[str, tuple[Any, ...]] = {
    "a product backwards": (lambda f, x: f.associative_scan(lambda a, b: a * b, x, 1, reverse=True), (3, 6)),
    "a recurrence": (
        lambda f, x: f.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (x.sigmoid(), x)), (6, 3)),
    "matrices": (lambda f, x: f.associative_scan(lambda a, b: a @ b, x / 2), (5, 3, 3)),
    "pairs with a recurrence": (
        lambda f, x: f.pairwise(lambda p, q: [p[0] * q[0], q[0] * p[1] + q[1]], [x.sigmoid(), x]), (6, 3)),
    "pairs of rows and integers": (
        lambda f, x, i: f.pairwise(lambda a, b: [torch.maximum(a[0], b[0]), a[1] + b[1]], [x, i]), (4, 3), TYPES[0]),
    "pairs of columns": (lambda f, x: f.pairwise(lambda a, b: [a[0] + b[0]], [x.t()]), (4, 6)),
    "pairs of two parts and of one": (
        lambda f, x, y: [f.pairwise(lambda a, b: [a[0] * b[0]], [v]) for v in (x, y)], (2, 3), (1, 3)),
}  # fmt: skip
GROUPS = {"cond": CONDS, "while": WHILES, "scan": SCANS, "map": MAPS, "associative": ASSOCIATIVE}
CASES = {f"{operator}: {name}": case for operator, group in GROUPS.items() for name, case in group.items()}
UNDERIVED = [
    *(name for name in CASES if "while" in name or name.endswith(("all types", "integers"))),  # of integers
    "cond: views and inputs", "cond: transposed stepped and expanded operands",  # gradients in two layouts
    "scan: scan in scan in scan", "scan: a transposed value",
]  # fmt: skip
"""What torch has no gradients of."""
EVERY = [(name, train) for name in CASES for train in (False, True)[: 1 + (name not in UNDERIVED)]]


def results_of(f: Callable[..., Any], args: Sequence[Tensor], train: bool) -> list[Any]:
    """What a call gives, and the gradients of what can have one."""
    own = [a.detach().requires_grad_(train and a.is_floating_point()) for a in args]
    with torch.set_grad_enabled(train):
        ys = pytree.tree_leaves(f(*own))
    if not train:
        return ys
    loss = sum((y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)).sum() for y in ys if y.requires_grad)
    inputs = [a for a in own if a.requires_grad]
    return [*(y.detach() for y in ys), *torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)]


def check_whole(fast: Any) -> None:
    report = fast.dcir.explain()
    assert report.graphs and not report.fallbacks and not report.breaks and not report.uncompiled


@pytest.mark.parametrize(("name", "train"), EVERY)
@pytest.mark.filterwarnings("error::dcir.errors.NotCompiledWarning")
def test_as_plain_python(name: str, train: bool) -> None:
    run, *made = CASES[name]
    args = [m if isinstance(m, Tensor) else torch.randn(m) for m in made]
    fast = dcir.optimize(lambda *tensors: run(Torch, *tensors))
    plain = functools.partial(run, Plain)
    for sign in (1, -1, 1):  # conditions are true and false, loops have trips and none
        signed = [a * sign if a.is_floating_point() else a for a in args]
        got, want, exact = (
            results_of(f, a, train) for f, a in ((fast, signed), (plain, signed), (plain, double(signed)))
        )
        for results in zip(got, want, exact, strict=True):
            check_close(*results)
    check_whole(fast)


class Layers(nn.Module):
    """Layers inside of a loop, a branch and a map."""

    def __init__(self, flow: Any) -> None:
        super().__init__()
        self.flow = flow
        self.first, self.second, self.norm = nn.Linear(5, 4), nn.Linear(4, 4), nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        x = self.flow.map(lambda x: self.first(x).relu(), x)
        y = along(self.flow, lambda c, x: self.norm(self.second(c) * self.scale + x).tanh(), x)[1]
        return on(self.flow, lambda y: y @ self.second.weight, lambda y: y * self.scale, y.sum(0))


@pytest.mark.filterwarnings("error::dcir.errors.NotCompiledWarning")
def test_layers_in_bodies_are_trained() -> None:
    model = Layers(Torch)
    other = copy.deepcopy(model)
    other.flow = Plain
    step = dcir.train_step(model, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for sign in (1, -1, 1):
        x, y = torch.randn(6, 3, 5) * sign, torch.randn(3, 4)
        optimizer.zero_grad()
        want = F.mse_loss(other(x), y)
        want.backward()
        optimizer.step()
        torch.testing.assert_close(step(x, y), want.detach())
        torch.testing.assert_close(list(model.parameters()), list(other.parameters()))
    assert not step.dcir.explain().fallbacks


BAD_INDICES: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "scan": lambda t, i, n: scan(lambda c, i: (c + t[i].sum(), c * 2), t[0] * 1, i[:, None])[1],
    "map": lambda t, i, n: torch_map(lambda i: t[i] * 2, i[:, None]),
    "while": lambda t, i, n: times(Torch, n, lambda k, c: [c + t[i]], t[:3] * 2),
    "a while without an end": lambda t, i, n: while_loop(lambda c: c.sum() < n, lambda c: (c + t[i],), (t[:3] * 0,)),
    "cond": lambda t, i, n: torch.cond(n > 0, lambda t: t[i] * 2, lambda t: t[:3] + 0, (t,)),
    "cond in scan": lambda t, i, n: scan(lambda c, i: (torch.cond(
        n > 0, lambda c: c + t[i].sum(), lambda c: c * 2, (c,)), c * 2), t[0] * 1, i[:, None])[0],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_INDICES)
def test_bad_indices(name: str) -> None:
    fast = dcir.optimize(BAD_INDICES[name])
    table, good, bad, n = torch.arange(1.0, 6.0), torch.tensor([1, 4, 0]), torch.tensor([1, 5, 0]), torch.tensor(3)
    with torch.no_grad():
        first = fast(table, good, n)
        for index in (bad, -bad - 2):
            with pytest.raises(IndexOutOfRange):
                fast(table, index, n)
        torch.testing.assert_close(fast(table, good, n), first)
        if name not in ("scan", "map"):  # nobody meets it
            fast(table, bad, n * 0)
    check_whole(fast)


CHANCE: dict[str, Callable[[Tensor], Any]] = {
    "cond": lambda x: on(Torch, F.dropout, lambda x: x + torch.rand_like(x), x),
    "scan": lambda x: scan(lambda c, x: (c * 0.5 + x, F.dropout(c + x)), x[0] * 2, x),
    "map_impl": lambda x: torch_map(lambda x: F.dropout(x) * 2, x),
    "while_loop": lambda x: times(Torch, 3, lambda i, x: [x.sin() + torch.rand_like(x)], x),
}


@pytest.mark.parametrize(("name", "train"), [(name, t) for name in CHANCE for t in (False, True)][:-1])
def test_bodies_with_random_numbers_run_in_pytorch(name: str, train: bool) -> None:
    fast = dcir.optimize(CHANCE[name])
    x = torch.randn(4, 3)
    for sign in (1, -1):
        found = []
        for f in (fast, CHANCE[name]):
            torch.manual_seed(3)
            found.append(results_of(f, [x * sign], train))
        torch.testing.assert_close(*found)
    assert {op for op, _ in fast.dcir.explain().fallbacks} == {f"higher_order.{name}"}


def test_quotients_of_integers_stay_in_bodies() -> None:
    """They run through torch elsewhere, for the error of a zero divisor; here all of the loop would."""
    fast = dcir.optimize(lambda x, y: times(Torch, 3, lambda i, x, y: [x // y + i, y % 5 + 1], x, y)[0])
    x, y = torch.arange(7, 400, 9), torch.arange(1, 45)
    torch.testing.assert_close(fast(x, y), times(Plain, 3, lambda i, x, y: [x // y + i, y % 5 + 1], x, y)[0])
    check_whole(fast)


def test_a_python_number_is_handed_on_in_pytorch() -> None:
    fast = dcir.optimize(lambda x: while_loop(lambda n, x: n < 4, lambda n, x: (n + 1, x * 0.5 + n), (0, x))[1])
    x = torch.randn(2, 3)
    torch.testing.assert_close(fast(x), x / 16 + 1 / 4 + 2 / 2 + 3)
    assert [op for op, _ in fast.dcir.explain().fallbacks] == ["higher_order.while_loop"]


def test_a_while_with_gradients_runs_in_pytorch() -> None:
    x = torch.randn(2, 3)
    fast = dcir.optimize(lambda x: SIZES["while"](Torch, x))
    with pytest.warns(NotCompiledWarning, match="a result of while_loop is of a size that depends on data"):
        got = results_of(fast, [x], True)
    torch.testing.assert_close(got, results_of(lambda x: SIZES["while"](Plain, x), [x], True))
    assert fast.dcir.explain().uncompiled


SIZES: dict[str, Callable[[Any, Tensor], Any]] = {
    "scan": lambda f, x: along(f, lambda c, x: (c + x).sin(), x),
    "while": lambda f, x: times(f, 3, lambda i, x: [x.sin()], x),
    "cond in map": MAPS["cond in map"][0],
    "while and a fixed size": lambda f, x: (times(f, 3, lambda i, x: [x.sin()], x), x.reshape(2, -1)),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_change(name: str) -> None:
    fast = dcir.optimize(lambda x: SIZES[name](Torch, x))
    with torch.no_grad():
        for sizes in ((4, 4), (6, 5), (2, 3), (2, 8)):
            x = torch.randn(sizes)
            torch.testing.assert_close(fast(x), SIZES[name](Plain, x))
    check_whole(fast)


def test_a_branch_that_writes_a_buffer() -> None:
    """Torch wraps the branch in an operator that copies what is written, which runs as a whole."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            def then(x: Tensor) -> Tensor:
                self.seen.add_(x)
                return x.sin()

            return torch.cond(x.sum() > 0, then, torch.cos, (x,))

    eager, other = Counting(), Counting()
    fast = dcir.optimize(other)
    with torch.no_grad():
        for x in (torch.rand(4), -torch.rand(4), torch.rand(4)):
            torch.testing.assert_close((fast(x), other.seen), (eager(x), eager.seen))


def test_a_while_loop_in_a_file(tmp_path: Path) -> None:
    class Loop(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return SIZES["while"](Torch, x)

    api.save(Loop(), (torch.rand(4),), tmp_path / "loop.dcir")
    x = torch.rand(4)
    torch.testing.assert_close(dcir.load(tmp_path / "loop.dcir")(x), SIZES["while"](Plain, x))


def test_tuning_leaves_loops_alone() -> None:
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(
            dcir.optimize(lambda x: SIZES["scan"](Torch, x), tune=0.1)(x), SIZES["scan"](Plain, x)
        )
