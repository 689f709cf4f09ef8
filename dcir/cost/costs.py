"""What passes may ask of a target's costs: figures of its memories, and cost functions of what has several forms."""

from __future__ import annotations

from dataclasses import dataclass

from dcir.cost.matrix_unit import MatrixUnit
from dcir.cost.winograd import WinogradCosts


@dataclass(frozen=True)
class MemoryCosts:
    """Memories as passes see them: what a core's own cache holds (near), what the cache that cores share holds (far), and the rest.

    Attributes:
        near_bytes, far_bytes: what either cache still holds of a value when it is read again, after others have passed through.
        near, far, memory: seconds to move a byte where that cache holds it, or none does.
        packing: seconds to put a byte of weights in panels.
        line_bytes: of a cache line.
        conflict_bytes: rows so far apart, or a multiple, fall into one set of the nearest cache.
        row_bytes: largest row (8 bytes for each inner point of one outer point) that a second stage of a loop nest reads again from
            a core's own cache.
        block_bytes: the same of all rows that one job sums side by side, where memory runs along them.
        weight_bytes: most weights of one convolution that stay in a core's own cache together with a strip of every image.
        image_bytes: most bytes of images that live at one time and are still in the last cache when they are read.
    """

    near_bytes: int
    far_bytes: int
    near: float
    far: float
    memory: float
    packing: float
    line_bytes: int
    conflict_bytes: int
    row_bytes: int
    block_bytes: int
    weight_bytes: int
    image_bytes: int

    def seconds(self, size: int) -> float:
        """Of a byte, of values of this size."""
        return self.near if size <= self.near_bytes else self.far if size <= self.far_bytes else self.memory


@dataclass(frozen=True)
class LayoutCosts:
    """What a layout costs an operator, as traffic in multiples of an operand's bytes.

    Attributes:
        across: additional traffic of an operand that a loop nest walks across: a line for every vector lane.
        apart: the same for elements that lie a few apart.
        turn: of a convolution's operand in the other layout: it is read and written once more.
        copy: of a copy that turns an image around: one side is walked across in blocks.
        few_channels: images of fewer (a photograph's 3) are read as they are: they fill no vector either way.
        narrow: vectors along fewer channels than this are mostly empty.
        flops_per_byte: arithmetic that takes as long as a byte from memory, about.
        last_alone: where convolutions are a library's, element types that it computes with channels last alone: it turns others around.
            None: they are kernels of our own, which shift vectors along space and have Winograd's form along channels.
    """

    across: int
    apart: int
    turn: int
    copy: int
    few_channels: int
    narrow: int
    flops_per_byte: int
    last_alone: frozenset[str] | None = None


@dataclass(frozen=True)
class Costs:
    """The costs of one target.

    Attributes:
        flops: operations per second of a core.
        busy_jobs: more independent jobs than these keep all cores busy.
        memory, layout, winograd: the figures of each, with their functions.
        matrix_unit: of products on a matrix unit; None where there is none.
    """

    flops: float
    busy_jobs: int
    memory: MemoryCosts
    layout: LayoutCosts
    winograd: WinogradCosts
    matrix_unit: MatrixUnit | None
