"""What a layout costs an operator, in bytes moved: its own traffic grows where it has to walk memory across.

Every operator runs its vectors along channels or along space (its mode). An operand in the same layout costs nothing more
than its bytes, which no layout changes; one in the other layout is read or written across:
    programs        every element touches a cache line of its own, which costs about 4 times its bytes
    convolutions    one more pass over the operand (read and write), to turn it around
And a convolution works best along channels: along space its taps need shifted vectors, and edges need masks. A library's has no such
costs; for types that tensor cores multiply it turns all images around that lie the other way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dcir.cost.costs import LayoutCosts
from dcir.cost.target import target_of
from dcir.ir.dace.nodes import Op
from dcir.ir.network import Container
from dcir.ir.types import itemsize
from dcir.ops.library.attention import AttentionSpec
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec, refused_by_winograd
from dcir.transforms.tier3_layout.layout.channels import ContainerAccess, Snapshot, channel_loops, digits, image_windows

Terms = Callable[[str, Sequence[tuple[int, int]]], None]
"""Takes a container and, for either layout of it, its cost along space and along channels."""


class Layouts(NamedTuple):
    """The two layouts of one container: strides kept, strides with channels last."""

    container: Container
    channels: frozenset[int]
    last: tuple[int, ...]

    def stride(self, stride: int, extent: int, *, moved: bool) -> int:
        """A loop's stride in one of the layouts."""
        if not moved or not stride:
            return stride
        walked = digits(self.container, stride, extent)
        return sum(q * self.last[d] for d, q in (walked or {}).items())


def program_costs(
    shot: Snapshot, op: Op, known: dict[str, Layouts], add: Terms, mode: Callable[[int, int], None]
) -> None:
    """Costs of a program or an epilogue.

    Args:
        shot, op: the network and the operator.
        known: layouts of the containers whose channels are known.
        add: takes the cost of each access.
        mode: takes the operator's own cost along space and along channels.
    """
    p, accesses, costs = shot.program(op), shot.accesses(op), target_of(shot.net).costs.layout
    if p is None or not accesses:
        return
    channels: dict[int, None] = {}
    for data in dict.fromkeys(a.operand.data for a in accesses):
        if data in known:
            channels |= dict.fromkeys(channel_loops(shot, op, data, known[data].channels))

    def width(a: ContainerAccess) -> int:
        return math.prod(n for k, n in enumerate(p.dims) if a.strides[k] or k in a.moving)

    def stride(a: ContainerAccess, k: int, *, moved: bool) -> int:
        layouts = known.get(a.operand.data)
        return layouts.stride(a.strides[k], p.dims[k], moved=moved) if layouts else a.strides[k]

    volumes = [width(a) * itemsize(shot.net.containers[a.operand.data].dtype) for a in accesses]
    total = sum(volumes)

    def across(k: int, *, moved: bool) -> int:
        """What it costs to run vectors along loop ``k``."""
        return sum(
            v * (costs.across if k in a.moving else _step(costs, stride(a, k, moved=moved)))
            for a, v in zip(accesses, volumes, strict=True)
        ) + (total if p.dims[k] < costs.narrow else 0)

    def innermost(loops: Sequence[int], *, moved: bool) -> int | None:
        walked = [k for k in loops if p.dims[k] > 1 and any(a.strides[k] for a in accesses)]
        return min(walked, key=lambda k: (across(k, moved=moved), -k), default=None)

    space = innermost([k for k in range(len(p.dims)) if k not in channels], moved=False)
    channel = innermost(list(channels), moved=True)
    space, channel = (channel if space is None else space), (space if channel is None else channel)
    if space is None or channel is None:
        return
    for a, volume in zip(accesses, volumes, strict=True):
        table = [
            tuple(
                volume * (costs.across if k in a.moving else _step(costs, stride(a, k, moved=moved)))
                for k in (space, channel)
            )
            for moved in (False, True)
        ]
        add(a.operand.data, [(row[0], row[1]) for row in table])
    if channel != space and p.dims[channel] < costs.narrow:
        mode(0, total // 2)


def _step(costs: LayoutCosts, stride: int) -> int:
    return 0 if -1 <= stride <= 1 else (costs.apart if -4 <= stride <= 4 else costs.across)


def convolution_costs(
    shot: Snapshot, op: Op, known: dict[str, Layouts], add: Terms, mode: Callable[[int, int], None]
) -> None:
    """The same for a convolution's own operands."""
    w, costs = shot.ops[op], target_of(shot.net).costs.layout
    spec = w.spec
    assert isinstance(spec, ConvolutionSpec)
    along_space = 0
    for operand, shape, strides in image_windows(w):
        volume = math.prod(shape) * itemsize(spec.dtype)
        few = shape[1] < costs.few_channels
        layouts = known.get(operand.data)
        table = []
        for moved in (False, True):
            stride = layouts.stride(strides[1], shape[1], moved=moved) if layouts else strides[1]
            last = stride == 1 or shape[1] == 1
            spread = math.prod(shape[2:]) > 1
            turned = 0 if few or not spread else costs.turn * volume
            table.append((turned if last else 0, 0 if last else turned))
        add(operand.data, table)
        along_space += 0 if few else volume
    if spec.epilogue is not None:
        along_space += math.prod(spec.shapes[2]) * itemsize(spec.dtype)
    if costs.last_alone is not None:
        mode(costs.turn * along_space if spec.dtype in costs.last_alone else 0, 0)
        return
    if refused_by_winograd(spec) is None:
        # What Winograd's form saves, which exists along channels alone, is time for so many bytes.
        mode(spec.operations() // (2 * costs.flops_per_byte), 0)
    if spec.kind == "forward":
        taps = math.prod(spec.kernel)
        mode(along_space if taps > 1 else along_space // 2, 0)


def window_costs(shot: Snapshot, op: Op, known: dict[str, Layouts], add: Terms) -> None:
    """The same for other operators: one of a product's last two dimensions lies in order, attention's last does."""
    w, turn = shot.ops[op], target_of(shot.net).costs.layout.turn
    if isinstance(w.spec, ContractionSpec):
        shapes, strides = w.spec.shapes, (w.spec.a, w.spec.b, w.spec.c)
        operands = (*w.ins[:2], w.outs[0])
        table = [(o, s[-2:], t[-2:]) for o, s, t in zip(operands, shapes, strides, strict=True)]
        if w.spec.epilogue is not None:
            table.pop()
    elif isinstance(w.spec, AttentionSpec):
        own = w.spec.windows()
        pairs = [*zip(w.ins, own[0], strict=True), *zip(w.outs, own[1], strict=True)]
        table = [(o, v.shape[-1:], v.strides[-1:]) for o, v in pairs if v is not None]
    else:
        return
    for operand, shape, steps in table:
        layouts = known.get(operand.data)
        if layouts is None:
            continue
        costs = []
        for moved in (False, True):
            new = [layouts.stride(s, n, moved=moved) for s, n in zip(steps, shape, strict=True)]
            good = any(s in (0, 1) or n == 1 for s, n in zip(new, shape, strict=True))
            volume = layouts.container.nbytes
            costs.append((0, 0) if good else (turn * volume, turn * volume))
        add(operand.data, costs)
