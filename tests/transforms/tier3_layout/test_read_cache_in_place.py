"""ReadCacheInPlace: a cache is read where it lies, new keys and values beside it; which joins stay, and the numbers of both kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dcir
from dcir.ir.network import Network
from dcir.ir.serialize import decode, encode
from dcir.ir.verify import verify
from dcir.isa import host_isa
from dcir.ops.library.attention import AttentionSpec
from dcir.transforms.tidy.fold_constants import FoldConstants
from dcir.transforms.tier2_fusion.fuse_attention import FuseAttention
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier3_layout.read_cache_in_place import ReadCacheInPlace
from dcir.transforms.tier3_layout.sink_copies import SinkCopies
from tests.harness import check_close, double, run_cpp, run_dace, run_interpreted
from tests.transforms.imported import imported
from tests.transforms.tier3_layout.decoding import grouped, pieces, values, written_out

attention = torch.nn.functional.scaled_dot_product_attention


def decode_step(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor, *mask: Tensor) -> Tensor:
    return attention(q, torch.cat([k, k2 * 2], 2), torch.cat([v, v2 + 1], 2), *mask)


def causal(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    return attention(q, torch.cat([k, k2], 2), torch.cat([v, v2], 2), is_causal=True)


def fused(fn: Any, inputs: list[Tensor]) -> tuple[Network, Any, Any]:
    done = imported(fn, *inputs)
    for before in (FoldConstants(), FuseEpilogues(), FuseAttention(), FuseProducers()):
        before.apply(done.network)
    outcome = ReadCacheInPlace().apply(done.network)
    verify(done.network)
    done.network.validate()
    return done.network, outcome, done


def specs(net: Network) -> list[AttentionSpec]:
    return [op.spec for op in net.ops() if isinstance(op.spec, AttentionSpec)]


CASES = [
    ("one query", decode_step, pieces(1, 127, 1, 64)),
    ("one query, one key before", decode_step, pieces(1, 1, 16)),
    ("one query, one key before, 17", decode_step, pieces(1, 1, 17)),
    ("few queries", decode_step, pieces(3, 18, 3)),
    ("few queries, rows of heads", decode_step, pieces(2, 37, 2, 32, rows=True)),
    ("few queries, d 20", decode_step, pieces(2, 30, 5, 20)),
    ("few queries, causal", causal, pieces(3, 1, 1)),
    ("few queries, mask", decode_step, [*pieces(2, 30, 2), values(2, 1, 2, 32)]),
    ("blocks", decode_step, pieces(40, 150, 40, 64)),
    ("blocks, rows of heads", decode_step, pieces(17, 140, 17, 32, rows=True)),
    ("blocks, d 20", decode_step, pieces(9, 30, 9, 20)),
    ("blocks, causal", causal, pieces(60, 20, 13)),
    ("blocks, mask", decode_step, [*pieces(20, 30, 20), values(2, 3, 20, 50)]),
    ("blocks, mask of keys", decode_step, [*pieces(20, 30, 20), values(2, 1, 1, 50)]),
    ("double", decode_step, pieces(2, 30, 3, dtype=torch.float64)),
    ("bf16", decode_step, pieces(20, 30, 3, dtype=torch.bfloat16)),
    ("written out", written_out, pieces(1, 127, 1, 64)),
    ("written out, more queries", written_out, pieces(20, 40, 20)),
    ("grouped", grouped, pieces(1, 31, 1, 64)),
]


@pytest.mark.parametrize(("fn", "inputs"), [pytest.param(f, i, id=name) for name, f, i in CASES])
def test_two_pieces(fn: Any, inputs: list[Tensor]) -> None:
    """The cache is an operand of the attention, the join is gone, and the numbers are the interpreter's and eager's."""
    net, outcome, done = fused(fn, inputs)
    assert outcome.changed == 1, outcome.refused
    (spec,) = specs(net)
    kept, new = inputs[1].shape[2], inputs[3].shape[2]
    assert spec.first == kept and spec.n == kept + new and len(spec.more) == 2
    (op,) = (op for op in net.ops() if op.spec is spec)
    assert [net.containers[o.data].role for o in net.ins(op)[1:3]] == ["input", "input"]
    joined = 2 * inputs[1].shape[1] * (kept + new) * spec.d * inputs[1].element_size()
    assert all(c.role != "transient" or net.writers(n) for n, c in net.containers.items())
    assert all(net.containers[o.data].nbytes < joined for o in net.ins(op)[1:5])
    assert outcome.saved_bytes > 0
    want, exact = fn(*inputs), fn(*[double(t) for t in inputs])
    for run in (run_interpreted, run_cpp):
        (got,) = run(done, inputs)
        check_close(got, want, exact, what=run.__name__)


@pytest.mark.parametrize("isa", ["avx512", "avx2", "generic"])
@pytest.mark.parametrize(("m", "kept", "new", "d"), [(1, 33, 2, 64), (3, 15, 18, 32), (50, 131, 50, 32), (5, 7, 9, 24)])
def test_vectors(m: int, kept: int, new: int, d: int, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every vector width; pieces that end within a vector and within a block."""
    if isa == "avx512" and host_isa().vectors != "avx512":
        pytest.skip("the processor has narrower vectors")
    monkeypatch.setenv("DCIR_ISA", isa)
    inputs = pieces(m, kept, new, d)
    net, outcome, done = fused(decode_step, inputs)
    assert outcome.changed == 1 and specs(net)[0].more
    (got,) = run_cpp(done, inputs)
    check_close(got, decode_step(*inputs), decode_step(*map(double, inputs)))


