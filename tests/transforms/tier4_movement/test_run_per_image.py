"""Runs of operators over one image at a time: which are taken, what they may not contain, and the numbers of the code."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dcir
from dcir.cost.cpu import MEMORY
from dcir.driver.targets.cpp import CppTarget
from dcir.driver.verify.check import PassChecker
from dcir.ir.memory_plan import ARENA
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.transforms.tier1_operator.pack_weights import PackWeights
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier3_layout.assign_layouts import AssignLayouts
from dcir.transforms.tier3_layout.sink_copies import SinkCopies
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from dcir.transforms.tier4_movement.run_per_image import RunPerImage
from tests.harness import check_close
from tests.on_host import target
from tests.transforms.imported import imported

# Caches so small that test sizes gain from them.
SMALL = {"near_bytes": 1 << 12, "far_bytes": 1 << 13}
# The same for images of 17 KB, and weights that cost nothing.
FREE = {"near_bytes": 20_000, "far_bytes": 20_001, "flops": 1e6}


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = F.relu(F.conv2d(x, w, padding=1))
    return x.mean((2, 3))


def streamed(fn: Any, *inputs: torch.Tensor, costs: dict[str, Any] = SMALL, threads: int = 2) -> tuple[Network, Any]:
    net = imported(fn, *inputs).network
    net.target = target(threads, **costs)
    outcome = RunPerImage().apply(net)
    PlanArena().apply(net)
    verify(net)
    return net, outcome


def test_changed() -> None:
    net, outcome = streamed(chain, torch.randn(5, 4, 9, 7), torch.randn(4, 4, 3, 3))
    (stream,) = net.streams
    assert outcome.changed == len(stream.ops) == len(net.ops()) and outcome.saved_bytes > 0
    assert stream.images == 5 and stream.lanes == 2
    results = net.result_containers()
    assert stream.inside.keys() == {n for n, c in net.containers.items() if c.role == "transient"} - results
    assert stream.lane_bytes <= 3 * (4 * 9 * 7 * 4 + 64) and net.memory.nbytes(ARENA) == 2 * stream.lane_bytes
    again = net.clone()
    assert again.streams == net.streams and again.target == net.target


def test_unchanged() -> None:
    """No convolution, one image, fewer images than threads."""
    assert not streamed(lambda x: x.relu() + 1, torch.randn(8, 4, 9, 7))[0].streams
    w = torch.randn(4, 4, 3, 3)
    assert not streamed(chain, torch.randn(1, 4, 9, 7), w)[0].streams
    assert not streamed(chain, torch.randn(3, 4, 9, 7), w, threads=4)[0].streams


def test_refused_where_weights_are_heavy() -> None:
    """Images of one pixel under large weights: reading the weights for each image costs more."""
    x, w = torch.randn(4, 64, 1, 1), torch.randn(64, 64, 3, 3)
    net, outcome = streamed(chain, x, w)
    assert not net.streams and sum(outcome.refused.values())
    assert not streamed(chain, torch.randn(4, 4, 9, 7), torch.randn(4, 4, 3, 3), costs={})[0].streams


def test_a_matrix_unit_wants_all_rows() -> None:
    """Images of which one has too few positions for the unit stay together where there is one."""

    def taken(images: int, size: int, matrix: bool) -> bool:
        x, w = torch.randn(images, 128, size, size).to(memory_format=torch.channels_last), torch.randn(128, 128, 1, 1)
        net = imported(lambda x, w: F.conv2d(F.conv2d(F.conv2d(x, w).relu(), w).relu(), w), x, w).network
        net.target = target(matrix_unit=matrix, near_bytes=1 << 20, far_bytes=1 << 20)
        net.static = {net.inputs[1]}
        for p in (FuseEpilogues(), AssignLayouts(), PackWeights()):
            p.apply(net)
        RunPerImage().apply(net)
        return bool(net.streams)

    assert taken(12, 15, False) and not taken(12, 15, True)
    assert taken(5, 33, False) and taken(5, 33, True)  # one image has enough


def test_a_matrix_unit_wants_all_rows_of_weights_that_are_not_packed() -> None:
    """Patches and products with weights as they are, as in training."""

    def patches(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        rows = F.conv2d(x, w, stride=4).flatten(2).transpose(1, 2)
        return F.linear(F.linear(rows, a).relu(), b)

    def taken(size: int, matrix: bool) -> bool:
        x, w = torch.randn(4, 3, size, size), torch.randn(128, 3, 4, 4)
        net = imported(patches, x, w, torch.randn(512, 128), torch.randn(128, 512)).network
        net.target = target(matrix_unit=matrix, near_bytes=1 << 17, far_bytes=1 << 20, packing=0)
        for p in (FuseEpilogues(), AssignLayouts(), SinkCopies()):
            p.apply(net)
        RunPerImage().apply(net)
        return any(op.spec.kind == "contraction" and op.label in s.ops for op in net.ops() for s in net.streams)

    assert taken(24, False) and not taken(24, True)


def test_weights_that_every_image_would_pack() -> None:
    """Products pack weights that change: once for all images costs less."""

    def patches(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        rows = F.conv2d(x, w, stride=4).flatten(2).transpose(1, 2)
        return F.linear(F.linear(rows, a).relu(), b).relu()

    def taken(packing: float) -> bool:
        x, w = torch.randn(4, 3, 40, 40), torch.randn(256, 3, 4, 4)
        net = imported(patches, x, w, torch.randn(256, 256), torch.randn(256, 256)).network
        # A matrix unit packs its operands itself.
        net.target = target(matrix_unit=False, near_bytes=1 << 17, far_bytes=1 << 18, packing=packing)
        for p in (FuseEpilogues(), AssignLayouts(), SinkCopies()):
            p.apply(net)
        RunPerImage().apply(net)
        return any(op.spec.kind == "contraction" and op.label in s.ops for op in net.ops() for s in net.streams)

    assert taken(0) and not taken(MEMORY.packing)


def test_sums_over_images_end_a_run() -> None:
    def normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.conv2d(x, w, padding=1)).exp()
        x = x - x.mean((0, 2, 3), keepdim=True)
        return F.conv2d(F.relu(F.conv2d(x, w, padding=1)), w)

    net, _ = streamed(normed, torch.randn(5, 4, 9, 7), torch.randn(4, 4, 3, 3))
    assert len(net.streams) == 2
    order = [op.label for op in net.ops()]
    for stream in net.streams:
        first = order.index(stream.ops[0])
        assert order[first : first + len(stream.ops)] == stream.ops
    first, second = net.streams
    assert not set(first.inside) & set(second.inside)
    # What the first run leaves for the sum lies in no lane, and nothing else lies there while images are under way.
    (left,) = (
        n for n in net.containers if n in first.steps and n in net.memory.offsets(ARENA) and n not in first.inside
    )
    low, high = net.memory.offsets(ARENA)[left], net.memory.offsets(ARENA)[left] + net.containers[left].nbytes
    lanes = range(first.at, first.at + first.lanes * first.lane_bytes)
    assert high <= lanes.start or low >= lanes.stop


class Block(nn.Module):
    """Branches, a concatenation, a gate, strides, odd sizes, and a result that leaves the run in its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 24, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(24)
        self.depth = nn.Conv2d(24, 24, 5, padding=2, groups=24)
        self.narrow, self.wide = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1)
        self.left, self.right = nn.Conv2d(24, 17, 1), nn.Conv2d(24, 15, 3, padding=1)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.silu(self.norm(self.first(x)))
        y = F.relu6(self.depth(x))
        gate = torch.sigmoid(self.wide(F.silu(self.narrow(y.mean((2, 3), keepdim=True)))))
        middle = y * gate + x
        both = torch.cat([self.left(middle), self.right(F.max_pool2d(middle, 3, 1, 1))], 1)
        return self.head(F.relu(both).mean((2, 3))), middle


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("batch", [2, 5])
def test_numbers(batch: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last image has no partner, and where the team is another than was planned for."""
    model = Block().eval()
    model.norm.running_mean.uniform_()
    x = torch.randn(batch, 3, 29, 23, generator=torch.Generator().manual_seed(batch))
    monkeypatch.setattr(CppTarget, "costs", target(threads, **FREE).costs)
    had = torch.get_num_threads()
    with torch.no_grad():
        want, exact = model(x), copy.deepcopy(model).double()(x.double())
        fast = dcir.optimize(model, threads=threads, verify="passes")
        try:
            for team in (had, 1, 2):
                torch.set_num_threads(team)
                for got in fast(x), fast(x):
                    for g, w, e in zip(got, want, exact, strict=True):
                        check_close(g, w, e)
        finally:
            torch.set_num_threads(had)
    for graph in fast.dcir.explain().graphs:  # one per size of the team, which Dynamo guards
        (record,) = (p for p in graph.passes if p.name == RunPerImage().name)
        assert (record.changed > 5) == (threads <= batch)


def test_checked_like_every_pass() -> None:
    net = imported(chain, torch.randn(5, 4, 9, 7), torch.randn(4, 4, 3, 3)).network
    check = PassChecker(net, seed=0)
    net.target = target(**SMALL)
    RunPerImage().apply(net)
    check(RunPerImage(), net)
