"""Indices computed in floating point become a few integer operations, with the values that they had."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dcir
from dcir.codegen.ranges import short_values
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import Network
from dcir.ir.statements import Compute, Gather
from dcir.ir.verify import verify
from dcir.ops.lowering import Lowering, Ref
from dcir.transforms.pipelines import PASSES, same_at_all_sizes
from dcir.transforms.tidy.shorten_indices import Form, ShortenIndices, form_of
from tests.transforms.build import network
from tests.transforms.random_network import results

FORMS = {
    "the index": (lambda i: i, Form(1, 0, 1, None, None)),
    "one number": (lambda i: 0 * i + 7, Form(0, 7, 1, None, None)),
    "backwards": (lambda i: 40 - i, Form(-1, 40, 1, None, None)),
    "halves": (lambda i: i // 2, Form(1, 0, 2, None, None)),
    "five of three": (lambda i: (5 * i + 1) // 3, Form(5, 1, 3, None, None)),
    "not below": (lambda i: np.maximum((i - 1) // 2, 0), Form(1, -1, 2, 0, None)),
    "not above": (lambda i: np.minimum((i + 1) // 2, 15), Form(1, 1, 2, None, 15)),
    "between": (lambda i: np.clip(i - 3, 0, 20), Form(1, -3, 1, 0, 20)),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_gives_all_values(name: str) -> None:
    values = FORMS[name][0](np.arange(37))
    form = form_of(values)
    assert form is not None
    assert np.array_equal(form.of(np.arange(37)), values)
    assert len(form.statements(0)) <= len(FORMS[name][1].statements(0))


@pytest.mark.parametrize("values", [[0, 1, 3, 4, 9, 2], [0, 5, 0, 5, 0, 5], [3, 1, 4, 1, 5, 9]])
def test_no_form_is_made_up(values: list[int]) -> None:
    assert form_of(np.array(values)) is None


@pytest.mark.parametrize("seed", range(200))
def test_random_forms_are_found_again(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, c = int(rng.integers(1, 60)), int(rng.choice([1, 2, 3, 4, 5, 8]))
    values = (int(rng.integers(-3 * c, 3 * c)) * np.arange(n) + int(rng.integers(-50, 50))) // c
    if rng.random() < 0.5:
        values = np.clip(values, int(values.min() + rng.integers(0, 4)), None)
    form = form_of(values)
    assert form is None or np.array_equal(form.of(np.arange(n)), values)
    assert form is not None or n <= 8  # with few values left between the bounds the slope is not always found


def _gathered(index: Callable[[LoopNestBuilder, Expr], Expr]) -> Network:
    """y[r, i] = x[r, index(i)], for 24 numbers of 12."""

    def make(c: Lowering, x: Ref) -> list[Ref]:
        dst, k = c.new((3, 24), "f32"), c.kernel((3, 24))
        k.store(dst, k.gather(x, (12, 0), [index(k.body, k.body.index(1))], [1], checked=False))
        k.done()
        return [dst]

    return network([(3, 12)], make)


def _nest(net: Network) -> LoopNest:
    (op,) = net.ops()
    return op.known(LoopNest)


def _as_eager(b: LoopNestBuilder, i: Expr) -> Expr:
    j = b.convert(b.convert(i, "f32") * 0.5, "i64")
    return b.where(j < 0, j + 12, j)


def test_a_rounded_index_is_a_shift_and_lies_inside() -> None:
    net = _gathered(_as_eager)
    before, numbers = _nest(net), results(net)
    assert ShortenIndices().apply(net).changed == 1
    verify(net)
    after = _nest(net)
    assert [s.op for s in after.body if isinstance(s, Compute)] == ["shr"]
    (gather,) = (s for s in after.body if isinstance(s, Gather))
    assert short_values(after)[gather.indices[0]] == (0, 11)
    assert len(after.body) < len(before.body)
    np.testing.assert_array_equal(results(net)[0], numbers[0])


def test_what_is_short_or_of_no_form_stays() -> None:
    def root(b: LoopNestBuilder, i: Expr) -> Expr:
        return b.convert(b.op("sqrt", b.convert(i, "f32")), "i64")

    def half(b: LoopNestBuilder, i: Expr) -> Expr:
        return b.op("shr", i, b.const(1, "i64"))

    for index in (half, root):
        net = _gathered(index)
        before = _nest(net)
        assert ShortenIndices().apply(net).changed == 0
        assert _nest(net) is before


class Resize(nn.Module):
    """Enlarges images."""

    def __init__(self, **how: object) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, **self.how)  # type: ignore[arg-type]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        {"scale_factor": 2}, {"scale_factor": 3}, {"size": (11, 20)}, {"size": (4, 5)}, {"scale_factor": 2, "mode": "bilinear"},
        {"scale_factor": 2, "mode": "bilinear", "align_corners": True}, {"size": (5, 17), "mode": "bilinear"},
        {"scale_factor": 2, "mode": "bicubic"}, {"size": (6, 6), "mode": "nearest-exact"},
    ],
    ids=str,
)  # fmt: skip
def test_images_of_other_sizes_are_those_of_eager_mode(how: dict[str, object], train: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 10)
    found = []
    for net in (dcir.optimize(Resize(**how), strict=True), Resize(**how)):
        y = x.clone().requires_grad_(train)
        with torch.set_grad_enabled(train):
            out = net(y)
            if train:
                (out * torch.linspace(0, 1, out.shape[-1])).sum().backward()
        found.append([out.detach(), *([y.grad] if train else [])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "by", "least", "most"),
    [("shr", 2, -2, 4), ("idiv_floor", 5, -2, 3), ("idiv_floor", 40, -1, 0), ("mod", 7, 0, 6), ("shr", 0, None, None)],
)
def test_bounds_of_a_quotient(op: str, by: int, least: int | None, most: int | None) -> None:
    def index(b: LoopNestBuilder, i: Expr) -> Expr:
        return b.op(op, i - 6, b.const(by, "i64"))

    nest = _nest(_gathered(index))
    (gather,) = (s for s in nest.body if isinstance(s, Gather))
    assert short_values(nest).get(gather.indices[0]) == (None if least is None else (least, most))


def test_a_network_for_all_sizes_has_no_forms_of_one() -> None:
    assert not any(isinstance(p, ShortenIndices) for p in same_at_all_sizes(PASSES))


# Of these a pixel lies on another one, or a little below where product and difference are one multiply-add.
ON_A_PIXEL = [
    (2, 50),
    (2, 62),
    (3, 19),
    (3, 31),
    (3, 75),
    (5, 27),
    (5, 125),
    (6, 38),
    (9, 29),
    (10, 54),
    (15, 69),
    (17, 47),
]


class Spread(nn.Module):
    """Corners of an image over larger ones."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [F.interpolate(x[..., :n, :n], size=(m, m + 1), mode="bilinear") for n, m in ON_A_PIXEL]


@pytest.mark.parametrize("train", [False, True])
def test_neighbours_of_a_pixel_that_lies_on_another_one_are_counted_from_the_same(train: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 17, 17)
    found = []
    for net in (dcir.optimize(Spread(), strict=True, dynamic=False), Spread()):
        y = x.clone().requires_grad_(train)
        with torch.set_grad_enabled(train):
            results = net(y)
        if train:
            sum((r * torch.linspace(0, 1, r.numel()).view(r.shape)).sum() for r in results).backward()
        found.append([*(r.detach() for r in results), *([y.grad] if train else [])])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_an_index_that_depends_on_how_a_product_is_rounded_stays() -> None:
    def at(b: LoopNestBuilder, i: Expr) -> Expr:
        return b.convert(b.op("max", (b.convert(i, "f32") + 0.5) * (3 / 31) - 0.5, b.const(0, "f32")), "i64") + 1

    net = _gathered(at)
    assert ShortenIndices().apply(net).changed == 0
