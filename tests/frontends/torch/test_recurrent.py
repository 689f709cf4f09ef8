"""Recurrent layers are products and loops, for any number of steps."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dcir
from dcir.errors import NotCompiledWarning

pytestmark = pytest.mark.in_turn(3)

CASES: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm two ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm projected": (nn.LSTM, {"proj_size": 3}),
    "lstm dropout": (nn.LSTM, {"num_layers": 2, "dropout": 0.4}),
    "gru": (nn.GRU, {"num_layers": 2}),
    "gru without biases": (nn.GRU, {"bias": False, "bidirectional": True}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu", "batch_first": True}),
}


class Model(nn.Module):
    """What is before and behind the layer is compiled, too."""

    def __init__(self, kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
        super().__init__()
        self.before = nn.Linear(5, 6)
        self.layer = kind(6, 7, **options)
        width = (options.get("proj_size") or 7) * (2 if options.get("bidirectional") else 1)
        self.behind = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        y, states = self.layer(torch.tanh(self.before(x)))
        return self.behind(y).sum() + sum(
            s.square().sum() for s in (states if isinstance(states, tuple) else (states,))
        )


def compare(name: str, steps: int, *, train: bool) -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Model(*CASES[name]).train(train)
    fast = dcir.optimize(model)
    batch_first = CASES[name][1].get("batch_first", False)
    x = torch.randn(*((3, steps) if batch_first else (steps, 3)), 5)
    losses, gradients = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCompiledWarning)
        for m in (model, fast):
            torch.manual_seed(3)  # dropout draws the same in both
            m.zero_grad()
            loss = m(x)
            if train:
                loss.backward()
            losses.append(loss.detach())
            gradients.append([p.grad.clone() for p in m.parameters()] if train else [])
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)
    assert not fast.dcir.explain().uncompiled
    return fast


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CASES)
def test_layers_are_loops(name: str, train: bool) -> None:
    """Whatever the number of steps, the graph is as large, and nothing runs through torch but the dropout's chance."""
    seen = []
    for steps in (4, 70):
        graphs = compare(name, steps, train=train).dcir.explain().graphs
        assert not [op for g in graphs for op, _ in g.fallbacks]
        seen.append([g.operators for g in graphs])
    assert seen[0] == seen[1]


