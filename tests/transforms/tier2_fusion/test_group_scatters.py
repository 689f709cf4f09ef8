"""Scatters as lists of points and folds: which are taken apart, which share a list, which are refused and why, and the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dcir.errors import IndexOutOfRange
from dcir.ops.library.scatter import ScatterSpec
from dcir.ops.library.segments import GroupSpec, SegmentSpec
from dcir.ops.registry import pages
from dcir.transforms.tier2_fusion.fuse_segments import FuseSegments
from dcir.transforms.tier2_fusion.group_scatters import GroupScatters
from tests.harness import check_results, expected, fits, graph_of_calls, import_graph, run_cpp, run_interpreted
from tests.on_host import on_host
from tests.transforms.imported import imported, same_numbers

ALL = GroupScatters(min_points=1, min_columns=1, stored=True)
FOLDING = (
    "index_add.default", "scatter_add.default", "scatter.reduce", "scatter_reduce.two", "index_reduce.default",
    "index_put.default", "embedding_dense_backward.default",
)  # fmt: skip


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def places(*shape: int, below: int) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(3))


def kinds(fn: Any, *args: torch.Tensor, how: GroupScatters = ALL) -> list[Any]:
    """The specs after the pass, without loop nests."""
    net = imported(fn, *args).network
    how.apply(net)
    return [op.spec for op in net.ops() if isinstance(op.spec, GroupSpec | SegmentSpec | ScatterSpec)]


def test_changed_scatters_share_a_list() -> None:
    """Rows, an expanded index and short rows, counted in front of all others: one list; another index, another."""

    def fn(x: Any, i: Any, j: Any) -> Any:
        count = torch.zeros(50).index_add(0, i, torch.ones(900))
        rows = torch.zeros(50, 24).index_add(0, i, x + 1)
        more = torch.zeros(50, 24).scatter_add(0, i[:, None].expand(900, 24), x * 2)
        return rows, more, count, torch.zeros(50, 24).index_add(0, j, x.sin())

    args = rand(900, 24), places(900, below=50), places(900, below=49)
    found = kinds(fn, *args, how=GroupScatters())
    assert sum(isinstance(s, GroupSpec) for s in found) == 2 and sum(isinstance(s, SegmentSpec) for s in found) == 4
    (outcome,) = same_numbers(fn, *args, passes=(GroupScatters(),))
    assert outcome.changed == 4


def test_unchanged_writes_and_short_rows() -> None:
    copied = kinds(lambda x, i, y: x.index_copy(0, i, y), rand(9, 4), torch.arange(5), rand(5, 4))
    assert [type(s) for s in copied] == [ScatterSpec]
    for shape, reason in (
        ((20000,), "rows are too short to pay for a list of their points"), ((900, 9), "there are few points"),
        ((900, 24), "rows that lie in memory are read faster in their own order"),
    ):  # fmt: skip
        net = imported(
            lambda x, i, y: x.index_add(0, i, y), rand(9, *shape[1:]), places(shape[0], below=9), rand(*shape)
        ).network
        outcome = GroupScatters().apply(net)
        assert not outcome.changed and outcome.refused[reason] == 1


REFUSED = {
    "every column has indices of its own": (
        lambda x, i, y: x.scatter_add(0, i, y), rand(9, 4), places(7, 4, below=9), rand(7, 4)),
    "it does not reach all of the result": (
        lambda x, i, y: x.scatter_add(0, i[:, None].expand(7, 3), y), rand(9, 4), places(7, below=9), rand(7, 3)),
    "rows are long enough to be shared out by columns": (
        lambda x, i, y: x.index_add(0, i, y), rand(3, 5000), places(7, below=3), rand(7, 5000)),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_refused(reason: str) -> None:
    fn, *args = REFUSED[reason]
    outcome = ALL.apply(imported(fn, *args).network)
    assert not outcome.changed and outcome.refused[reason] == 1


@pytest.mark.parametrize("run", [run_cpp, run_interpreted])
def test_samples_of_the_pages(run: Any) -> None:
    """Every scatter that folds, in all its forms, taken apart: the interpreter's numbers and generated code's are eager's."""
    chosen = [
        (p, s) for p in pages().values() if p.name.removeprefix("aten.") in FOLDING for s in p.samples() if fits(p.overload, s)
    ]  # fmt: skip
    gm, tensors = graph_of_calls([(p.overload, s.args, s.kwargs) for p, s in chosen])
    done = import_graph(gm)
    on_host(done.network)
    folded = sum(isinstance(op.spec, ScatterSpec) and op.spec.op != "set" for op in done.network.ops())
    outcome = ALL.apply(done.network)
    FuseSegments().apply(done.network)
    assert outcome.changed > 20 and outcome.changed + sum(outcome.refused.values()) == folded
    assert set(outcome.refused) <= {"every column has indices of its own", "it does not reach all of the result"}
    flat = iter(run(done, tensors))
    for page, sample in chosen:
        check_results(page, sample, [next(flat) for _ in expected(page, sample)[0]])


@pytest.mark.parametrize("run", [run_cpp, run_interpreted])
@pytest.mark.parametrize("bad", [50, -51])
def test_out_of_range(run: Any, bad: int) -> None:
    """A bad index is an error, not a write; what a gather inside the fold reads is checked too."""

    def fn(x: Any, i: Any, j: Any) -> Any:
        return torch.zeros(50, 24).index_put((i,), x[j], accumulate=True)

    args = [rand(50, 24), places(900, below=50), places(900, below=50)]
    done = imported(fn, *args)
    assert ALL.apply(done.network).changed and FuseSegments().apply(done.network).changed
    for which in (1, 2):
        wrong = [a.clone() for a in args]
        wrong[which][700] = bad
        with pytest.raises(IndexOutOfRange):
            run(done, wrong)
