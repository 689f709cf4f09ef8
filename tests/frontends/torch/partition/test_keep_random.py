"""Random operators under activation checkpointing: drawn once, kept as masks, and what eager mode computes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import dcir
from dcir.frontends.torch import ahead_of_time
from dcir.frontends.torch.partition.keep_random import keep_random

pytestmark = pytest.mark.in_turn(2)

aten = torch.ops.aten
Part = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def _noise(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    return F.gelu(y + 0.1 * torch.randn_like(y)) * torch.bernoulli(torch.full_like(y, 0.7))


PARTS: dict[str, Part] = {
    "dropout": lambda layer, x: F.gelu(F.dropout(layer(x), 0.3)),
    "noise": _noise,
    "attention": lambda layer, x: F.scaled_dot_product_attention(layer(x)[None], x[None], x[None], dropout_p=0.2)[0],
    "twice": lambda layer, x: F.dropout(layer(F.dropout(x, 0.5)), 0.1).tanh(),
}


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op is aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE


_CONTEXTS = functools.partial(create_selective_checkpoint_contexts, _policy)


class Checkpointed(nn.Module):
    """Layers of which each is computed again in the backward."""

    def __init__(self, part: Part, *, selective: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.part, self.selective = part, selective

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more = {"context_fn": _CONTEXTS} if self.selective else {}
        for layer in self.layers:
            x = x + checkpoint(self.part, layer, x, use_reentrant=False, **more)
        return x


def _step(call: Callable[..., torch.Tensor], net: nn.Module) -> list[torch.Tensor]:
    x = torch.linspace(-1, 1, 24 * 16).reshape(24, 16).requires_grad_()
    torch.manual_seed(3)
    out = call(x)
    out.square().sum().backward()
    return [out.detach(), torch.rand(3), *(t.grad for t in (x, *net.parameters()) if t.grad is not None)]


CASES = [(name, selective, {}) for name in PARTS for selective in (False, True)]
CASES += [("dropout", False, {"memory_limit": "64KB"}), ("noise", False, {"dynamic": True})]


@pytest.mark.parametrize(("name", "selective", "options"), CASES, ids=str)
def test_it_computes_what_eager_mode_computes(name: str, selective: bool, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net = Checkpointed(PARTS[name], selective=selective)
    exact = copy.deepcopy(net)
    want = _step(exact, exact)
    fast = dcir.optimize(net, **options)
    got = _step(fast, net)
    assert {g.kind for g in fast.dcir.explain().graphs} == {"forward", "backward"}
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def _graphs(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[fx.GraphModule, fx.GraphModule]:
    found = []
    cut = ahead_of_time._partition

    def seen(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        found.append(cut(joint, *args, **kwargs))
        return found[-1]

    monkeypatch.setattr(ahead_of_time, "_partition", seen)
    net = Checkpointed(PARTS[name])
    _step(dcir.optimize(net), net)
    return found[-1]


def test_of_dropout_the_mask_is_kept_and_nothing_drawn_in_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, backward = _graphs(monkeypatch, "dropout")
    (output,) = forward.graph.find_nodes(op="output")
    kept = [n.meta["val"] for n in output.args[0][1:] if isinstance(n, fx.Node)]
    assert sum(t.dtype is torch.bool for t in kept) == 2
    assert sum(t.shape == (24, 16) and t.dtype is torch.float32 for t in kept) == 2  # what each layer begins with
    assert not backward.graph.find_nodes(op="call_function", target=aten.native_dropout.default)


def test_without_checkpoints_nothing_is_changed() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    drawn = graph.call_function(aten.native_dropout.default, (x, 0.5, True))
    graph.output((drawn,))
    module = fx.GraphModule(nn.Module(), graph)
    assert keep_random(module) == 0
    assert "recompute" not in drawn.meta
