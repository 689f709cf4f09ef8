"""ReadJoinedInPlace: products read a cache where it lies; which joins stay, and the numbers, half types among them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dcir
from dcir.cost.cuda import SETTING, TWIN
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.library_call import LibraryCall
from dcir.transforms.tidy.fold_constants import FoldConstants
from dcir.transforms.tier1_operator.call_libraries import CallLibraries
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier3_layout.read_joined_in_place import ReadJoinedInPlace
from dcir.transforms.tier3_layout.sink_copies import SinkCopies
from tests.harness import check_close, double, run_interpreted
from tests.transforms.imported import imported
from tests.transforms.tier3_layout.decoding import grouped, pieces, values, written_out


def rewritten(fn: Any, inputs: list[Tensor]) -> tuple[Network, Any, Any]:
    done = imported(fn, *inputs)
    for before in (FoldConstants(), FuseProducers()):
        before.apply(done.network)
    outcome = ReadJoinedInPlace().apply(done.network)
    verify(done.network)
    done.network.validate()
    return done.network, outcome, done


def products(net: Network) -> list[ContractionSpec]:
    return [op.spec for op in net.ops() if isinstance(op.spec, ContractionSpec)]


CASES = [
    ("one query", written_out, pieces(1, 127, 1, 64), 3),
    ("one query, rows of heads", written_out, pieces(1, 60, 1, 32, rows=True), 3),
    ("few queries", written_out, pieces(3, 40, 3), 3),
    ("few queries, many new", written_out, pieces(3, 90, 20), 4),
    ("double", written_out, pieces(1, 30, 3, dtype=torch.float64), 3),
    ("bf16", written_out, pieces(1, 70, 1, dtype=torch.bfloat16), 3),
    ("f16, many new", written_out, pieces(1, 70, 17, dtype=torch.float16), 4),
    ("grouped", grouped, pieces(1, 31, 1, 64), 3),
]


@pytest.mark.parametrize(("fn", "inputs", "count"), [pytest.param(f, i, n, id=name) for name, f, i, n in CASES])
def test_two_pieces(fn: Any, inputs: list[Tensor], count: int) -> None:
    """The cache is an operand of products, the joins are gone, and the numbers are eager's, before calls of libraries and with them."""
    net, outcome, done = rewritten(fn, inputs)
    assert outcome.changed == 2, outcome.refused
    assert len(products(net)) == count and outcome.saved_bytes > 0
    cached = [o.data for op in net.ops() if isinstance(op.spec, ContractionSpec) for o in net.ins(op)]
    assert sum(net.containers[name].role == "input" for name in cached) >= 2
    kept, heads = inputs[1].shape[2], 1 if fn is grouped else inputs[1].shape[1]
    joined = 2 * heads * (kept + inputs[3].shape[2]) * inputs[1].shape[3]
    assert all(c.size < joined for c in net.containers.values() if c.role == "transient")
    assert all(c.role != "transient" or net.writers(n) for n, c in net.containers.items())
    want, exact = fn(*inputs), fn(*[double(t) for t in inputs])
    (got,) = run_interpreted(done, inputs)
    check_close(got, want, exact)
    SinkCopies().apply(net)
    CallLibraries().apply(net)
    verify(net)
    assert sum(isinstance(op.spec, LibraryCall) for op in net.ops()) == count
    (got,) = run_interpreted(done, inputs)
    check_close(got, want, exact)


def test_sums_of_half_types_are_rounded_once() -> None:
    """Partial sums are kept in float32 until both are there."""
    net, outcome, _ = rewritten(written_out, pieces(1, 70, 1, dtype=torch.bfloat16))
    assert outcome.changed == 2
    types = [p.types for p in products(net)]
    assert [t.c for t in types] == ["bf16", "bf16", "f32"] and all(t.a == t.b == "bf16" for t in types)


def apart(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    return q @ torch.cat([k * 2, k2], 2).transpose(-1, -2)


def returned(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Any:
    k = torch.cat([k, k2], 2)
    return q @ k.transpose(-1, -2), k


def twice(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    k = torch.cat([k, k2], 2)
    return q @ k.transpose(-1, -2) + (q * 2) @ k.transpose(-1, -2)


def tall(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    return q @ torch.cat([k, k2], 2).transpose(-1, -2)


REFUSED = [
    ("no copy brings", apart, pieces(2, 9, 4)),
    ("read by others", returned, pieces(2, 9, 4)),
    ("read by others", twice, pieces(2, 9, 4)),
    ("cost more than the copy", tall, pieces(40, 9, 4)),
]


@pytest.mark.parametrize(("reason", "fn", "inputs"), [pytest.param(*c, id=c[1].__name__) for c in REFUSED])
def test_refused(reason: str, fn: Any, inputs: list[Tensor]) -> None:
    """What cannot be read in pieces stays joined, the report says why, and nothing is left behind."""
    done = imported(fn, *inputs)
    for before in (FoldConstants(), FuseProducers()):
        before.apply(done.network)
    names, was = set(done.network.containers), [op.spec for op in done.network.ops()]
    outcome = ReadJoinedInPlace().apply(done.network)
    assert outcome.changed == 0 and any(reason in text for text in outcome.refused), outcome.refused
    assert set(done.network.containers) == names and [op.spec for op in done.network.ops()] == was


def test_unchanged() -> None:
    """A product of what is not joined is none of its business."""
    net, outcome, _ = rewritten(lambda q, k: q @ k.transpose(-1, -2), pieces(2, 9, 4)[:2])
    assert not outcome.changed and not outcome.refused and len(products(net)) == 1


class Decoder(nn.Module):
    """A layer with a cache that the caller owns, and perhaps changes in the call."""

    def __init__(self, *, update: bool) -> None:
        super().__init__()
        self.project, self.mix, self.update = nn.Linear(32, 96), nn.Linear(32, 32), update

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.project(x).view(2, -1, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        keys, both = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = torch.softmax(q @ keys.transpose(-1, -2), -1) @ both
        if self.update:
            past.mul_(0.5)
        return self.mix(y.transpose(1, 2).reshape(2, -1, 32)), torch.stack([k, v])


@pytest.mark.parametrize("update", [False, True])
def test_numbers(update: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole layer on the target for GPUs, also where the cache is overwritten in the same call: it is read before."""
    monkeypatch.setenv(SETTING, TWIN)
    torch._dynamo.reset()
    torch.manual_seed(0)
    m = Decoder(update=update).eval()
    exact = copy.deepcopy(m).double()
    f = dcir.optimize(m, target="cuda")
    x, past = values(2, 1, 32), values(2, 2, 4, 50, 8)
    for _ in range(2):
        caches = [past.clone(), past.clone(), past.double()]
        with torch.no_grad():
            got, want, ref = (n(t, c) for n, t, c in zip((f, m, exact), (x, x, x.double()), caches, strict=True))
        for g, w, r in zip((*got, caches[0]), (*want, caches[1]), (*ref, caches[2]), strict=True):
            check_close(g, w, r)
    (graph,) = f.dcir.explain().graphs
    assert next(p for p in graph.passes if p.name == "read-joined-in-place").changed == 2
