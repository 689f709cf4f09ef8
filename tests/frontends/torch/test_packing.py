"""Packed sequences run through recurrent layers as loops, forward and gradient, and what is no packed sequence fails."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import dcir

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm two ways, two layers": (nn.LSTM, {"bidirectional": True, "num_layers": 2}),
    "lstm with a projection": (nn.LSTM, {"proj_size": 3, "bidirectional": True}),
    "gru": (nn.GRU, {"bidirectional": True}),
    "gru without bias": (nn.GRU, {"bias": False, "num_layers": 2}),
    "tanh": (nn.RNN, {"bidirectional": True}),
    "relu": (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}),
}


class Layer(nn.Module):
    """A layer of packed elements, with states that are given."""

    def __init__(self, kind: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self.layer = kind(5, 7, **options)

    def forward(self, data: Tensor, sizes: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        y, last = self.layer(PackedSequence(data, sizes), state if len(state) > 1 else state[0])
        return (y.data, *(last if isinstance(last, tuple) else (last,)))


def _packed(lengths: list[int]) -> tuple[Tensor, Tensor]:
    packed = pack_padded_sequence(torch.randn(max(lengths), len(lengths), 5), torch.tensor(lengths))
    return packed.data, packed.batch_sizes


def _states(model: Layer, batch: int) -> list[Tensor]:
    layer = model.layer
    places = layer.num_layers * (1 + layer.bidirectional)
    widths = [layer.proj_size or 7, 7] if isinstance(layer, nn.LSTM) else [7]
    return [torch.randn(places, batch, w) for w in widths]


def _seen(model: nn.Module, args: list[Tensor], weights: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Results, and gradients of all that is given and of the parameters."""
    model.zero_grad()
    given = [a.detach().to(dtype).requires_grad_() if a.is_floating_point() else a for a in args]
    results = model(*given)
    sum((r * w.to(dtype)).sum() for r, w in zip(results, weights, strict=True)).backward()
    found = [a.grad for a in given if a.requires_grad] + [p.grad for p in model.parameters()]
    return [*(r.detach() for r in results), *(g for g in found if g is not None)]


def _agree(model: Layer, fast: Any, lengths: list[int]) -> None:
    data, sizes = _packed(lengths)
    args = [data, sizes, *_states(model, len(lengths))]
    weights = [torch.randn_like(r) for r in model(*args)]
    want = _seen(copy.deepcopy(model).double(), args, weights, torch.float64)
    eager, ours = _seen(model, args, weights, torch.float32), _seen(fast, args, weights, torch.float32)
    for w, e, o in zip(want, eager, ours, strict=True):
        error, other = (o - w).abs().max(), (e - w).abs().max()
        assert error <= 4 * other + 1e-6


@pytest.mark.parametrize("name", CASES)
def test_all_layers(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Layer(*CASES[name])
    fast = dcir.optimize(model)
    _agree(model, fast, [6, 4, 4, 1])
    found = fast.dcir.explain()
    assert not found.uncompiled
    assert not [op for g in found.graphs for op, _ in g.fallbacks]


def test_one_program_for_any_lengths() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Layer(nn.LSTM, {})
    fast = dcir.optimize(model)
    for lengths in ([6, 4, 1], [12, 3, 3, 3, 1], [9, 9, 2], [5, 5], [30, 20, 10, 5]):
        _agree(model, fast, lengths)
    assert [bool(g.bounds) for g in fast.dcir.explain().graphs] == [False, False, True, True]


@pytest.mark.parametrize("lengths", [[4], [1, 1, 1], [1]], ids=["one sequence", "one step", "one element"])
def test_smallest(lengths: list[int]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Layer(nn.GRU, {"bidirectional": True})
    fast = dcir.optimize(model)
    _agree(model, fast, lengths)
    assert [g.kind for g in fast.dcir.explain().graphs] == ["forward", "backward"]


@pytest.mark.parametrize("given", [False, True], ids=["sorted", "in any order"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_states_that_nobody_gave(kind: Any, given: bool) -> None:
    """How many sequences there are is in a tensor where they came sorted: a cut, behind which the layer is compiled."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = kind(5, 7)
    fast = dcir.optimize(layer)
    packed = pack_padded_sequence(torch.randn(6, 3, 5), torch.tensor([6, 4, 1]), enforce_sorted=not given)
    with warnings.catch_warnings():
        warnings.simplefilter("error", dcir.errors.NotCompiledWarning)
        (y, *sizes), last = fast(packed)
    (want, *others), final = layer(packed)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(last, final)
    assert all(a is b for a, b in zip(sizes, others, strict=True))
    assert [g.operators > 10 for g in fast.dcir.explain().graphs] == [True]
    assert kind.forward.__module__ == "torch.nn.modules.rnn"


class Tagger(nn.Module):
    """What a user writes: pads, packs, sorts."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 5)
        self.layer = nn.GRU(5, 7, bidirectional=True, batch_first=True)
        self.out = nn.Linear(14, 3)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.table(ids), lengths, batch_first=True, enforce_sorted=False)
        y, h = self.layer(packed)
        padded, _ = pad_packed_sequence(y, batch_first=True)
        return self.out(padded) + self.out(torch.cat([h[0], h[1]], 1))[:, None]


def test_padded_sequences_in_any_order() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Tagger()
    fast = dcir.optimize(model)
    for lengths in ([3, 8, 1], [5, 2, 9], [2, 2, 4], [7, 1, 1]):
        ids, seen = torch.randint(11, (len(lengths), 10)), []
        for m in (model, fast):
            m.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                y = m(ids, torch.tensor(lengths))
            y.square().sum().backward()
            seen.append([y.detach(), *(p.grad.clone() for p in m.parameters())])
        torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-5)
    graphs = fast.dcir.explain().graphs
    assert any(g.operators > 10 for g in graphs) and not [op for g in graphs for op, _ in g.fallbacks]


@pytest.mark.parametrize(
    "sizes", [[3, 2], [3, 2, 2, 1], [2, 3, 1, 1], [4, 2, 1]], ids=["few", "many", "growing", "more than states"]
)
def test_sizes_of_no_packed_sequence(sizes: list[int]) -> None:
    torch._dynamo.reset()
    model = Layer(nn.GRU, {})
    data = torch.randn(7, 5)
    fast = dcir.optimize(model)
    fast(data, torch.tensor([3, 2, 1, 1]), torch.zeros(1, 3, 7))
    with pytest.raises(IndexError):
        fast(data, torch.tensor(sizes), torch.zeros(1, 3, 7))


def test_many_layers_of_a_process() -> None:
    """Each has a frame of its own, whose number of programs is limited by PyTorch."""
    torch._dynamo.reset()
    packed = pack_padded_sequence(torch.randn(3, 2, 5), torch.tensor([3, 2]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", dcir.errors.NotCompiledWarning)
        for width in range(3, 13):
            layer = nn.RNN(5, width, num_layers=2, dropout=width / 20).eval()
            fast = dcir.optimize(layer)
            torch.testing.assert_close(fast(packed)[0].data, layer(packed)[0].data)


def test_a_cut_is_refused_where_all_is_to_be_compiled() -> None:
    torch._dynamo.reset()
    fast = dcir.optimize(nn.GRU(5, 7), strict=True)
    x, lengths = torch.randn(3, 2, 5), torch.tensor([3, 2])
    with pytest.raises(dcir.errors.Unsupported, match="enforce_sorted=False"):
        fast(pack_padded_sequence(x, lengths))
    assert fast(pack_padded_sequence(x, lengths, enforce_sorted=False))[0].data.shape == (5, 7)
