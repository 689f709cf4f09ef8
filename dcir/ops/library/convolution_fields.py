"""What a convolution is: types, extents and strides, and what follows from them alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcir.ir.loop_nest import LoopNest
from dcir.ir.operator import Operator
from dcir.ir.types import compute_type
from dcir.ops.library import winograd
from dcir.ops.library.operand_types import OperandTypes, Scales
from dcir.ops.library.packing import packed_shape, panels, spans_groups


@dataclass(frozen=True)
class ConvolutionFields(Operator, partial=True):
    """The fields of a ``ConvolutionSpec``, which says what they mean together.

    Attributes:
        kind: "forward", "backward_data" or "backward_weight".
        types: of x (a), of w (b), of the sums, and of y (c); a bias has the sums' type, or y's where that is a half type of it.
        n: batch size.
        groups: number of groups.
        cin: input channels per group (channels of x).
        cout: output channels per group (channels of y).
        in_size, kernel, out_size: spatial extents of x, w, y (1 to 3 of them, the same number everywhere).
        stride, padding, dilation: per spatial dimension; padding is the low side's, the high side's follows from sizes.
        x: strides of x over (n, channel, *spatial).
        w: strides of w over (group*cout, cin, *kernel).
        y: strides of y over (n, channel, *spatial).
        bias: forward only: whether a third input holds one value per output channel (contiguous).
        panel: forward only: if not 0, w is packed (``packing.py``) in panels of so many output channels of a group: element
            (g, o, i, tap) lies at (((g * P + o // panel) * taps + tap) * cin + i) * panel + o % panel, with P panels per group; where
            those would be padded much (``packing.spans_groups``), the channels of all groups are those of one, o + g * cout.
        winograd: not for backward_data, 3 x 3 taps without stride or dilation: if not empty, the arithmetic is that of the transforms of
            tiles of so many results (``winograd.py``); forward, w is the packed form transformed, [group][panel][point][channel][column].
        epilogue: forward only: what is done to y's elements before they are stored (``epilogue.py``), over (n, channel, *spatial);
            it owns the stores, and ``y`` equals the strides of the first of them.
        scales: forward only: what integers stand for, with padding that counts as zero; there is neither a panel nor an epilogue then,
            and y is of a floating-point type. Their inputs come behind x and w.
        halves: what is multiplied holds nothing but numbers of bf16, whatever it is stored in, and the processor has a unit or an
            instruction for those.
        pairs: w is packed in pairs of input channels, of which there is an even number, and of bf16.
    """

    kind: str
    types: OperandTypes
    n: int
    groups: int
    cin: int
    cout: int
    in_size: tuple[int, ...]
    kernel: tuple[int, ...]
    out_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    bias: bool = False
    panel: int = 0
    epilogue: LoopNest | None = None
    winograd: tuple[int, ...] = ()
    scales: Scales | None = None
    halves: bool = False
    pairs: bool = False

    @property
    def dtype(self) -> str:
        """The type of x, w and y; empty if they are not alike, which is for loop nests alone, unless w is packed in pairs."""
        return self.types.common if self.types.a == self.types.b or self.pairs else ""

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Shapes of x, w and y."""
        return (
            (self.n, self.groups * self.cin, *self.in_size),
            (self.groups * self.cout, self.cin, *self.kernel),
            (self.n, self.groups * self.cout, *self.out_size),
        )

    @property
    def spanned(self) -> bool:
        """Whether panels run on from one group to the next."""
        return spans_groups(self.groups, self.cout, self.kernel[-1], self.panel)

    @property
    def packed_weights(self) -> tuple[int, ...]:
        """Shape of packed weights: (group, panel number, *kernel and cin as one, column in the panel); with points for Winograd."""
        if self.winograd:
            rows, columns = (t + winograd.TAPS - 1 for t in self.winograd)
            return (self.groups, panels(self.cout, self.panel), rows, columns, self.cin, self.panel)
        groups, columns = (1, self.groups * self.cout) if self.spanned else (self.groups, self.cout)
        return packed_shape((groups,), columns, math.prod(self.kernel) * self.cin, self.panel, pairs=self.pairs)

    @property
    def bias_type(self) -> str:
        """Element type of a bias."""
        types = self.types
        return types.c if types.accumulator == compute_type(types.c) else types.accumulator
