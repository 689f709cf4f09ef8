"""Convolutions in one to three dimensions: forward, data gradient (= transposed convolution), weight gradient."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dcir.ir.describe import sizes_text
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import contiguous
from dcir.ir.operator import OperandWindow, Windows
from dcir.ir.refusal import Refusal
from dcir.ir.serialize import register
from dcir.ir.types import FLOATS, compute_type, itemsize
from dcir.ops.library import winograd
from dcir.ops.library.convolution_fields import ConvolutionFields
from dcir.ops.library.convolution_loops import convolution_loops
from dcir.ops.library.epilogue import attach_epilogue, epilogue_footprint, epilogue_text, run_epilogue
from dcir.ops.library.operand_types import Scales
from dcir.ops.library.packing import pack_program, pair_program
from dcir.ops.library.torch_call import window_tensor
from dcir.ops.torch_types import FROM_NAME


@functools.lru_cache(maxsize=4096)
def _met(size: int, taps: int, results: int, stride: int, padding: int, dilation: int) -> tuple[int, int]:
    """Of one dimension: pairs of an output position and a tap inside x, and positions of x that some pair meets.

    Asked of every operator after every pass, for rows of thousands of positions: hence ranges, and a memory.
    """
    pairs, met = 0, set[int]()
    for k in range(taps):
        first = k * dilation - padding
        begin = max(0, -(first // stride))  # the first result whose tap is at 0 or behind
        places = range(first + begin * stride, min(size, first + (results - 1) * stride + 1), stride)
        pairs += len(places)
        met.update(places)
    return pairs, len(met)


@register
@dataclass(frozen=True)
class ConvolutionSpec(ConvolutionFields):
    """One of the three products of y[n,g,o,p] = sum_{i,k} x[n,g,i,p*stride - padding + k*dilation] * w[g,o,i,k].

    kind "forward" reads (x, w[, bias]) and writes y; "backward_data" reads (y, w) and writes x (also what a transposed
    convolution is); "backward_weight" reads (x, y) and writes w. Padding outside x counts as zero. Sizes and strides
    are in elements. Channels are split as group * channels-per-group + channel in x and y; w is
    [group*out, in, *kernel].
    """

    @property
    def takes_epilogue(self) -> bool:
        """Whether it may have an epilogue, or another one; a bias becomes a part of the first."""
        return self.kind == "forward" and not (self.bias and self.epilogue is not None) and self.dtype in FLOATS

    @property
    def result_strides(self) -> tuple[int, ...]:
        """Strides of y."""
        return self.y

    def with_epilogue(self, epilogue: LoopNest | None, strides: tuple[int, ...]) -> ConvolutionSpec:
        """The same with another epilogue, whose first store has these strides."""
        return replace(self, y=strides, epilogue=epilogue)

    def packing(self) -> LoopNest:
        """The copy of weights that lie at ``w`` into panels, not transformed."""
        groups, columns = (1, self.groups * self.cout) if self.spanned else (self.groups, self.cout)
        if self.pairs:
            return pair_program(
                self.dtype, (groups,), columns, (*self.kernel, self.cin), self.panel, (self.w[0] * columns,), self.w[0],
                (*self.w[2:], self.w[1]), stored=self.types.b,
            )  # fmt: skip
        return pack_program(
            self.dtype, (groups,), columns, (*self.kernel, self.cin), self.panel, (self.w[0] * columns,), self.w[0],
            (*self.w[2:], self.w[1]),
        )  # fmt: skip

    def windows(self) -> Windows:
        """Of x, w, y and the bias; packed weights have none."""
        shapes = zip(self.shapes, (self.x, self.w, self.y), "xwy", strict=True)
        x, w, y = (OperandWindow(shape, strides, field) for shape, strides, field in shapes)
        if self.kind != "forward":
            return ([y, w], [x]) if self.kind == "backward_data" else ([x, y], [w])
        bias = [OperandWindow((self.groups * self.cout,), (1,))] if self.bias else []
        return [x, None if self.panel else w, *bias], [y]

    def _met(self) -> list[tuple[int, int]]:
        """Per dimension: pairs of an output position and a tap inside x, and the positions of x that some pair meets."""
        extents = (self.in_size, self.kernel, self.out_size, self.stride, self.padding, self.dilation)
        return [_met(*extent) for extent in zip(*extents, strict=True)]

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes of each operand; of x as an input only the positions that some tap meets."""
        types = self.types
        sizes = [itemsize(t) for t in (types.a, types.b, types.c)]
        x, w, y = (size * math.prod(shape) for size, shape in zip(sizes, self.shapes, strict=True))
        places = math.prod(positions for _, positions in self._met())
        met = sizes[0] * self.n * self.groups * self.cin * places
        if self.kind == "forward":
            if self.panel:
                w = sizes[1] * math.prod(self.packed_weights)
            scales = self._scale_bytes(self.scales) if self.scales is not None else []
            bias = [itemsize(self.bias_type) * self.groups * self.cout] if self.bias else []
            reads, writes = epilogue_footprint(self.epilogue) if self.epilogue is not None else ((), (y,))
            return (met, w, *scales, *bias, *reads), writes
        return ((y, w), (x,)) if self.kind == "backward_data" else ((met, y), (w,))

    def _scale_bytes(self, scales: Scales) -> list[int]:
        counts = [d if s else 1 for d, s in ((self.n, scales.a[0]), (self.groups * self.cout, scales.b[0]))]
        given = (scales.a_zero, scales.b_zero)
        zeros = [
            n * itemsize(t) for n, t, zero in zip(counts, (self.types.a, self.types.b), given, strict=True) if zero
        ]
        return [n * itemsize(compute_type(self.types.c)) for n in counts] + zeros

    def operations(self) -> int:
        """Multiplications and additions of elements that exist; zeros outside x do not count."""
        taps = math.prod(pairs for pairs, _ in self._met())
        extra = math.prod(self.shapes[2]) if self.bias else 0
        if self.epilogue is not None:
            extra += self.epilogue.operations()
        if self.winograd:
            return self._winograd_operations() + extra
        return 2 * self.n * self.groups * self.cin * self.cout * taps + extra

    def _winograd_operations(self) -> int:
        """Of whole tiles: products at the points, and both transforms."""
        tiles = self.n * self.groups * math.prod(-(-o // t) for o, t in zip(self.out_size, self.winograd, strict=True))
        (ah, _, bh), (aw, _, bw) = map(winograd.matrices, self.winograd)
        extent = [t + winograd.TAPS - 1 for t in self.winograd]
        image = self.cin * winograd.operations(extent, (bh, bw))
        result = self.cout * winograd.operations(extent, (ah, aw))
        return tiles * (2 * self.cin * self.cout * winograd.points(self.winograd) + image + result)

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it over 1-D NumPy buffers: in float64, rounded once; sums of integers below 2^53 are exact."""
        types = dict(zip("xwy", (self.types.a, self.types.b, self.types.c), strict=True))
        windows = dict(zip("xwy", zip(self.shapes, (self.x, self.w, self.y), strict=True), strict=True))
        roles = {"forward": ("xw", "y"), "backward_data": ("yw", "x"), "backward_weight": ("xy", "w")}
        reads, writes = roles[self.kind]
        t = {
            c: window_tensor(ins[i], (*windows[c], types[c])).double()
            for i, c in enumerate(reads)
            if not (c == "w" and self.panel)
        }
        if self.panel:
            t["w"] = self._unpacked(ins[1])
        target = None if self.epilogue is not None else window_tensor(outs[0], (*windows[writes], types[writes]))
        rank = len(self.kernel)
        span = [(p - 1) * s + (k - 1) * d + 1 for p, s, k, d in
                zip(self.out_size, self.stride, self.kernel, self.dilation, strict=True)]  # fmt: skip
        low = self.padding
        pads = [v for d in reversed(range(rank)) for v in (low[d], span[d] - self.in_size[d] - low[d])]
        none, stride, dilation = [0] * rank, list(self.stride), list(self.dilation)
        aten = torch.ops.aten
        if self.kind == "backward_data":
            whole = aten.convolution(t["y"], t["w"], None, stride, none, dilation, True, none, self.groups)
            assert target is not None
            target.copy_(torch.nn.functional.pad(whole, [-v for v in pads]))
            return
        rest = list(ins[2:])
        scale = self._scaled(t, rest) if self.scales is not None else 1.0
        x = torch.nn.functional.pad(t["x"], pads)
        if self.kind == "forward":
            per_channel = (self.groups * self.cout,), (1,), self.bias_type
            bias = window_tensor(rest.pop(0), per_channel).double() if self.bias else None
            if self.winograd:
                grouped = x.numpy().reshape(self.n, self.groups, self.cin, *x.shape[2:])
                exact = winograd.reference(grouped, t["w"].numpy(), self.winograd, self.out_size)
                y = torch.from_numpy(exact.reshape(self.shapes[2]))
                y = y if bias is None else y + bias[:, None, None]
            else:
                y = aten.convolution(x, t["w"], bias, stride, none, dilation, False, none, self.groups)
            if self.epilogue is None:
                assert target is not None
                target.copy_(y * scale)
                return
            run_epilogue(self.epilogue, y.to(FROM_NAME[compute_type(self.types.c)]).numpy(), rest, outs)
            return
        assert target is not None
        like = torch.zeros(self.shapes[1], dtype=torch.float64)
        target.copy_(aten.convolution_backward(
            t["y"], x, like, None, stride, none, dilation, False, none, self.groups, [False, True, False]
        )[1])  # fmt: skip

    def _scaled(self, t: dict[str, torch.Tensor], rest: list[Any]) -> torch.Tensor:
        """Takes zero points off the operands; both scales, over the result."""
        scales, types = self.scales, self.types
        assert scales is not None
        ones = [1] * len(self.kernel)
        images, channels = ((self.n,), scales.a), ((self.groups * self.cout,), scales.b)
        compute = compute_type(types.c)
        of_x = window_tensor(rest.pop(0), (*images, compute)).double().view(-1, 1, *ones)
        of_w = window_tensor(rest.pop(0), (*channels, compute)).double().view(1, -1, *ones)
        if scales.a_zero:
            t["x"] = t["x"] - window_tensor(rest.pop(0), (*images, types.a)).double().view(-1, 1, *ones)
        if scales.b_zero:
            t["w"] = t["w"] - window_tensor(rest.pop(0), (*channels, types.b)).double().view(-1, 1, *ones)
        return of_x * of_w

    def _unpacked(self, buffer: Any) -> torch.Tensor:
        packed = self.packed_weights
        w = window_tensor(buffer, (packed, contiguous(packed), self.types.b)).double()
        if self.winograd:
            return w.movedim(1, 3).movedim(-1, 4).flatten(3, 4)[:, :, :, : self.cout]
        if self.pairs:
            w = w.unflatten(-1, (self.panel, 2)).transpose(-1, -2)
        w = w.reshape(packed[0], packed[1], *self.kernel, self.cin, self.panel).movedim(-1, 2).flatten(1, 2)
        return w[:, : self.groups * self.cout // packed[0]].movedim(-1, 2).reshape(self.shapes[1])

    def describe(self) -> str:
        """Its images, taps and channels, and what is done with w before and y after."""
        extents = [sizes_text(s) for s in (self.in_size, self.kernel, self.stride)]
        channels = f"{self.groups * self.cin}->{self.groups * self.cout}"
        groups = f" groups{self.groups}" if self.groups > 1 else ""
        packed = " packed" if self.panel else ""
        return (
            f"convolution {self.kind} n{self.n} {channels} at {extents[0]} kernel {extents[1]} stride {extents[2]}"
            f"{groups}{packed}{epilogue_text(self.epilogue)}"
        )

    def loop_nest(self) -> LoopNest:
        """The same as a loop nest that gathers: every result sums over all taps, with zero outside."""
        program = convolution_loops(self)
        if self.epilogue is None:
            return program
        # The program's channels are two loops.
        return attach_epilogue(program, self.epilogue.split(1, self.cout))


def channel_pairs_refusal(spec: ConvolutionSpec) -> Refusal | None:
    """Why the input channels of a convolution are not multiplied in pairs, by a processor that has the instruction for it.

    It is twice the multiplications a second, for a copy of the image in pairs.
    """
    if not spec.halves:
        return Refusal("operands of other numbers than those of bf16")
    if spec.groups != 1 or spec.cin % 2:
        return Refusal("several groups, or an odd number of channels")
    if not channel_pairs_pay(math.prod(spec.kernel) * spec.cout, math.prod(spec.stride)):
        return Refusal("a copy of the image in pairs takes longer")
    return None


def channel_pairs_pay(products: int, positions: int) -> bool:
    """Whether a copy of an image in pairs takes less than what is saved, by the products of a pixel and the pixels to a result."""
    return products >= 40 * positions


NO_VECTORS = Refusal("Winograd's form takes whole vectors of float32 channels of one group")


def refused_by_winograd(spec: ConvolutionSpec) -> Refusal | None:
    """Why Winograd's form does not exist for a convolution, whatever its layout."""
    if spec.kernel != (3, 3) or spec.stride != (1, 1) or spec.dilation != (1, 1):
        return Refusal("Winograd's form is for 3 x 3 taps without stride or dilation")
    if spec.groups != 1 or spec.cin % 16 or spec.dtype != "f32":
        return NO_VECTORS
    return None
