"""Generated sorts and scans, large enough for several jobs, long runs and blocks of rows."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from dcir.frontends.torch.importer import import_graph
from dcir.ir.serialize import decode, encode
from dcir.ops.library.scan import ScanSpec
from dcir.ops.library.sort import SortSpec
from dcir.ops.samples import rand
from tests.harness import check_close, double, graph_of, run_cpp

ATEN = torch.ops.aten
FEW = rand(6, 5000, dtype=torch.int64, low=0, high=9)

CASES = [
    pytest.param(ATEN.sort.stable, (FEW,), {"stable": True, "dim": 1}, id="sort with ties"),
    pytest.param(ATEN.sort.stable, (FEW,), {"stable": True, "dim": 1, "descending": True}, id="descending with ties"),
    pytest.param(ATEN.sort.stable, (rand(700, 9),), {"stable": True, "dim": 0}, id="sort columns"),
    pytest.param(ATEN.topk.default, (rand(50, 3000), 7), {}, id="few of many"),
    pytest.param(ATEN.topk.default, (rand(3, 3000), 900), {}, id="many of many"),
    pytest.param(ATEN.cumsum.default, (rand(300, 90), 0), {}, id="sum of columns"),
    pytest.param(ATEN.cumsum.default, (rand(90, 300), 1), {}, id="sum of rows"),
    pytest.param(ATEN.cumsum.default, (rand(7, 40, 150), 1), {}, id="sum in the middle"),
    pytest.param(ATEN.cummax.default, (rand(9, 50, 130), 1), {}, id="maxima in the middle"),
    pytest.param(ATEN.logcumsumexp.default, (rand(90, 300), 1), {}, id="exponentials"),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), CASES)
def test_large(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Same numbers as eager."""
    gm, tensors = graph_of(op, args, kwargs)
    wants, exacts = op(*args, **kwargs), op(*double(args), **kwargs)
    if isinstance(wants, torch.Tensor):
        wants, exacts = (wants,), (exacts,)
    for got, want, exact in zip(run_cpp(import_graph(gm), tensors), wants, exacts, strict=True):
        check_close(got, want, exact, factor=8.0)


@pytest.mark.parametrize(
    "spec",
    [
        ScanSpec("max", "f32", "f32", (3,), 9, (9, 1), (9, 1), (9, 1)),
        SortSpec("f32", (3,), 9, 4, True, (9, 1), (4, 1), (4, 1)),
    ],
)
def test_saved_and_read(spec: Any) -> None:
    """The spec survives a file; its bytes are those of its operands."""
    assert decode(json.loads(json.dumps(encode(spec)))) == spec
    assert spec.footprint()[0] == (3 * 9 * 4,) and spec.operations() >= 27
