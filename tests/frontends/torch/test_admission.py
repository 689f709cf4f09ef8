"""Graphs whose tensors are on several devices: a program runs on one, so PyTorch runs these."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dcir.frontends.torch.admission import check_graph, several_devices
from dcir.ops.reach import on_device


def on(name: str) -> torch.Tensor:
    """A tensor of a device that need not be there."""
    if name == "cpu":
        return torch.empty(3)
    with FakeTensorMode() as mode:
        return FakeTensor(mode, torch.empty(3, device="meta"), torch.device(name))


def test_several_devices_are_named() -> None:
    assert several_devices([on("cuda:0"), on("cpu"), on("cuda:1"), on("cuda:0")]) == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize("names", [(), ("cpu",), ("cuda:0", "cuda:0", "cpu")])
def test_one_device_and_the_processor_are_not_several(names: tuple[str, ...]) -> None:
    assert several_devices(map(on, names)) == []


def test_a_graph_that_moves_to_another_device_is_left_to_torch() -> None:
    graph = fx.Graph()
    for name in ("cuda:0", "cuda:1"):
        node = graph.call_function(torch.relu, ())
        node.meta["example_value"] = on(name)
    graph.output(())
    gm = fx.GraphModule(torch.nn.Module(), graph)
    with on_device("cuda"):
        assert check_graph(gm, []) == "its tensors are on several devices: cuda:0, cuda:1"
    assert check_graph(gm, []) is None
