"""Sizes of 1 share the trace of others where they make no difference, and have one of their own where they do; sizes of 0 always do."""

import itertools

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.fx.experimental import _config

import dcir
from dcir.frontends.torch.shapes import size_one

pytestmark = pytest.mark.in_turn(3)


def linear(x):
    return nn.functional.gelu(x @ torch.ones(5, 6, dtype=x.dtype)) + x.shape[0]


def squeezed(x):
    return x.squeeze(0) * 2


def squeezed_then_summed(x):
    """Of 1 it sums another dimension than of more."""
    return x.squeeze(0).sum(0)


def by_dimensions(x):
    """The number of dimensions is no guard of Dynamo's."""
    return x * 2 if x.squeeze(1).dim() == 3 else x * 3


def by_one(x):
    return x * 2 if x.shape[0] == 1 else x * 3


def by_none(x):
    return x * 2 if x.shape[1] > 0 else x.sum() + 3


def joined(x):
    return torch.cat([x[:, :1] if x.shape[1] else x, x], 1).mean(2)


NETWORKS = [linear, squeezed, squeezed_then_summed, by_dimensions, by_one, by_none, joined]
SIZES = [(3, 4), (2, 6), (1, 7), (5, 1), (1, 1), (2, 0), (7, 9)]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()


def _same(fn, fast, sizes):
    for b, n in sizes:
        x = torch.randn(b, n, 5)
        got, want = fast(x), fn(x.double())
        assert got.shape == want.shape, (b, n)
        torch.testing.assert_close(got, want.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fn", NETWORKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("first", [0, 2, 3, 5])
@torch.no_grad()
def test_equals_eager(fn, first):
    """Whichever sizes the trace sees first."""
    _same(fn, dcir.optimize(fn), SIZES[first:] + SIZES[:first])


def best(x):
    """What torch returns by names."""
    return x.sort(1)[0] + x.max(0)[0] * x.topk(1, 1)[0]


@pytest.mark.parametrize(
    ("fn", "traces"),
    [(linear, 2), (squeezed, 4), (by_one, 4), (best, 2)],
    ids=["linear", "squeezed", "by_one", "best"],
)
@torch.no_grad()
def test_traces(fn, traces):
    _same(fn, dcir.optimize(fn), [(3, 4), (2, 6), (1, 7), (5, 1), (1, 1)])
    assert counters["stats"]["unique_graphs"] == traces


@torch.no_grad()
def test_broadcasts_that_cannot_share():
    """An operand of one row beside one of several is an error in a trace that takes neither for 1."""

    def added(x, y):
        return x + y

    fast = dcir.optimize(added)
    for b, c in ((2, 2), (3, 1), (4, 4), (1, 1), (5, 1)):
        x, y = torch.randn(b, 4), torch.randn(c, 4)
        torch.testing.assert_close(fast(x, y), x + y)
    assert _config.backed_size_oblivious is False


@torch.no_grad()
def test_errors_of_the_user_are_told():
    with pytest.raises(Exception, match="size"):
        dcir.optimize(lambda x, y: x + y)(torch.randn(2, 3), torch.randn(4, 3))
    assert _config.backed_size_oblivious is False


@torch.no_grad()
def test_a_graph_that_breaks(monkeypatch):
    """A break may be due to a size that might be 1, so Dynamo traces again; here it breaks all the same."""
    reasons = []

    def noting(reason):
        reasons.append(reason)
        apart(reason)

    apart = size_one.set_one_apart
    monkeypatch.setattr(size_one, "set_one_apart", noting)

    def attended(x):
        return nn.functional.scaled_dot_product_attention(x * 2, x, x, is_causal=x.shape[2] > 1)

    fast = dcir.optimize(attended)
    for b, n in ((2, 5), (3, 7), (4, 9), (2, 1), (5, 3)):
        x = torch.randn(b, 2, n, 8)
        torch.testing.assert_close(fast(x), attended(x), rtol=1e-5, atol=1e-5)
    assert reasons == ["the graph breaks"]


class _Decoder(nn.Module):
    """One layer of four heads over what was seen before, which the caller keeps."""

    def __init__(self):
        super().__init__()
        self.tokens, self.qkv, self.head = nn.Embedding(50, 128), nn.Linear(128, 384), nn.Linear(128, 50)

    def forward(self, ids, past):
        b, n = ids.shape
        q, k, v = (t.view(b, n, 4, 32).transpose(1, 2) for t in self.qkv(self.tokens(ids)).chunk(3, -1))
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        m = k.shape[2]
        keep = torch.arange(m)[None] <= torch.arange(m - n, m)[:, None]
        a = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.head(a.transpose(1, 2).reshape(b, n, -1)), torch.stack([k, v])


@torch.no_grad()
def test_a_step_is_a_program_of_its_own():
    """Few rows of products read weights; there a size of 1 is a constant."""
    net = _Decoder().eval()
    reference = _Decoder().double().eval()
    reference.load_state_dict(net.state_dict())
    fast = dcir.optimize(net)
    for prompt in (5, 9):
        past, exact = torch.zeros(2, 1, 4, prompt, 32), torch.zeros(2, 1, 4, prompt, 32, dtype=torch.float64)
        ids = torch.randint(0, 50, (1, prompt))
        torch.testing.assert_close(fast(ids, past)[0], reference(ids, exact)[0].float(), rtol=1e-5, atol=1e-5)
    for _ in range(5):
        (got, past), (want, exact) = fast(ids, past), reference(ids, exact)
        torch.testing.assert_close(got, want.float(), rtol=1e-5, atol=1e-5)
        ids = got[:, -1:].argmax(-1)
    bounds = [[(low, high) for _, low, high in g.bounds] for g in fast.dcir.explain().graphs if g.bounds]
    assert sorted(b[0] == (1, 1) for b in bounds) == [False, True]
    assert any("ids[1] 1, " in line for line in str(fast.dcir.explain()).splitlines())


@torch.no_grad()
def test_all_orders_of_small_sizes():
    for sizes in itertools.permutations([(1, 2), (2, 1), (2, 3), (1, 1)]):
        torch._dynamo.reset()
        _same(by_dimensions, dcir.optimize(by_dimensions), sizes)


def _several(a, b, c):
    return a.softmax(-1).sum() * torch.relu(a * 2), b.exp() * 2, c.cumsum(0)


def test_of_too_many_sizes_those_of_one_are_constants():
    """Three sizes move in one program at most."""
    fast = dcir.optimize(_several, dynamic=True)
    for first, *lengths in ((1, 5, 7, 9), (1, 6, 8, 11), (1, 9, 8, 13)):
        given = torch.randn(first, lengths[0]), *map(torch.randn, lengths[1:])
        for got, want in zip(fast(*given), _several(*given), strict=True):
            torch.testing.assert_close(got, want)
    (graph,) = fast.dcir.explain().graphs
    assert next((low, high) for _, low, high in graph.bounds) == (1, 1)


def _repeated(past, new):
    return past[:, :, None].expand(-1, -1, 2, -1, -1) + new


def test_whether_an_input_is_cut_is_not_asked():
    """One that is a part of a longer one and one that is all of it are the same to a graph that reads both by their strides."""
    fast = dcir.optimize(_repeated)
    for whole, length in ((8, 7), (10, 9), (13, 13), (12, 12), (14, 11)):
        past, new = torch.randn(1, 2, whole, 16)[:, :, :length], torch.randn(1, 2, 1, 16)
        torch.testing.assert_close(fast(past, new), _repeated(past, new))
    assert len(fast.dcir.explain().graphs) == 2


def test_a_quotient_that_is_another_one_at_one():
    """Where a batch of 1 divides what was computed before, 16 // 1 is not what 16 // n is elsewhere: lengths share a trace for 1."""
    memory = torch.randn(1, 16, 8)

    def crossed(x):
        heads = (x.shape[0], -1, 2, 4)
        query = (x.unsqueeze(-1) * memory[0, 0]).view(heads).transpose(1, 2)
        keys = memory.view(heads).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(query, keys, keys)

    fast = dcir.optimize(crossed)
    with torch.no_grad():
        for length in (7, 4, 11, 12, 19, 5):
            x = torch.randn(1, length)
            torch.testing.assert_close(fast(x), crossed(x))
    assert len(fast.dcir.explain().graphs) == 2