@pytest.mark.parametrize("m", [2, 20])
def test_stock_dace(m: int) -> None:
    """The expansion joins the pieces again."""
    inputs = pieces(m, 9, 4)
    _, outcome, done = fused(decode_step, inputs)
    assert outcome.changed == 1
    (got,) = run_dace(done, inputs)
    check_close(got, decode_step(*inputs), decode_step(*map(double, inputs)))


@pytest.mark.parametrize("m", [2, 20])
def test_what_is_not_a_number_stays_in_its_head(m: int) -> None:
    """A NaN in either piece reaches the queries of its own head and no other."""
    inputs = pieces(m, 30, 4)
    inputs[1][0, 1, 29, 3] = math.nan
    inputs[4][1, 2, 0, 5] = math.nan
    _, outcome, done = fused(decode_step, inputs)
    assert outcome.changed == 1
    want = torch.zeros(2, 3, m, 16, dtype=torch.bool)
    want[0, 1], want[1, 2, :, 5] = True, True
    for run in (run_interpreted, run_cpp):
        assert torch.equal(torch.isnan(run(done, inputs)[0]), want)


def test_saved_form() -> None:
    net, _, _ = fused(decode_step, pieces(1, 9, 2))
    (spec,) = specs(net)
    assert decode(encode(spec)) == spec


def test_work_and_bytes() -> None:
    """The pieces' bytes are the joined ones'."""
    net, _, _ = fused(decode_step, pieces(2, 30, 4))
    (spec,) = specs(net)
    keys = 2 * 3 * 34 * 16 * 4
    reads, _ = spec.footprint()
    assert sum(reads) == 2 * 3 * 2 * 16 * 4 + 2 * keys
    assert np.prod([4, 2, 3, 2, 34, 16]) < spec.operations() < np.prod([5, 2, 3, 2, 34, 16])


