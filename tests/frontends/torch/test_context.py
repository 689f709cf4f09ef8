"""What capture says of the graphs it hands over."""

import pytest
import torch
from torch import nn

from dcir.driver.compile import compiling
from dcir.driver.session import Session
from dcir.frontends.torch.capture import dynamo_backend
from dcir.frontends.torch.context import GraphContext
from dcir.options import Options


@pytest.fixture
def watched():
    """A backend for torch.compile, and the contexts of the graphs that it compiles."""
    torch._dynamo.reset()
    contexts: list[GraphContext] = []
    compile_graph = compiling(Session(Options.make()))

    def compiled(gm, context):
        contexts.append(context)
        return compile_graph(gm, context)

    return dynamo_backend(compiled), contexts


def test_a_forward_and_its_backward(watched):
    backend, contexts = watched
    net = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))
    torch.compile(net, backend=backend)(torch.randn(5, 6)).sum().backward()
    forward, backward = contexts
    assert (forward.kind, backward.kind) == ("forward", "backward")
    assert forward.pair == backward.pair is not None
    assert forward.first_saved == 1 and backward.first_saved is None
    assert forward.forward is None and backward.forward is not None
    # What is donated lies in buffers of the forward's call, which says where its results lie.
    assert backward.donated
    assert set(backward.donated.values()) <= set(backward.forward.parts.values())


def test_inference_knows_parameters_and_what_is_written(watched):
    backend, contexts = watched

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen.add_(x.sum(0))
            return self.linear(x)

    with torch.no_grad():
        torch.compile(Counts(), backend=backend)(torch.ones(2, 4))
    (context,) = contexts
    assert context.kind == "inference" and context.pair is not None
    assert len(context.static) == 2  # weight and bias; the buffer changes with every call
    assert len(context.updates) == 1 and not context.static & set(context.updates.values())


def test_sizes_and_remarks(watched):
    backend, contexts = watched
    fast = torch.compile(lambda x: nn.functional.adaptive_avg_pool1d(x.T, 3), backend=backend, dynamic=True)
    for size in (5, 7):
        fast(torch.randn(3, size))
    assert contexts[0].bounds and not contexts[0].sizes  # windows that change with the size
    constant = [c for c in contexts if not c.bounds]
    assert [dict(c.sizes)["x[1]"] for c in constant] == [5, 7]
    assert all("each combination is compiled for itself" in c.remark for c in constant)
