"""Repeated keys and values: read once, gradients added up inside, refused where heads differ, and the numbers."""

from __future__ import annotations

import math

import pytest
import torch

from dcir.ops.library.attention import AttentionSpec
from dcir.transforms.tidy.remove_dead_code import RemoveDeadCode
from dcir.transforms.tier2_fusion.share_keys import ShareKeys
from dcir.transforms.tier3_layout.read_cache_in_place import ReadCacheInPlace
from dcir.transforms.tier3_layout.sink_copies import SinkCopies
from tests.harness import run_cpp
from tests.transforms.imported import imported, same_numbers

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def repeat(x: torch.Tensor, times: int) -> torch.Tensor:
    """As transformers writes it out."""
    b, h, n, d = x.shape
    return x[:, :, None].expand(b, h, times, n, d).reshape(b, h * times, n, d)


def shared(q, k, v):
    return FORWARD(q, repeat(k, 3), repeat(v, 3))[0]


def joined(q, k, v):
    """A cache and what is new."""
    new = torch.cat([k, k[:, :, :2] * 2], 2), torch.cat([v, v[:, :, :2] * 2], 2)
    return FORWARD(q, repeat(new[0], 3), repeat(new[1], 3))[0]


def inputs(queries: int = 5) -> tuple[torch.Tensor, ...]:
    return rand(2, 6, queries, 16), rand(2, 2, 9, 16, seed=1), rand(2, 2, 9, 16, seed=2)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("fn", [shared, joined], ids=lambda f: f.__name__)
def test_repeated_keys_are_read_once(fn, queries):
    done = imported(fn, *inputs(queries))
    before = done.network.bytes_moved()
    outcome = ShareKeys().apply(done.network)
    (spec,) = (op.spec for op in done.network.ops() if isinstance(op.spec, AttentionSpec))
    assert outcome.changed and spec.group == 3
    assert outcome.saved_bytes == before - done.network.bytes_moved() > 0
    same_numbers(fn, *inputs(queries), passes=(ShareKeys(), RemoveDeadCode(), ReadCacheInPlace()))


def gradients(do, q, k, v):
    """Forward and backward through repeated keys, as autograd writes it."""
    keys, values = repeat(k, 3), repeat(v, 3)
    o, lse = FORWARD(q, keys, values)
    dq, dk, dv = BACKWARD(do, q, keys, values, o, lse, 0.0, False)
    return dq, *(g.view(2, 2, 3, 9, 16).sum(2) for g in (dk, dv))


def test_gradients_are_sums_over_the_group():
    given = (rand(2, 6, 5, 16, seed=4), *inputs())
    done = imported(gradients, *given)
    assert ShareKeys().apply(done.network).changed == 2
    assert [op.spec.kind for op in done.network.ops()] == ["attention", "attention_backward"]
    same_numbers(gradients, *given, passes=(ShareKeys(),))


def laid_out_anew(do, q, k, v):
    """Keys come and their gradients go with the heads inside: other strides of the same windows."""
    inside = [x.transpose(1, 2).clone(memory_format=torch.contiguous_format) for x in (k, v)]
    keys, values = (repeat(x.transpose(1, 2).contiguous(), 3) for x in inside)
    o, lse = FORWARD(q, keys, values)
    dq, dk, dv = BACKWARD(do, q, keys, values, o, lse, 0.0, False)
    shared = [g.view(2, 2, 3, 9, 16).sum(2) for g in (dk, dv)]
    return dq, *(g.transpose(1, 2).clone(memory_format=torch.contiguous_format) for g in shared)


def test_windows_of_shared_keys_are_moved():
    """Copies of keys, and of their gradients, become strides of the attention: the windows have the heads that keys have."""
    given = (rand(2, 6, 5, 16, seed=4), *inputs())
    done = imported(laid_out_anew, *given)
    assert ShareKeys().apply(done.network).changed == 2
    SinkCopies().apply(done.network)
    assert [op.spec.kind for op in done.network.ops()] == ["attention", "attention_backward"]
    for op in done.network.ops():
        reads, writes = op.spec.windows()
        for window in [*reads, *writes]:
            assert window.shape[1] == (2 if window.field in ("k", "v") or window.place in (2, 3) else 6)
    same_numbers(laid_out_anew, *given, passes=(ShareKeys(), SinkCopies()))


