"""Generated scatters, large enough for several jobs: numbers, order, bounds, and what may run in parallel."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from dcir.codegen.compile import compile_network
from dcir.codegen.cpp.kernels.scatter import plan_scatter
from dcir.cost.machine import Machine
from dcir.driver.assemble import assemble
from dcir.errors import IndexOutOfRange
from dcir.frontends.torch.importer import import_graph
from dcir.ir.serialize import decode, encode
from dcir.isa import ISAS
from dcir.ops.library.scatter import ScatterSpec, unambiguous
from dcir.ops.samples import rand
from tests.harness import check_close, double, graph_of, run_cpp, run_interpreted
from tests.on_host import on_host

ATEN = torch.ops.aten


def places(*shape: int, below: int) -> torch.Tensor:
    """Random indices."""
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(3))


LARGE = [
    pytest.param(ATEN.embedding_dense_backward.default,
                 (rand(8, 40, 192), places(8, 40, below=50), 50, -1, False), id="columns in blocks"),
    pytest.param(ATEN.embedding_dense_backward.default,
                 (rand(20000, 3), places(20000, below=70), 70, 5, False), id="rows shared out"),
    pytest.param(ATEN.scatter_add.default,
                 (rand(64, 30), 1, places(64, 400, below=30), rand(64, 400, seed=1)), id="every row"),
    pytest.param(ATEN.scatter_add.default,
                 (rand(300), 0, places(30000, below=300), rand(30000, seed=1)), id="one dimension"),
    pytest.param(ATEN.index_put.default,
                 (rand(20, 30, 40), [places(400, below=20), None, places(400, below=40)], rand(400, 30, seed=1), True),
                 id="two indices apart"),
    pytest.param(ATEN.index_add.default,
                 (rand(33, 50, 17), 1, places(90, below=50), rand(33, 90, 17, seed=1)), id="middle"),
    pytest.param(ATEN.scatter_reduce.two,
                 (rand(40, 50), 0, places(500, 50, below=40), rand(500, 50, seed=1), "amax"), id="maximum"),
    pytest.param(ATEN.scatter_reduce.two,
                 (rand(301, 7), 0, places(5003, 7, below=301), rand(5003, 7, seed=1), "amin"), id="few columns"),
    pytest.param(ATEN.index_put.default,
                 (rand(301, 3), [places(9001, below=602) - 301], rand(9001, 3, seed=1), True), id="from the end"),
    pytest.param(ATEN.index_add.default,
                 (rand(301), 0, places(20011, 2, below=301).int()[:, 1], rand(20011, seed=1)), id="every other index"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "args"), LARGE)
def test_large(op: Any, args: tuple[Any, ...]) -> None:
    """Same numbers as eager, and every bit the same for one thread, for several, and again."""
    gm, tensors = graph_of(op, args, {})
    done = import_graph(gm)
    runs = [assemble(done, compile_network(on_host(done.network, n))) for n in (1, 2, 3)]
    first, *others = [run(list(tensors))[0] for run in (*runs, runs[-1])]
    check_close(first, op(*args), op(*double(args)), factor=8.0)
    assert all(torch.equal(first, other) for other in others)


def test_of_several_writes_the_last_stays() -> None:
    """Whatever the number of threads; in eager torch it is any of them."""
    x, index, source = rand(30, 11), places(20011, below=330), rand(20011, seed=1)
    want = x.flatten().numpy().copy()
    for at, value in zip(index.tolist(), source.numpy(), strict=True):
        want[at] = value
    gm, tensors = graph_of(ATEN.put.default, (x, index, source, False), {})
    done = import_graph(gm)
    for n in (1, 2, 3):
        (got,) = assemble(done, compile_network(on_host(done.network, n)))(list(tensors))
        assert torch.equal(got.flatten(), torch.from_numpy(want))


@pytest.mark.parametrize("run", [run_cpp, run_interpreted])
@pytest.mark.parametrize("index", [6, -1])
def test_out_of_range(run: Any, index: int) -> None:
    """A bad index is an error, not a write."""
    gm, tensors = graph_of(ATEN.scatter_add.default, (rand(6), 0, torch.tensor([0, 3]), rand(2)), {})
    tensors[1] = torch.tensor([0, index])
    with pytest.raises(IndexOutOfRange):
        run(import_graph(gm), tensors)


SPEC = ScatterSpec(
    "add", "f32", (50, 256), None, 0, (256, 1), (4096, 256), (0, 1), (256, 1), ((1, 0),), ("i64",), (50,), (256,), False
)


def test_parallel_only_where_addresses_differ() -> None:
    """Columns are dealt to jobs; where two indices may give one address, everything stays in order."""
    machine = Machine(ISAS["avx2"], 4)
    assert unambiguous(SPEC)
    assert plan_scatter(SPEC, machine).phases[-1].jobs != 1
    overlapping = replace(SPEC, index_steps=(128,))
    assert not unambiguous(overlapping)
    assert plan_scatter(overlapping, machine).phases[-1].jobs == 1
    assert plan_scatter(replace(SPEC, dims=(4, 256)), machine).phases[-1].jobs == 1  # too little to share out


def test_saved_and_read() -> None:
    """The spec survives a file."""
    assert decode(json.loads(json.dumps(encode(SPEC)))) == SPEC


def test_work() -> None:
    """Bytes and operations are exact."""
    reads, writes = SPEC.footprint()
    assert reads == (4096 * 256 * 4, 4096 * 8) and writes == (50 * 256 * 4,)
    assert SPEC.operations() == 4096 * 256 and replace(SPEC, op="set").operations() == 0


def test_filled_base_is_not_read() -> None:
    """A scatter into fresh zeros starts from the number."""

    def add(index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return ATEN.scatter_add.default(torch.zeros(5), 0, index, source)

    gm = torch.fx.experimental.proxy_tensor.make_fx(add, tracing_mode="fake")(torch.tensor([1, 1]), rand(2))
    done = import_graph(gm)
    [spec] = [op.spec for op in done.network.ops() if isinstance(op.spec, ScatterSpec)]
    assert spec.base is None and spec.fill == 0
    assert torch.equal(run_interpreted(done, [torch.tensor([1, 1]), torch.ones(2)])[0], torch.tensor([0.0, 2, 0, 0, 0]))
