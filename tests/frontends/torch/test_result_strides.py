"""Results of an imported graph: torch's strides exactly, and no copy where torch returns a view of another result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dcir.frontends.torch.importer import import_graph
from tests.harness import run_interpreted

CASES: dict[str, Callable[[Any], Any]] = {
    "unbind of a result": lambda x: ((x * 2).view(3, 4, 5).unbind(1), x),
    "split of a result": lambda x: (x * 2).split(5, dim=1),
    "expanded result": lambda x: (x * 2)[:, :1].expand(3, 7),
    "view with gaps": lambda x: ((x + 1)[:, ::2], (x * 3).t()),
    "several results": lambda x: torch.ops.aten.max.dim(x, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_strides(name: str) -> None:
    """Strides and values are eager's: a backward graph is compiled for them."""
    fn, x = CASES[name], torch.arange(60, dtype=torch.float32).reshape(3, 20)
    gm = make_fx(fn, tracing_mode="fake")(x)
    want = torch.utils._pytree.tree_leaves(fn(x))
    flat = gm.graph.find_nodes(op="output")[0]
    flat.args = (tuple(torch.utils._pytree.tree_leaves(flat.args[0])),)
    for got, w in zip(run_interpreted(import_graph(gm), [x]), want, strict=True):
        assert got.stride() == w.stride()
        assert torch.equal(got, w)


def test_parts_share_a_container() -> None:
    """Parts of one computed tensor are windows of it, not copies."""
    gm = make_fx(lambda x: tuple((x * 2).view(3, 4, 5).unbind(1)), tracing_mode="fake")(torch.rand(3, 20))
    assert len(import_graph(gm).network.ops()) == 1
