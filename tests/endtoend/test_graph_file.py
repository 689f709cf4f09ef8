"""Graphs through a file: the IR stands on its own."""

from __future__ import annotations

from pathlib import Path

import torch

from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.registry import pages
from tests.harness import example_models, keeping


def test_graph_through_a_file(tmp_path: Path) -> None:
    """A fused network saved and read again is valid and says the same."""
    torch.manual_seed(0)
    module, x = example_models().Bert(size=32, layers=1, heads=2, tokens=50), torch.randint(0, 50, (2, 8))
    backend, kept = keeping()
    with torch.no_grad():
        torch.compile(module.eval(), backend=backend)(x)
    pages()  # the classes of all nodes
    net = kept[0]
    net.save(tmp_path / "network.zip")
    again = Network.load(tmp_path / "network.zip")
    verify(again)
    again.validate()
    assert [op.spec for op in again.ops()] == [op.spec for op in net.ops()]
    assert [again.ins(op) for op in again.ops()] == [net.ins(op) for op in net.ops()]
    assert (again.memory, again.results, again.bytes_moved()) == (net.memory, net.results, net.bytes_moved())
