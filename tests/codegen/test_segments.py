"""Generated lists and folds, large enough for several jobs: numbers, order, and the same bits for any number of threads."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from dcir.codegen.compile import compile_network
from dcir.codegen.cpp.kernels.group import plan_group
from dcir.codegen.cpp.kernels.segments import plan_segments
from dcir.cost.machine import Machine
from dcir.driver.assemble import assemble
from dcir.errors import IndexOutOfRange
from dcir.frontends.torch.importer import Imported
from dcir.ir.network import Network, Operand, Result
from dcir.ir.serialize import decode, encode
from dcir.isa import ISAS
from dcir.ops.library.segments import GroupSpec, SegmentSpec
from dcir.transforms.tier2_fusion.fuse_segments import FuseSegments
from dcir.transforms.tier2_fusion.group_scatters import GroupScatters
from tests.harness import check_close
from tests.on_host import on_host
from tests.transforms.imported import imported


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def places(*shape: int, below: int) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(3))


def star(n: int, below: int) -> torch.Tensor:
    """Two places that nearly all points go to, and a few others."""
    index = places(n, below=below)
    index[: n // 2], index[n // 2 : n - 99] = 7, below - 1
    return index


def mean(x: Any, source: Any, target: Any) -> Any:
    total = torch.zeros_like(x).index_add(0, target, x[source])
    return total / torch.zeros(len(x)).to(x).index_add(0, target, torch.ones(len(target)).to(x)).clamp(min=1)[:, None]


LARGE: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "mean": (mean, (rand(5000, 40), places(20000, below=5000), places(20000, below=5000))),
    "few places with nearly all points": (mean, (rand(5000, 72), places(20000, below=5000), star(20000, 5000))),
    "maximum in bf16": (
        lambda x, i, y: torch.scatter_reduce(x, 0, i[:, None].expand(9000, 33), y, "amax"),
        (rand(700, 33).bfloat16(), places(9000, below=700), rand(9000, 33).bfloat16())),
    "two indices, columns between them": (
        lambda x, i, j, y: torch.ops.aten.index_put.default(x, [i, None, j], y, True),
        (rand(20, 12, 30), places(9000, below=20), places(9000, below=30), rand(9000, 12))),
    "look-ups of sentences, padded": (
        lambda g, i: torch.ops.aten.embedding_dense_backward.default(g, i, 900, 5, False),
        (rand(64, 100, 24), places(64, 100, below=900))),
    "whole numbers": (
        lambda i, y: torch.zeros(700, 9, dtype=torch.int64).index_add(0, i, y),
        (places(9000, below=700), places(9000, 9, below=99))),
}  # fmt: skip


@pytest.mark.parametrize("case", LARGE)
def test_large(case: str) -> None:
    """As near to float64 as eager, and every bit the same for one thread, for three, and again."""
    fn, args = LARGE[case]
    done = imported(fn, *args)
    assert GroupScatters(stored=True).apply(done.network).changed
    FuseSegments().apply(done.network)
    runs = [assemble(done, compile_network(on_host(done.network, n))) for n in (1, 3)]
    first, *others = [run(list(args))[0] for run in (*runs, runs[-1])]
    exact = fn(*(a.double() if a.is_floating_point() else a for a in args))
    check_close(first, fn(*args), exact, what=case)
    for other in others:
        assert torch.equal(first, other)


def specs(case: str) -> list[Any]:
    done = imported(LARGE[case][0], *LARGE[case][1])
    GroupScatters(stored=True).apply(done.network)
    return [op.spec for op in done.network.ops() if isinstance(op.spec, GroupSpec | SegmentSpec)]


def test_saved_and_read() -> None:
    """The specs survive a file."""
    for spec in specs("mean"):
        assert decode(json.loads(json.dumps(encode(spec)))) == spec


def test_work() -> None:
    """Bytes and operations are exact."""
    group, rows, _ = specs("mean")
    assert group.footprint() == ((20000 * 8,), (5001 * 4, 20000 * 4)) and group.operations() == 45000
    assert rows.footprint() == ((5001 * 4, 20000 * 4, 20000 * 40 * 4), (5000 * 40 * 4,)) and rows.operations() == 800000


def test_a_list_from_elsewhere_leads_nowhere() -> None:
    """A fold alone, as parts of graphs are tried: numbers that list no points are an error, not a read behind an operand."""
    net = Network()
    spec = specs("whole numbers")[1]
    shapes = (((701,), "i32"), ((9000,), "i32"), ((9000, 9), "i64"))
    ins = [Operand(net.add_container(shape, dtype, "input")) for shape, dtype in shapes]
    out = net.add_container((700, 9), "i64")
    net.add_op(spec, ins, [Operand(out)])
    net.promote(out)
    net.results.append(Result(out, (700, 9), (9, 1), 0, "i64"))
    run = assemble(Imported(net, {}, [("result", 0)]), compile_network(on_host(net, 2)))
    starts, order = torch.arange(701, dtype=torch.int32) * 30, torch.full((9000,), 9000, dtype=torch.int32)
    with pytest.raises(IndexOutOfRange):
        run([starts, order, torch.ones(9000, 9, dtype=torch.int64)])


def test_what_is_shared_out() -> None:
    """Groups are dealt to jobs, and the columns of large groups; what is small stays with one thread."""
    group, rows, _ = specs("few places with nearly all points")
    assert [p.jobs for p in plan_segments(rows, Machine(ISAS["avx2"], 2)).phases] == [16, 2]
    assert [p.jobs for p in plan_segments(rows, Machine(ISAS["avx2"], 1)).phases] == [1]
    assert [p.jobs for p in plan_group(group, Machine(ISAS["avx2"], 4)).phases] == [4, 2, 2, 4]
    # A table of many more rows than there are points has no counters for every thread.
    assert plan_group(replace(group, extents=(1 << 20,)), Machine(ISAS["avx2"], 64)).scratch < 5 << 20
