"""Large kept values that the backward computes again: which, how far, what it saves, and the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import dcir
from dcir.frontends.torch import ahead_of_time
from dcir.frontends.torch.partition.rematerialize_large import eager_peak, rematerialize_large
from tests.endtoend.follows_eager import follow
from tests.frontends.torch.partition.test_recompute import Moved

pytestmark = pytest.mark.in_turn(3)

Cut = tuple[fx.GraphModule, fx.GraphModule, int]


class Layers(nn.Module):
    """Convolutions with an activation behind a batch normalisation between them."""

    def __init__(self, act: Any = F.relu, depth: int = 6, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(depth))
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = conv(self.act(norm(x)))
        return x


class Mixer(nn.Module):
    """Layer normalisations and GELUs before products, with residual sums."""

    def __init__(self, width: int = 12, *, affine: bool = True) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=affine) for _ in range(4))
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(F.gelu(up(norm(x))))
        return x


@pytest.fixture
def as_far_as_possible(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Values computed again per graph, with no size too small and no price too high."""
    counts: list[int] = []

    def spare(forward: Any, backward: Any, results: int, most: int) -> int:
        counts.append(rematerialize_large(forward, backward, results, 0, worth=0, dearest=float("inf")))
        return counts[-1]

    monkeypatch.setattr(ahead_of_time, "rematerialize_large", spare)
    return counts