def test_two_steps_are_no_loop() -> None:
    graphs = compare("lstm", 2, train=True).dcir.explain().graphs
    assert not [op for g in graphs for op, _ in g.fallbacks]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_half_types_are_as_exact_as_eager(kind: type[nn.RNNBase], dtype: torch.dtype) -> None:
    """Loops, too; what a step computes between its products is not rounded."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = kind(16, 24).to(dtype)
    exact, fast = copy.deepcopy(layer).double(), dcir.optimize(layer)
    eager = copy.deepcopy(layer)
    x = torch.randn(70, 4, 16).to(dtype)
    errors = []
    for m, f, data in ((exact, exact, x.double()), (eager, eager, x), (layer, fast, x)):
        y = f(data)[0]
        (y * torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype)).sum().backward()
        errors.append([y.detach().double(), *(p.grad.double() for p in m.parameters())])
    of_eager, ours = (
        max(((g - w).abs().max() / w.abs().max()).item() for g, w in zip(got, errors[0], strict=True))
        for got in errors[1:]
    )
    assert ours <= 3 * of_eager and not fast.dcir.explain().fallbacks


@pytest.mark.parametrize("steps", [2, 10])
def test_autocast_decides_the_type(steps: int) -> None:
    """PyTorch's decompositions of a layer forget it."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, x = nn.LSTM(16, 24).eval(), torch.randn(steps, 4, 16)

    def fn(x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    def eager() -> Any:
        try:
            return fn(x)
        except RuntimeError:  # oneDNN has no layers of bf16 for processors without AVX-512
            with torch.backends.mkldnn.flags(enabled=False):
                return copy.deepcopy(layer).bfloat16()(x.bfloat16())

    with torch.no_grad():
        (want, states), (got, others) = eager(), dcir.optimize(fn)(x)
        exact = copy.deepcopy(layer).double()(x.double())[0]
    assert [t.dtype for t in (got, *others)] == [t.dtype for t in (want, *states)] == [torch.bfloat16] * 3
    assert (got - exact).abs().max() <= 3 * (want - exact).abs().max()


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("steps", [3, 70])
@pytest.mark.parametrize("name", ["lstm", "lstm two ways", "lstm dropout"])
def test_the_input_needs_no_gradient(name: str, steps: int, train: bool) -> None:
    """The layer is the first of a network: only its weights have gradients. Once oneDNN's backward lacked its workspace."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    kind, options = CASES[name]
    layer = kind(8, 2, **options).train(train)
    fast = dcir.optimize(layer)
    data = torch.randn(17 * steps * 8).as_strided(
        (17, steps, 8), (1, 17, 17 * steps)
    )  # elements of the batch lie apart
    x = data if options.get("batch_first") else data.transpose(0, 1)
    seen = []
    for m in (layer, fast):
        torch.manual_seed(3)
        m.zero_grad()
        y = m(x)[0]
        (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
        seen.append([y.detach(), *(p.grad.clone() for p in m.parameters())])
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-4)


def test_a_step_of_training_with_dropout_between_layers() -> None:
    torch.manual_seed(0)
    layer = nn.GRU(5, 7, 3, dropout=0.5)
    other = copy.deepcopy(layer)
    x, y = torch.randn(4, 3, 5), torch.randn(4, 3, 7)
    step = dcir.train_step(
        layer, lambda result, y: (result[0] - y).square().mean(), torch.optim.SGD(layer.parameters(), lr=0.1)
    )
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    torch.manual_seed(3)
    got = step(x, y)
    torch.manual_seed(3)
    want = (other(x)[0] - y).square().mean()
    want.backward()
    optimizer.step()
    torch.testing.assert_close(got, want.detach())
    torch.testing.assert_close(list(layer.parameters()), list(other.parameters()))


def test_gradients_pass_a_state_that_is_no_number() -> None:
    """As through ReLU: what is not known to be below 0 lets them pass."""
    torch.manual_seed(0)
    layer = nn.RNN(3, 4, nonlinearity="relu")
    other = copy.deepcopy(layer)
    x = torch.randn(5, 2, 3)
    x[2, 0, 0] = torch.nan
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    dcir.optimize(layer)(a)[0].sum().backward()
    other(b)[0].sum().backward()
    torch.testing.assert_close(a.grad, b.grad, equal_nan=True)
    for p, q in zip(layer.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, equal_nan=True)


def test_a_gradient_of_part_of_the_results() -> None:
    torch._dynamo.reset()
    layer = nn.LSTM(5, 7)
    fast = dcir.optimize(layer)
    x = torch.randn(80, 2, 5, requires_grad=True)
    (want,) = torch.autograd.grad(layer(x)[1][1].sum(), x)
    (got,) = torch.autograd.grad(fast(x)[1][1].sum(), x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", ["lstm two ways", "gru", "relu"])
def test_one_program_for_any_number_of_steps(name: str, train: bool) -> None:
    """The loop's trips are a number that moves."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    kind, options = CASES[name]
    model = kind(5, 7, **{**options, "batch_first": False}).train(train)
    fast = dcir.optimize(model)
    for steps in (80, 90, 7, 100, 33):
        x, seen = torch.randn(steps, 2, 5), []
        for m in (model, fast):
            m.zero_grad()
            with torch.set_grad_enabled(train):
                y, last = m(x)
            loss = y.square().sum() + sum(s.sum() for s in (last if isinstance(last, tuple) else (last,)))
            if train:
                loss.backward()
            seen.append([y.detach(), *(p.grad.clone() for p in m.parameters() if p.grad is not None)])
        torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-4)
    found = fast.dcir.explain()
    assert [bool(g.bounds) for g in found.graphs] == [False] * (1 + train) + [True] * (1 + train)
    assert not found.fallbacks


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_one_program_for_any_length_and_batch(train: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.LSTM(5, 7, batch_first=True)
    fast = dcir.optimize(model)
    for steps, batch in ((80, 2), (90, 3), (7, 6), (100, 5), (33, 17)):
        x, seen = torch.randn(batch, steps, 5), []
        for m in (model, fast):
            m.zero_grad()
            with torch.set_grad_enabled(train):
                y = m(x)[0]
            if train:
                y.square().sum().backward()
            seen.append([y.detach(), *(p.grad.clone() for p in m.parameters() if p.grad is not None)])
        torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-4)
    found = fast.dcir.explain()
    assert [len(g.bounds) for g in found.graphs] == [0] * (1 + train) + [2] * (1 + train)
    assert not found.fallbacks
