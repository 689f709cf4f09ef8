"""Operators by PyTorch's libraries: the call has the numbers of the reference, over the windows that it names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dcir.ir.network import contiguous
from dcir.ir.serialize import decode, encode
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.library_call import InLibraries, LibraryCall, refused_by_library
from dcir.ops.library.library_memory import copied_bytes
from dcir.ops.library.operand_types import OperandTypes, alike
from dcir.ops.torch_types import FROM_NAME
from tests.transforms.imported import imported


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def buffer(window: Any, highest: int = 4) -> torch.Tensor:
    """Memory that a window fits in, with numbers in it."""
    shape, strides, dtype = window
    size = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if not FROM_NAME[dtype].is_floating_point:
        return torch.arange(size).remainder(highest).to(FROM_NAME[dtype])
    return rand(size).to(FROM_NAME[dtype])


def numbers(t: torch.Tensor) -> Any:
    return t.view(torch.int16).numpy().view(np.uint16) if t.dtype == torch.bfloat16 else t.numpy()


def check(spec: Any, highest: int = 4) -> None:
    """A call against the reference."""
    assert refused_by_library(spec) is None
    made = LibraryCall(spec)
    ins, outs = [buffer(w, highest) for w in made.ins], [buffer(w) for w in made.outs]
    want = [o.clone() for o in outs]
    made.reference([numbers(t) for t in ins], [numbers(t) for t in want])
    windows = [[torch.as_strided(t, w[0], w[1]) for t, w in zip(*side, strict=True)]
               for side in ((ins, made.ins), (outs, made.outs))]  # fmt: skip
    made.call(*windows)
    for o, w in zip(outs, want, strict=True):
        torch.testing.assert_close(
            o, w, rtol=2e-2 if o.dtype == torch.bfloat16 else 2e-4, atol=2e-2 if o.dtype == torch.bfloat16 else 1e-4
        )
    if made.makes:
        shape, strides, _ = made.outs[0]
        torch.testing.assert_close(made.made(windows[0]), torch.as_strided(outs[0], shape, strides))


def specs(fn: Callable[..., Any], *args: torch.Tensor) -> list[Any]:
    """What of a function libraries have."""
    return [op.spec for op in imported(fn, *args).network.ops() if isinstance(op.spec, InLibraries)]


@pytest.mark.parametrize(("fn", "args"), [
    (torch.mm, (rand(5, 7), rand(7, 3))),
    (torch.mm, (rand(7, 5).t(), rand(3, 7).t())),
    (torch.mm, (rand(5, 7, dtype=torch.bfloat16), rand(7, 3, dtype=torch.bfloat16))),
    (torch.bmm, (rand(4, 5, 7), rand(4, 7, 3))),
    (torch.matmul, (rand(2, 3, 5, 7), rand(7, 4))),
    (lambda a, b: torch.matmul(a.transpose(1, 2), b.transpose(1, 2)), (rand(2, 5, 3, 7), rand(2, 7, 3, 4))),
    (lambda x, w: F.linear(x, w), (rand(2, 5, 7), rand(3, 7))),
    (torch.matmul, (rand(2, 3, 4, 1, 7), rand(2, 3, 1, 7, 5).expand(2, 3, 4, 7, 5))),
    (torch.matmul, (rand(2, 1, 3, 6, 7), rand(2, 1, 1, 7, 5).expand(2, 1, 3, 7, 5))),
])  # fmt: skip
def test_products(fn: Any, args: Any) -> None:
    found = specs(fn, *args)
    assert found
    for spec in found:
        check(spec)


@pytest.mark.parametrize("options", [
    {}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 2}, {"groups": 2}, {"stride": (1, 3), "padding": (0, 2)},
])  # fmt: skip
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_and_their_gradients(options: dict[str, Any], layout: torch.memory_format) -> None:
    x, w = rand(2, 4, 9, 11).to(memory_format=layout), rand(6, 4 // options.get("groups", 1), 3, 3)
    y = F.conv2d(x, w, **options)
    steps = [
        [v, v] if isinstance(v, int) else list(v)
        for v in (options.get("stride", 1), options.get("padding", 0), options.get("dilation", 1))
    ]

    def gradients(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        groups = options.get("groups", 1)
        return torch.ops.aten.convolution_backward(
            g, x, w, None, *steps, False, [0, 0], groups, [True, True, False]
        )[:2]  # fmt: skip

    forward, backward = specs(lambda x, w: F.conv2d(x, w, **options), x, w), specs(gradients, y, x, w)
    assert [s.kind for s in forward] == ["forward"] and {s.kind for s in backward} == {
        "backward_data",
        "backward_weight",
    }
    for spec in (*forward, *backward):
        check(spec)


def test_a_convolution_with_a_bias() -> None:
    found = specs(F.conv1d, rand(2, 3, 9), rand(4, 3, 2), rand(4))
    for spec in found:
        check(spec)


@pytest.mark.parametrize(("fn", "args"), [
    (lambda x: x.sort(-1), (rand(3, 9),)),
    (lambda x: x.sort(0, descending=True), (rand(9, 3),)),
    (lambda x: x.topk(2), (rand(3, 9),)),
    (lambda x: x.cumsum(1), (rand(3, 9),)),
    (lambda x: x.cumprod(0), (rand(3, 9),)),
    (lambda x: x.cummax(1), (rand(3, 9),)),
    (lambda x: x.logcumsumexp(1), (rand(3, 9),)),
])  # fmt: skip
def test_sorts_and_scans(fn: Any, args: Any) -> None:
    found = specs(fn, *args)
    assert found
    for spec in found:
        check(spec)


@pytest.mark.parametrize(("batch", "a", "b"), [
    ((), (7, 1), (3, 1)), ((4,), (35, 7, 1), (21, 1, 7)), ((2, 3), (35, 70, 7, 1), (0, 21, 3, 1)),
])  # fmt: skip
def test_sums_of_half_types_in_float32(batch: Any, a: Any, b: Any) -> None:
    """As partial sums are stored; the last of these lies so that its batch has no one stride."""
    types = OperandTypes("bf16", "bf16", "f32", "f32")
    c = contiguous((*batch, 5, 3))
    check(ContractionSpec(types, batch, 5, 3, 7, a, b, c))


@pytest.mark.parametrize("apart", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_only_what_lies_apart_is_copied(apart: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads side by side in a position's row: the batch has no one stride. What has one is read and written where it lies."""
    shapes = (2, 3, 5, 6), (2, 3, 6, 4), (2, 3, 5, 4)
    at = [(s[1] * s[2] * s[3], s[3], s[1] * s[3], 1) if i in apart else contiguous(s) for i, s in enumerate(shapes)]
    seen: list[Any] = []
    multiply = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *given, out: (seen.append([*given, out]), multiply(*given, out=out))[1])
    spec = ContractionSpec(alike("f32"), (2, 3), 5, 4, 6, *at)
    check(spec)
    assert copied_bytes(spec) == sum(4 * math.prod(shapes[i]) for i in apart)
    assert len(seen) == 1 and all(t.dim() == 3 for t in seen[0])


def test_matrices_that_heads_share_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of each of four heads with the keys of one: a product of four rows."""
    spec = ContractionSpec(alike("f32"), (2, 3, 4), 1, 9, 8, (96, 32, 8, 8, 1), (216, 72, 0, 1, 8), (108, 36, 9, 9, 1))
    seen: list[Any] = []
    multiply = torch.bmm
    monkeypatch.setattr(
        torch, "bmm", lambda *given, **named: (seen.append(given[1].shape), multiply(*given, **named))[1]
    )
    check(spec)
    assert seen == [(6, 8, 9)]


def test_what_a_library_does_not_have_is_refused() -> None:
    product = ContractionSpec(alike("i64"), (), 2, 2, 2, (2, 1), (2, 1), (2, 1))
    refused = refused_by_library(product)
    assert refused is not None and "floating-point numbers of one type" in refused.reason


def test_it_is_saved_and_read() -> None:
    made = LibraryCall(ContractionSpec(alike("f32"), (), 2, 3, 4, (4, 1), (3, 1), (3, 1)))
    assert decode(encode(made)) == made
