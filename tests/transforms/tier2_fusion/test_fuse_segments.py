"""Programs before and after folds: which move in, which stay, which are refused and why, and the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dcir.ir.loop_nest import LoopNest
from dcir.ops.library.segments import SegmentSpec
from dcir.transforms.tidy.remove_dead_code import RemoveDeadCode
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier2_fusion.fuse_segments import FuseSegments
from dcir.transforms.tier2_fusion.group_scatters import GroupScatters
from tests.transforms.imported import imported, same_numbers

GROUP = GroupScatters(min_points=1, min_columns=1, stored=True)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def places(n: int, below: int) -> torch.Tensor:
    return torch.randint(0, below, (n,), generator=torch.Generator().manual_seed(n + below))


def left(fn: Any, *args: torch.Tensor) -> tuple[list[SegmentSpec], list[LoopNest], Any]:
    """Folds and programs after the passes, and what the last one says."""
    net = imported(fn, *args).network
    GROUP.apply(net)
    RemoveDeadCode().apply(net)
    FuseProducers().apply(net)
    outcome = FuseSegments().apply(net)
    specs = [op.spec for op in net.ops()]
    return [s for s in specs if isinstance(s, SegmentSpec)], [s for s in specs if isinstance(s, LoopNest)], outcome


def mean(x: Any, source: Any, target: Any, w: Any) -> Any:
    """Messages with a weight per edge and head, and their mean."""
    messages = (x[source].view(-1, 2, 12) * w[:, :, None]).reshape(-1, 24)
    total = torch.zeros(40, 24).index_add(0, target, messages)
    count = torch.zeros(40).index_add(0, target, torch.ones(300))
    return torch.relu(total / count.clamp(min=1)[:, None])


MEAN = rand(50, 24), places(300, 50), places(300, 40), rand(300, 2)


def test_changed_before_and_after() -> None:
    """The gather, its weight, the counted ones and what follows the folds: no program is left, no message written."""
    folds, programs, outcome = left(mean, *MEAN)
    assert len(folds) == 2 and not programs and outcome.changed == 3
    assert all(max(s.footprint()[1]) <= 40 * 24 * 4 for s in folds)
    assert same_numbers(mean, *MEAN, passes=(GROUP, FuseProducers(), FuseSegments()))[-1].changed == 3


def test_changed_a_value_that_others_read() -> None:
    """A cheap one is computed twice; the folded rows are stored where somebody else reads them too."""

    def fn(x: Any, s: Any, t: Any) -> Any:
        messages = x[s] * 2
        total = torch.zeros(40, 24).index_add(0, t, messages)
        return messages, total, total + 1

    args = rand(50, 24), places(300, 50), places(300, 40)
    folds, programs, _ = left(fn, *args)
    assert len(programs) == 1 and len(folds) == 1 and len(folds[0].finish.outputs) == 2
    same_numbers(fn, *args, passes=(GROUP, FuseSegments()))


def test_unchanged_without_neighbours() -> None:
    folds, _, outcome = left(lambda x, t, y: x.index_add(0, t, y), rand(40, 24), places(300, 40), rand(300, 24))
    assert len(folds) == 1 and not outcome.changed and not outcome.refused


REFUSED = {
    "other operators need the value too, and computing it twice costs more": lambda x, s, t: (
        (m := x[s].exp()), torch.zeros(40, 24).index_add(0, t, m)),
    "the consumer reduces": lambda x, s, t: torch.zeros(40, 24).index_add(0, t, x[s]).sum(1),
    "the consumer reads it through indices or a mask": lambda x, s, t: torch.zeros(40, 24).index_add(0, t, x[s])[t],
    "the consumer does not run over the folded rows one to one": lambda x, s, t: (
        torch.zeros(40, 24).index_add(0, t, x[s])[:9] + 1),
    "indices of points that are passed over have to be checked": lambda x, s, t: (
        torch.ops.aten.embedding_dense_backward.default(x[s], t, 40, 3, False)),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_refused(reason: str) -> None:
    args = rand(50, 24), places(300, 50), places(300, 40)
    _, _, outcome = left(REFUSED[reason], *args)
    assert outcome.refused[reason] == 1