def of_every_head(do, q, k, v):
    keys, values = repeat(k, 3), repeat(v, 3)
    o, lse = FORWARD(q, keys, values)
    return BACKWARD(do, q, keys, values, o, lse, 0.0, False)


def differently(q, k, v):
    return FORWARD(q, repeat(k, 3), v.repeat(1, 3, 1, 1))[0]


@pytest.mark.parametrize(
    ("fn", "given", "reason"),
    [
        (of_every_head, (rand(2, 6, 5, 16), *inputs()), "gradients of every head are asked for"),
        (differently, inputs(), "keys and values are repeated in different ways"),
    ],
)
def test_refused(fn, given, reason):
    outcome = ShareKeys().apply(imported(fn, *given).network)
    assert reason in outcome.refused
    same_numbers(fn, *given, passes=(ShareKeys(),))


def test_unchanged():
    assert (
        not ShareKeys()
        .apply(imported(lambda q, k: FORWARD(q, k, k)[0], rand(1, 2, 4, 8), rand(1, 2, 4, 8)).network)
        .changed
    )


@pytest.mark.parametrize("low", [-math.inf, torch.finfo(torch.float32).min, torch.finfo(torch.bfloat16).min])
@pytest.mark.parametrize("queries", [1, 60])
@pytest.mark.parametrize("every", [False, True], ids=["one mask", "masks of queries"])
def test_what_a_mask_hides_is_not_read(queries, every, low):
    """A static cache holds whatever it holds behind what was written; all numbers are those of the keys that are seen."""
    n, used = 420, 130
    q, k, v = rand(1, 2, queries, 16), rand(1, 2, n, 16, seed=1), rand(1, 2, n, 16, seed=2)
    mask = torch.zeros(queries if every else 1, n)
    mask[:, used:] = low
    mask[0, 7] = low
    mask = mask.expand(queries, n) if not every else mask

    def fn(q, k, v, mask):
        return FORWARD(q, k, v, attn_mask=mask)

    o, lse = fn(q.double(), k.double(), v.double(), mask.double())
    k[:, :, 300:], v[:, :, 300:] = math.nan, math.nan
    got, logs = run_cpp(imported(fn, q, k, v, mask), [q, k, v, mask])
    torch.testing.assert_close(got.double(), o, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logs.double(), lse.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 3, 60])
@pytest.mark.parametrize("least", [torch.finfo(torch.float32).min, torch.finfo(torch.bfloat16).min, -1e30])
def test_rows_that_see_nothing_but_the_least_number(least, queries, causal):
    """The mean of all values, as in PyTorch, for these rows alone; padding may be before what is seen, and behind it."""
    n = 400
    q, k, v = rand(1, 2, queries, 16), rand(1, 2, n, 16, seed=1), rand(1, 2, n, 16, seed=2)
    mask = torch.full((queries, n), least)
    mask[1:, 170:200] = 0
    mask[2:, 390:] = -math.inf
    mask[3:, :3] = 0

    def fn(q, k, v, mask):
        return FORWARD(q, k, v, attn_mask=mask, is_causal=causal)

    scores = q.double() @ k.double().transpose(-1, -2) / 4
    if causal:
        scores = scores.masked_fill(torch.ones(queries, n).tril().logical_not(), -math.inf)
    # As rows of f32 are: what is added to the least number is lost.
    want = torch.softmax((scores.float() + mask).double(), -1) @ v.double()
    got, _ = run_cpp(imported(fn, q, k, v, mask), [q, k, v, mask])
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
    if not causal:
        torch.testing.assert_close(got[:, :, 0], v.mean(2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("queries", [1, 60])
def test_rows_that_see_nothing(queries):
    """Zeros, as PyTorch has them, whether or not the rows beside them see something."""
    q, k, v = rand(1, 2, queries, 16), rand(1, 2, 400, 16, seed=1), rand(1, 2, 400, 16, seed=2)
    mask = torch.full((queries, 400), -math.inf)
    mask[1:, 5:390] = 0

    def fn(q, k, v, mask):
        return FORWARD(q, k, v, attn_mask=mask)

    want, (got, _) = fn(q, k, v, mask)[0], run_cpp(imported(fn, q, k, v, mask), [q, k, v, mask])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert not got[:, :, 0].any()
