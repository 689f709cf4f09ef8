"""What a network remembers of its operators' operands is what the edges of its graph say, whatever passes do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dcir
from dcir.ir.network import Network
from dcir.transforms import runner


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.Flatten(),
        nn.LazyLinear(5),
    )


def rows() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16), nn.Softmax(-1))


def check(net: Network) -> None:
    for op in net.ops():
        assert (net.ins(op), net.outs(op)) == net._read_operands(op)
    assert set(net._operands) == set(net.ops())


def preparable(net: Network) -> set[Any]:
    """The definition, word by word: the largest set that depends on nothing but static inputs and shares no container."""
    fixed = net.static | set(net.constants)
    made = {
        op
        for op in net.ops()
        if getattr(op.spec, "kind", "") != "torch"
        and all(
            net.containers[o.data].role == "transient" and o.data not in net.result_containers() for o in net.outs(op)
        )
    }
    while True:
        fine = {
            op
            for op in made
            if all(o.data in fixed or ((w := net.writers(o.data)) and all(x in made for x in w)) for o in net.ins(op))
            and all(w in made for o in net.outs(op) for w in net.writers(o.data))
        }
        if fine == made:
            return made
        made = fine


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("model", "shape"), [(convolutional, (2, 3, 8, 8)), (rows, (2, 5, 16))])
def test_after_every_pass(model, shape, grad, monkeypatch):
    seen = []
    plain = runner.verify

    def verify(net: Network) -> None:
        check(net)
        assert net.preparable() == preparable(net)
        copy = net.clone()
        check(copy)
        assert [copy.ins(op) for op in copy.ops()] == [net.ins(op) for op in net.ops()]
        seen.append(len(net.preparable()))
        plain(net)

    monkeypatch.setattr(runner, "verify", verify)
    x, net = torch.randn(shape), model()
    net(x)
    net.train(grad)
    with torch.set_grad_enabled(grad):
        out = dcir.optimize(net)(x)
        if grad:
            out.sum().backward()
    assert len(seen) > 4
    assert grad or max(seen) > 0