def cut(module: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Cut:
    """Forward and backward of a module before values are taken out, and how many results are the caller's."""
    seen: list[Cut] = []

    def watched(forward: Any, backward: Any, results: int, most: int) -> int:
        copies = [fx.GraphModule(g, fx.Graph()) for g in (forward, backward)]
        for made, graph in zip(copies, (forward, backward), strict=True):
            place: dict[fx.Node, fx.Node] = {}
            for node in graph.graph.nodes:
                place[node] = made.graph.node_copy(node, lambda n, p=place: p[n])
            made.recompile()
        seen.append((copies[0], copies[1], results))
        return 0

    with monkeypatch.context() as m:
        m.setattr(ahead_of_time, "rematerialize_large", watched)
        dcir.optimize(module, level=0)(x)
    return seen[0]


def ran(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> list[torch.Tensor]:
    """Gradients for inputs that depend on names alone."""

    def made(n: fx.Node, seed: int) -> torch.Tensor:
        value = n.meta["val"]
        generator = torch.Generator().manual_seed(seed)
        return (torch.rand(value.shape, generator=generator) + 0.5).to(value.dtype)

    places = forward.graph.find_nodes(op="placeholder")
    out = fx.Interpreter(forward).run(*(made(n, i) for i, n in enumerate(places)))
    tangents = [n for n in backward.graph.find_nodes(op="placeholder") if "tangents" in n.name]
    got: list[torch.Tensor] = fx.Interpreter(backward).run(*out[results:], *(made(n, 99) for n in tangents))
    return [g for g in got if g is not None]


def kept(forward: fx.GraphModule, results: int) -> list[tuple[int, ...]]:
    (output,) = forward.graph.find_nodes(op="output")
    return [tuple(n.meta["val"].shape) for n in output.args[0][results:]]


def test_eager_keeps_what_its_backward_reads() -> None:
    """x -> a = x w -> r = relu(a) -> r w: the forward keeps r; the backward's gradients are born one by one."""

    def joint(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Any:
        a = x @ w
        r = a.relu()
        y = r @ w
        gr = g @ w.t()
        gw = r.t() @ g
        ga = torch.ops.aten.threshold_backward(gr, r, 0)
        return y, gw, ga @ w.t()

    from torch.fx.experimental.proxy_tensor import make_fx

    t = torch.randn(8, 8)
    gm = make_fx(joint, tracing_mode="fake")(t, t.clone(), t.clone())
    # At the most r, gr, gw and ga: y is the caller's, a has gone.
    assert eager_peak(gm.graph, 1) == 4 * 8 * 8 * 4


@pytest.mark.parametrize("module", [Layers(), Layers(F.silu), Layers(torch.tanh)], ids=["relu", "silu", "tanh"])
def test_activations_of_norms_are_computed_again(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    forward, backward, results = cut(module, torch.randn(2, 3, 6, 6), monkeypatch)
    before = kept(forward, results)
    want = ran(forward, backward, results)
    done = rematerialize_large(forward, backward, results, 0, worth=0, dearest=9.0)
    after = kept(forward, results)
    assert before.count((2, 8, 6, 6)) - after.count((2, 8, 6, 6)) == done
    # Not what is read first: it would be there at once; nor the last ones, when the peak is elsewhere.
    assert 3 <= done < 6
    for a, b in zip(ran(forward, backward, results), want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4)
    places = [n for n in backward.graph.find_nodes(op="placeholder") if "tangents" not in n.name]
    (output,) = forward.graph.find_nodes(op="output")
    assert after == [tuple(n.meta["val"].shape) for n in places]
    assert len(output.meta["desc"]) == len(output.args[0])


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norms_and_gelus_are_computed_again(affine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    forward, backward, results = cut(Mixer(affine=affine), torch.randn(2, 40, 12), monkeypatch)
    want = ran(forward, backward, results)
    before = kept(forward, results)
    done = rematerialize_large(forward, backward, results, 0, worth=0, dearest=9.0)
    after = kept(forward, results)
    assert done >= 3
    assert before.count((80, 12)) > after.count((80, 12))
    assert before.count((80, 24)) > after.count((80, 24))
    for a, b in zip(ran(forward, backward, results), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_only_as_far_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Layers(depth=6), torch.randn(2, 3, 16, 16)
    counts = []
    for most in (1 << 40, 8 * 16 * 16 * 2 * 4 * 12, 0):
        forward, backward, results = cut(module, x, monkeypatch)
        counts.append(rematerialize_large(forward, backward, results, most, worth=0, dearest=9.0))
    assert counts[0] == 0
    assert 0 < counts[1] < counts[2]


def test_not_for_small_values_nor_at_any_price(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Layers(), torch.randn(2, 3, 6, 6)
    forward, backward, results = cut(module, x, monkeypatch)
    assert rematerialize_large(forward, backward, results, 0, worth=2 * 8 * 6 * 6 * 4 + 1, dearest=9.0) == 0
    assert rematerialize_large(forward, backward, results, 0, worth=0, dearest=0.0) == 0


CASES: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "relu": (Layers(), torch.randn(2, 3, 9, 7)),
    "mish": (Layers(F.mish), torch.randn(2, 3, 9, 7)),
    "layer norm": (Mixer(), torch.randn(3, 20, 12)),
    "no weights": (Mixer(affine=False), torch.randn(3, 20, 12)),
    "odd": (Mixer(13), torch.randn(1, 21, 13)),
    "moved": (Moved(), torch.randn(2, 3, 6, 6)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_numbers(name: str, as_far_as_possible: list[int]) -> None:
    torch.manual_seed(0)
    module, x = CASES[name]
    done = follow(module, {"x": x}, train=True)
    assert not done.wrong
    assert not done.fallbacks
    assert sum(as_far_as_possible) > 0 or name == "moved"


def test_graphs_kept_for_a_second_backward(as_far_as_possible: list[int]) -> None:
    torch.manual_seed(0)
    module, x = Layers(), torch.randn(2, 3, 9, 7)
    fast = dcir.optimize(module)
    y = fast(x).square().mean()
    y.backward(retain_graph=True)
    once = [p.grad.clone() for p in module.parameters()]
    y.backward()
    assert sum(as_far_as_possible) > 0
    for p, g in zip(module.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * g)


def test_half_types(as_far_as_possible: list[int]) -> None:
    torch.manual_seed(0)
    module, x = Mixer(16), torch.randn(4, 20, 16)
    with torch.autocast("cpu", torch.bfloat16):
        want = module(x)
        want.float().square().mean().backward()
        grads = [p.grad for p in module.parameters()]
        module.zero_grad()
        got = dcir.optimize(module)(x)
    got.float().square().mean().backward()
    assert sum(as_far_as_possible) > 0
    torch.testing.assert_close(got.float(), want.float(), rtol=0.05, atol=0.05)
    for p, g in zip(module.parameters(), grads, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=0.1, atol=0.02)


def test_a_network_above_eager_needs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the bytes that the forward keeps, as compiled: nothing forced."""
    torch.manual_seed(0)
    module, x = Layers(depth=6, width=64), torch.randn(4, 3, 32, 32)

    def saved(goal: float) -> int:
        torch._dynamo.reset()
        with monkeypatch.context() as m:
            m.setattr(ahead_of_time, "GOAL", goal)
            fast = dcir.optimize(module)
            fast(x).sum().backward()
        return sum(g.saved_bytes for g in fast.dcir.session.graphs)

    assert saved(0.8) < 0.87 * saved(float(1 << 20))


def test_limits_keep_their_meaning() -> None:
    """Under a limit of memory the plan keeps it, whatever is computed again without one."""
    torch.manual_seed(0)
    module, x = Layers(depth=4), torch.randn(2, 3, 32, 32)
    fast = dcir.optimize(module, memory_limit=2 << 20)
    fast(x).sum().backward()
    assert all(g.partition.planned.peak <= 2 << 20 for g in fast.dcir.session.graphs if g.partition is not None)
