"""Operators that run through torch, and recurrent networks, which PyTorch's trace sends through one in inference."""

import pytest
import torch
from torch import nn

import dcir
from dcir.errors import FallbackFailed
from dcir.ops.library.torch_call import TorchCall
from tests.harness import check_close

WINDOW = ((2, 2), (2, 1), "f32")


@pytest.mark.parametrize("settings", [{}, {"bidirectional": True, "num_layers": 2, "batch_first": True, "bias": False}])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("train", [False, True])
def test_recurrent(kind, settings, train):
    """Where the user has Dynamo trace recurrent networks, they run natively and give eager's results and gradients."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    module, x = kind(5, 7, **settings), torch.randn(3, 4, 5, requires_grad=train)

    def run(net, x):
        with torch.set_grad_enabled(train):
            y, state = net(x)
            outs = [y, *(state if isinstance(state, tuple) else (state,))]
            if not train:
                return outs
            loss = sum((o * torch.arange(o.numel()).reshape(o.shape).to(o.dtype).cos()).sum() for o in outs)
            return [*outs, *torch.autograd.grad(loss, list(net.parameters()))]

    want = run(module, x)
    with torch._dynamo.config.patch(allow_rnn=True):
        fast = dcir.optimize(module)
        got = run(fast, x)
    assert fast.dcir.explain().graphs and not fast.dcir.explain().fallbacks
    module.double()
    exact = run(module, x.detach().double().requires_grad_(train))
    for i, (g, w, e) in enumerate(zip(got, want, exact, strict=True)):
        check_close(g, w, e, what=f"result {i}")


def test_only_what_is_read_is_asked_for():
    """A result that nobody reads needs no memory, and torch may leave it undefined."""
    call = TorchCall("aten.slogdet.default", (("t", 0),), (), (WINDOW,), (((), (), "f32"),), (1,))
    out = torch.zeros(())
    call.call([torch.eye(2) * 3], [out])
    torch.testing.assert_close(out, torch.tensor(9.0).log())


@pytest.mark.parametrize(
    ("places", "outs", "message"),
    [
        ((2,), 1, "no tensor as result 2"),
        (None, 1, "returned 2 tensors instead of 1"),
        ((0, 1), 1, "2 tensors instead"),
    ],
)
def test_other_results_than_captured(places, outs, message):
    call = TorchCall("aten.slogdet.default", (("t", 0),), (), (WINDOW,), (((), (), "f32"),) * outs, places)
    with pytest.raises(FallbackFailed, match=message):
        call.call([torch.eye(2)], [torch.zeros(())] * outs)


def test_effects_in_training():
    """The check of a solver's result is an effect: AOTAutograd gives the forward one more result for its order."""
    torch._dynamo.reset()

    def fn(x, y):
        return torch.linalg.solve(x @ x.mT + 4 * torch.eye(5), y).transpose(0, 1), x.exp().t()

    x, y = torch.randn(5, 5, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    fast = dcir.optimize(fn)
    for got, want in zip(fast(x, y), fn(x, y), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
        weight = torch.randn(want.shape)
        for g, w in zip(*(torch.autograd.grad((o * weight).sum(), (x, y), allow_unused=True, retain_graph=True)
                          for o in (got, want)), strict=True):  # fmt: skip
            torch.testing.assert_close(torch.zeros_like(g) if w is None else w, g)
    assert not fast.dcir.explain().breaks


@pytest.mark.parametrize("op", [torch.complex, torch.polar])
def test_complex_of_parts(op):
    """Decomposed, they would write to views of a new tensor, which AOTAutograd refuses."""
    torch._dynamo.reset()
    parts = torch.rand(2, 3, 4, requires_grad=True)
    weight = torch.randn(3, 4)
    seen = []
    for fn in (op, dcir.optimize(lambda a, b: op(a, b))):
        out = fn(*parts)
        (gradient,) = torch.autograd.grad((out.real * weight - out.imag).sum(), parts)
        seen.append((out, gradient))
    for got, want in zip(*seen, strict=True):
        torch.testing.assert_close(got, want)
