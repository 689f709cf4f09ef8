"""Convolutions of one to three spatial dimensions: forward, data gradient (= transposed convolution), weight gradient."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConvolutionSpec:
    """One of the three products of y[n,g,o,p] = sum_{i,k} x[n,g,i,p*stride - padding + k*dilation] * w[g,o,i,k].

    kind "forward" reads (x, w[, bias]) and writes y; "backward_data" reads (y, w) and writes x (also what a transposed
    convolution is); "backward_weight" reads (x, y) and writes w. Padding outside x counts as zero. Sizes and strides
    are in elements. Channels are split as group * channels-per-group + channel in x and y, w is [group*out, in, *kernel].

    Attributes:
        kind: "forward", "backward_data" or "backward_weight".
        dtype: dcir type name ("f32", "f64", "bf16", "f16"); half types accumulate in f32.
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
    """

    kind: str
    dtype: str
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