def apart(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    return attention(q, torch.cat([k, k2 * 2], 2), torch.cat([v[:, :, 1:], v2, v2[:, :, :1]], 2))


def returned(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Any:
    k, v = torch.cat([k, k2], 2), torch.cat([v, v2], 2)
    return attention(q, k, v), k, v


def twice(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    k, v = torch.cat([k, k2], 2), torch.cat([v, v2], 2)
    return attention(q, k, v) + attention(q * 2, k, v)


def computed(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    return attention(q, torch.cat([k * 2, k2 * 3], 2), torch.cat([v * 2, v2 * 3], 2))


def plain(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    return attention(q, torch.cat([k, k2], 2), torch.cat([v, v2], 2))


REFUSED = [
    ("different positions", apart, pieces(2, 9, 4)),
    ("read by others", returned, pieces(2, 9, 4)),
    ("read by others", twice, pieces(2, 9, 4)),
    ("no copy brings", computed, pieces(2, 9, 4)),
    ("no rows in order", written_out, [t.transpose(2, 3).contiguous().transpose(2, 3) for t in pieces(2, 9, 4)]),
]


@pytest.mark.parametrize(("reason", "fn", "inputs"), [pytest.param(*c, id=c[1].__name__) for c in REFUSED])
def test_refused(reason: str, fn: Any, inputs: list[Tensor]) -> None:
    """What cannot be read in pieces stays joined, the report says why, and nothing is left behind."""
    done = imported(fn, *inputs)
    for before in (FoldConstants(), FuseEpilogues(), FuseAttention(), FuseProducers()):
        before.apply(done.network)
    names, was = set(done.network.containers), [op.spec for op in done.network.ops()]
    outcome = ReadCacheInPlace().apply(done.network)
    assert outcome.changed == 0 and any(reason in text for text in outcome.refused), outcome.refused
    assert set(done.network.containers) == names and [op.spec for op in done.network.ops()] == was
    for got, want in zip(run_interpreted(done, inputs), torch.utils._pytree.tree_leaves(fn(*inputs)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_copies_of_what_is_new_sink() -> None:
    """With what is new unchanged, nothing at all is copied."""
    inputs = pieces(1, 31, 1, 64)
    net, outcome, done = fused(plain, inputs)
    assert outcome.changed == 1
    SinkCopies().apply(net)
    verify(net)
    assert [type(op.spec).__name__ for op in net.ops()] == ["AttentionSpec"]
    (got,) = run_cpp(done, inputs)
    check_close(got, plain(*inputs), plain(*map(double, inputs)))


class Decoder(torch.nn.Module):
    """A layer with a cache that the caller owns."""

    def __init__(self, *, update: bool) -> None:
        super().__init__()
        self.project, self.mix, self.update = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32), update

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.project(x).view(2, -1, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = attention(q, torch.cat([past[0], k], 2), torch.cat([past[1], v], 2))
        if self.update:
            past.mul_(0.5)
        return self.mix(y.transpose(1, 2).reshape(2, -1, 32)), torch.stack([k, v])


@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_numbers(update: bool, training: bool) -> None:
    """A whole layer, also where the cache is overwritten in the same call and where a backward needs the joined ones."""
    torch.manual_seed(0)
    m = Decoder(update=update).train(training)
    exact = Decoder(update=update).double()
    exact.load_state_dict(m.state_dict())
    f = dcir.optimize(m)
    for new in (1, 1, 5):
        x, past = values(2, new, 32, seed=new), values(2, 2, 4, 19, 8, seed=new)
        caches = [past.clone(), past.clone(), past.double()]
        with torch.set_grad_enabled(training):
            got, want, ref = (n(t, c) for n, t, c in zip((f, m, exact), (x, x, x.double()), caches, strict=True))
        for g, w, r in zip((*got, caches[0]), (*want, caches[1]), (*ref, caches[2]), strict=True):
            check_close(g.detach(), w.detach(), r.detach())
        if training:
            grads = []
            for n, out in ((f, got), (m, want), (exact, ref)):
                m.zero_grad()
                exact.zero_grad()
                out[0].square().sum().backward()
                grads.append([p.grad.clone() for p in (exact if n is exact else m).parameters() if p.grad is not None])
            for g, w, r in zip(*grads, strict=True):
                check_close(g, w, r, what="gradient")


def test_a_call_needs_less() -> None:
    """The joined cache is not in the arena."""
    m = Decoder(update=False).eval()
    f = dcir.optimize(m)
    with torch.no_grad():
        f(values(2, 1, 32), values(2, 2, 4, 500, 8))
    report = f.dcir.explain().to_json()["graphs"][0]
    assert report["arena_bytes"] < 4 * 2 * 4 * 500 * 8  # one of two joined tensors
