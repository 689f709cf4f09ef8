"""Tables with sparse gradients: PyTorch looks up, the rest is compiled, and training follows eager mode."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import dcir
from dcir.errors import NotCompiledWarning, Unsupported
from dcir.frontends.torch.sparse_lookups import sparse_lookups, split_off

pytestmark = pytest.mark.in_turn(2)


class Ranking(nn.Module):
    """Two tables and a tower on what they give."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.items = nn.Embedding(40, 8, sparse=True)
        self.words = nn.EmbeddingBag(30, 8, mode="sum", sparse=True)
        self.tower = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.LayerNorm(8))
        self.tied = tied

    def forward(self, item: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        h = self.tower(torch.cat([self.items((item + 3) % 40), self.words(words)], -1))
        return h @ self.items.weight.t() if self.tied else h


def _calls(batches: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [(torch.randint(0, 40, (n,), generator=g), torch.randint(0, 30, (n, 5), generator=g)) for n in batches]


def _trained(call: Callable[..., torch.Tensor], net: Ranking, batches: list[int]) -> list[torch.Tensor]:
    tables = [net.items.weight, net.words.weight]
    sparse = torch.optim.SparseAdam(tables, lr=0.01) if not net.tied else torch.optim.SGD(tables, lr=0.1)
    dense = torch.optim.Adam(net.tower.parameters(), lr=0.01)
    found = []
    for args in _calls(batches):
        sparse.zero_grad()
        dense.zero_grad()
        out = call(*args)
        (out * torch.linspace(0, 1, out.shape[-1])).sum().backward()
        assert net.words.weight.grad.is_sparse
        assert net.items.weight.grad.is_sparse != net.tied
        sparse.step()
        dense.step()
        found.append(out.detach())
    return [*found, *(p.detach() for p in net.parameters())]


@pytest.mark.parametrize("batches", [[6, 6, 6], [6, 9, 4, 11, 6]], ids=["one size", "sizes"])
@pytest.mark.parametrize("tied", [False, True])
def test_training_follows_eager_mode(tied: bool, batches: list[int]) -> None:
    torch.manual_seed(0)
    net = Ranking(tied=tied)
    eager = copy.deepcopy(net)
    want = _trained(eager, eager, batches)
    fast = dcir.optimize(net)
    with pytest.warns(NotCompiledWarning, match="gradient is sparse.*sparse=False"):
        got = _trained(fast, net, batches)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    kinds = {g.kind for g in fast.dcir.explain().graphs}
    assert kinds == {"forward", "backward"}


def test_it_is_an_error_where_all_is_to_be_compiled() -> None:
    fast = dcir.optimize(Ranking(), strict=True)
    with pytest.raises(Unsupported, match="sparse"):
        fast(*_calls([6])[0])


def test_without_gradients_the_look_ups_are_compiled_too() -> None:
    net = Ranking().eval()
    (args,) = _calls([6])
    fast = dcir.optimize(net)
    with torch.no_grad():
        torch.testing.assert_close(fast(*args), net(*args), rtol=1e-5, atol=1e-6)
    (graph,) = fast.dcir.explain().graphs
    assert graph.kind == "inference"


class Clamped(nn.Module):
    """Writes the indices before it looks up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        ids.clamp_(max=9)
        return self.table(ids).sin()


class Frozen(Ranking):
    """Looks up without gradients, and again with them."""

    def forward(self, item: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            fixed = self.items(item)
        return self.tower(torch.cat([fixed, self.words(words)], -1))


class Sampled(Ranking):
    """Draws what it looks up, after other random numbers."""

    def forward(self, item: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(len(item), 8)
        drawn = torch.randint(0, 40, item.shape)
        return self.tower(torch.cat([self.items(drawn) + noise, self.words(words)], -1))


@pytest.mark.parametrize("cls", [Frozen, Sampled])
def test_gradients_and_random_numbers_stay_where_they_are(cls: type[Ranking]) -> None:
    torch.manual_seed(0)
    net = cls()
    eager = copy.deepcopy(net)
    (args,) = _calls([6])
    found = []
    for call, owner in ((dcir.optimize(net), net), (eager, eager)):
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotCompiledWarning)
            out = call(*args)
        (out * torch.linspace(0, 1, 8)).sum().backward()
        found.append((out.detach(), torch.rand(2), owner.items.weight.grad, owner.words.weight.grad.to_dense()))
    for a, b in zip(*found, strict=True):
        assert (a is None) == (b is None) == (cls is Frozen and a is found[0][2])
        if a is not None:
            torch.testing.assert_close(a.to_dense(), b.to_dense(), rtol=1e-4, atol=1e-5)


def test_what_may_be_written_before_is_left_to_pytorch_and_said() -> None:
    torch.manual_seed(0)
    net = Clamped()
    eager = copy.deepcopy(net)
    fast = dcir.optimize(net)
    ids = torch.tensor([3, 40, 7])
    with pytest.warns(NotCompiledWarning, match="sparse"):
        got = fast(ids.clone())
    want = eager(ids.clone())
    got.sum().backward()
    want.sum().backward()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(net.table.weight.grad.to_dense(), eager.table.weight.grad.to_dense())
    assert "sparse" in str(fast.dcir.explain())


def _graph(*steps: Any, indices: Any = lambda graph, ids: ids) -> fx.GraphModule:
    """A graph as Dynamo makes it: look-ups in a table, with steps before them, at indices that are made of its input."""
    graph = fx.Graph()
    ids, table = graph.placeholder("ids"), graph.placeholder("table")
    for place in (ids, table):
        place._dynamo_source = None  # type: ignore[attr-defined]
    ids.meta["example_value"] = torch.arange(3)
    table.meta["example_value"] = torch.randn(5, 2, requires_grad=True)
    for step in steps:
        step(graph, ids)
    rows = graph.call_function(F.embedding, (indices(graph, ids), table, None, None, 2.0, False, True))
    rows.meta["example_value"] = torch.randn(3, 2, requires_grad=True)
    graph.output((graph.call_function(torch.sin, (rows,)),))
    return fx.GraphModule(nn.Module(), graph)


def test_a_graph_is_cut_behind_its_look_ups_and_stays_as_it_was() -> None:
    gm = _graph()
    before = str(gm.graph)
    split = split_off(gm, sparse_lookups(gm))
    assert split is not None
    assert str(gm.graph) == before
    assert [n.target for n in split.first.graph.nodes if n.op == "call_function"] == [F.embedding]
    assert [n.target for n in split.rest.graph.nodes if n.op == "call_function"] == [torch.sin]
    table = torch.randn(5, 2)
    ids = torch.tensor([4, 0, 1])
    torch.testing.assert_close(split.around(split.rest)(ids, table), (table[ids].sin(),))


@pytest.mark.parametrize(
    "step",
    [
        lambda graph, ids: graph.call_method("add_", (ids, 1)),
        lambda graph, ids: graph.call_function(operator.setitem, (ids, 0, 1)),
        lambda graph, ids: graph.call_function(operator.iadd, (ids, 1)),
        lambda graph, ids: graph.call_function(torch.add, (ids, 1), {"out": ids}),
        lambda graph, ids: graph.call_function(torch.relu_, (ids,)),
        lambda graph, ids: graph.call_function(torch._C._set_grad_enabled, (False,)),
    ],
    ids=["method", "setitem", "iadd", "out", "function", "setting"],
)  # fmt: skip
def test_it_is_not_cut_where_something_may_be_written_before(step: Any) -> None:
    gm = _graph(step)
    assert split_off(gm, sparse_lookups(gm)) is None


def test_comparisons_and_calls_of_plain_names_write_nothing() -> None:
    def steps(graph: fx.Graph, ids: fx.Node) -> fx.Node:
        inverted = graph.call_function(operator.invert, (graph.call_method("clamp", (ids, 1)),))
        return graph.call_method("__and__", (inverted, ids))

    gm = _graph(indices=steps)
    assert split_off(gm, sparse_lookups(gm)) is not None


def test_indices_that_are_drawn_stay_where_they_are() -> None:
    gm = _graph(indices=lambda graph, ids: graph.call_function(torch.randint_like, (ids, 5)))
    assert split_off(gm, sparse_lookups(gm)) is None
