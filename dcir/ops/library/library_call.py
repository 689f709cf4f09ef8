"""An operator that runs through PyTorch's libraries (cuBLAS, cuDNN, its own kernels), as one node that says what it computes.

What it moves, computes and means is the spec's that it stands for; how it runs is a call of torch's own operator over windows of the
network's memory, with ``out=`` where torch has that for the layout, so that the result is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dcir.errors import FallbackFailed
from dcir.ir.loop_nest import LoopNest
from dcir.ir.operator import OperandWindow, Operator, Steps, Windows
from dcir.ir.refusal import Refusal
from dcir.ir.serialize import register
from dcir.ir.statements import Load
from dcir.ir.types import FLOATS, HALVES
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.library_layouts import laid_out, runs_channels_last
from dcir.ops.library.library_rows import RowSpec, call_rows, row_windows
from dcir.ops.library.torch_call import Window
from dcir.ops.torch_types import FROM_NAME

_aten = torch.ops.aten
InLibraries = ContractionSpec | ConvolutionSpec | RowSpec
"""What libraries have."""


@register
@dataclass(frozen=True)
class LibraryCall(Operator):
    """One call of a library.

    Attributes:
        of: what it computes, for which ``refused_by_library`` is None.
    """

    of: InLibraries

    @property
    def kind(self) -> str:
        """That of what it computes."""
        return self.of.kind

    @property
    def calls_out(self) -> str:
        """Torch's operator."""
        if isinstance(self.of, ConvolutionSpec):
            return f"aten.convolution ({self.of.kind})"
        return "aten.matmul" if isinstance(self.of, ContractionSpec) else f"aten ({self.of.kind})"

    @property
    def ins(self) -> tuple[Window, ...]:
        """(shape, strides, dtype) of each input."""
        return self._windows()[0]

    @property
    def outs(self) -> tuple[Window, ...]:
        """(shape, strides, dtype) of the result."""
        return self._windows()[1]

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes of each operand."""
        return self.of.footprint()

    def operations(self) -> int:
        """Multiplications and additions."""
        return self.of.operations()

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it over 1-D NumPy buffers."""
        self.of.reference(ins, outs)

    def loop_nest(self) -> LoopNest | None:
        """That of what it computes."""
        found: Any = self.of.loop_nest()
        return found  # type: ignore[no-any-return]

    def steps(self) -> Steps | None:
        """Those of what it computes."""
        return self.of.steps()

    def windows(self) -> Windows | None:
        """Those of what it computes."""
        return None if isinstance(self.of, RowSpec) else self.of.windows()

    def with_strides(self, window: OperandWindow, strides: tuple[int, ...]) -> Operator | None:
        """The same with other strides of one of its windows."""
        made: Any = self.of.with_strides(window, strides)
        return None if made is None else replace(self, of=made)

    def describe(self) -> str:
        """What it computes, and where."""
        return f"{self.of.describe()} by a library"

    def call(self, ins: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> None:
        """Run it: read ``ins``, write ``outs``.

        Raises:
            FallbackFailed: the library failed.
        """
        try:
            if isinstance(self.of, RowSpec):
                call_rows(self.of, ins, outs)
            elif isinstance(self.of, ContractionSpec):
                _multiply(ins, outs[0])
            else:
                outs[0].copy_(_CONVOLUTIONS[self.of.kind](self.of, ins, outs[0]))
        except RuntimeError as e:
            raise FallbackFailed(f"{self.describe()} failed in torch: {e}") from e

    @property
    def makes(self) -> bool:
        """Whether a library makes the tensor of the result by itself, so that to write it elsewhere is to copy it."""
        return isinstance(self.of, ConvolutionSpec)

    def made(self, ins: Sequence[torch.Tensor]) -> torch.Tensor:
        """The result in a tensor of its own, where ``makes``.

        Raises:
            FallbackFailed: the library failed.
        """
        assert isinstance(self.of, ConvolutionSpec)
        shape, strides, dtype = self.outs[0]
        like = torch.empty_strided(shape, strides, dtype=FROM_NAME[dtype], device=ins[0].device)
        try:
            return _CONVOLUTIONS[self.of.kind](self.of, ins, like)
        except RuntimeError as e:
            raise FallbackFailed(f"{self.describe()} failed in torch: {e}") from e

    def _windows(self) -> tuple[tuple[Window, ...], tuple[Window, ...]]:
        s = self.of
        if isinstance(s, RowSpec):
            return row_windows(s)
        types = s.types.a, s.types.b, s.types.c
        strides = (s.a, s.b, s.c) if isinstance(s, ContractionSpec) else (s.x, s.w, s.y)
        first, second, third = zip(s.shapes, strides, types, strict=True)
        if s.kind == "backward_data":
            return (third, second), (first,)
        if s.kind == "backward_weight":
            return (first, third), (second,)
        bias = isinstance(s, ConvolutionSpec) and s.bias
        more: list[Window] = (
            [((s.groups * s.cout,), (1,), s.bias_type)] if isinstance(s, ConvolutionSpec) and bias else []
        )
        if (step := _bias_step(s)) is not None and s.epilogue is not None:
            more.append(((s.shapes[2][-1],), (step,), s.epilogue.inputs[1]))
        return (first, second, *more), (third,)


def refused_by_library(spec: InLibraries) -> Refusal | None:
    """Why an operator cannot be a call of a library; None if it can."""
    if isinstance(spec, RowSpec):
        return None
    if not (spec.dtype in FLOATS or spec.dtype in HALVES or _keeps_sums(spec)) or spec.types.a != spec.types.b:
        return Refusal("libraries multiply floating-point numbers of one type")
    if spec.panel or spec.scales is not None or (spec.epilogue is not None and _bias_step(spec) is None):
        return Refusal("it is more than a product")
    if isinstance(spec, ContractionSpec):
        return Refusal("its operands are rounded first") if spec.rounds or spec.dots else None
    if spec.winograd:
        return Refusal("it is in Winograd's form")
    return None if _high_padding(spec) is not None else Refusal("no padding of both sides gives its sizes")


def _keeps_sums(spec: ContractionSpec | ConvolutionSpec) -> bool:
    """Whether a product of half types stores its sums as they are, in float32."""
    types = spec.types
    return isinstance(spec, ContractionSpec) and types.a in HALVES and types.accumulator == types.c == "f32"


def _bias_step(spec: ContractionSpec | ConvolutionSpec) -> int | None:
    """Stride of the value per column that the epilogue of a product of matrices adds to it, if it does that alone."""
    if not isinstance(spec, ContractionSpec) or spec.batch or spec.epilogue is None:
        return None
    body, outer = spec.epilogue.body, spec.epilogue.outer
    if [s.op for s in body] != ["load", "load", "add", "store"] or len(outer) != 2 or len(spec.epilogue.inputs) != 2:
        return None
    bias = next((s for s in body if isinstance(s, Load) and s.operand == 1 and not s.args), None)
    return bias.strides[1] if bias is not None and not bias.strides[0] else None


def _multiply(ins: Sequence[torch.Tensor], c: torch.Tensor) -> None:
    """Products of matrices, perhaps with a bias; those of a batch that lies in one stride are one call."""
    if len(ins) > 2:
        torch.addmm(ins[2], ins[0], ins[1], out=c)
        return
    a, b, c = joined(ins[0], ins[1], c)
    if c.dtype != a.dtype and not a.is_cuda:  # sums of half types as they are: only cuBLAS has it
        a, b = a.to(c.dtype), b.to(c.dtype)
    if c.dim() <= 3:
        _multiply_into(a, b, c)
        return
    a, b = (t.flatten(0, -3) for t in (a, b))  # copies what lies in no one stride
    if in_one_stride(c):
        _multiply_into(a, b, c.view(-1, *c.shape[-2:]))
        return
    made = torch.empty((len(a), *c.shape[-2:]), dtype=c.dtype, device=c.device)
    _multiply_into(a, b, made)
    c.copy_(made.view(c.shape))


def _multiply_into(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """One call, of matrices or of a batch with one dimension."""
    if c.dtype != a.dtype:
        (_aten.mm if c.dim() == 2 else _aten.bmm).dtype_out(a, b, c.dtype, out=c)
    elif c.dim() == 2:
        torch.mm(a, b, out=c)
    else:
        torch.bmm(a, b, out=c)


def in_one_stride(t: torch.Tensor) -> bool:
    """Whether the dimensions of a batch of matrices lie as one dimension would."""
    return all(t.stride(d) == t.shape[d + 1] * t.stride(d + 1) for d in range(t.dim() - 3))


def joined(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same with as few dimensions of the batch as their strides allow."""
    ones = tuple(d for d in range(c.dim() - 2) if c.shape[d] == 1)
    made = [t.squeeze(ones) for t in (a, b, c)]
    if made[2].dim() > 3 and _shared(*made):
        made = [_rows(made[0]), made[1].select(-3, 0), _rows(made[2])]
    while made[2].dim() > 3:
        inner = made[2].shape[1]
        if not all(t.stride(0) == inner * t.stride(1) for t in made):
            break
        made = [t.flatten(0, 1) if t.is_contiguous() else _flat(t) for t in made]
    x, y, z = made
    return (_rows(x), y[0], _rows(z)) if z.dim() == 3 and _shared(x, y, z) else (x, y, z)


def _shared(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> bool:
    """Whether the matrices of the last dimension of a batch are one, which multiplies all rows of the other operand at once."""
    one = x.shape[-2] == 1
    return y.stride(-3) == 0 and all(one or t.stride(-3) == t.shape[-2] * t.stride(-2) for t in (x, z))


def _flat(t: torch.Tensor) -> torch.Tensor:
    """The first two dimensions, which lie in one stride, as one."""
    return torch.as_strided(t, (t.shape[0] * t.shape[1], *t.shape[2:]), t.stride()[1:], t.storage_offset())


def _rows(t: torch.Tensor) -> torch.Tensor:
    """The last dimension of a batch and the rows, which lie in one stride, as rows."""
    step = t.stride(-3) if t.shape[-2] == 1 else t.stride(-2)
    shape, strides = (*t.shape[:-3], t.shape[-3] * t.shape[-2], t.shape[-1]), (*t.stride()[:-3], step, t.stride(-1))
    return torch.as_strided(t, shape, strides, t.storage_offset())


def _high_padding(spec: ConvolutionSpec) -> tuple[int, ...] | None:
    """By dimension what zeros beyond the low side's number lie behind an image; negative ones are taps that never are; None if torch
    would make another number of results."""
    found = []
    for n, out, k, s, p, d in zip(
        spec.in_size, spec.out_size, spec.kernel, spec.stride, spec.padding, spec.dilation, strict=True
    ):
        same = (n + 2 * p - d * (k - 1) - 1) // s + 1 == out if n + 2 * p - d * (k - 1) - 1 >= 0 else False
        found.append(0 if same else (out - 1) * s + d * (k - 1) + 1 - n - 2 * p)
    return tuple(found) if all(h >= 0 for h in found) else None


def _padded(spec: ConvolutionSpec, x: torch.Tensor) -> torch.Tensor:
    """An image with what lies behind it beyond its padding."""
    high = _high_padding(spec)
    assert high is not None
    if not any(high):
        return x
    return torch.nn.functional.pad(x, [v for h in reversed(high) for v in (0, h)])


def _forward(spec: ConvolutionSpec, ins: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    bias = ins[2] if spec.bias else None
    # An image in the other layout would have torch make the result in that one.
    x, none = laid_out(_padded(spec, ins[0]), last=runs_channels_last(spec)), [0] * len(spec.kernel)
    steps = list(spec.stride), list(spec.padding), list(spec.dilation)
    made: torch.Tensor = _aten.convolution(x, ins[1], bias, *steps, False, none, spec.groups)
    return made


def _backward_data(spec: ConvolutionSpec, ins: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    made = _gradients(spec, ins[0], _padded(spec, like), ins[1], [True, False, False])[0]
    for d, n in enumerate(spec.in_size):
        made = made.narrow(2 + d, 0, n) if made.shape[2 + d] != n else made
    return made


def _backward_weight(spec: ConvolutionSpec, ins: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    x = laid_out(_padded(spec, ins[0]), last=runs_channels_last(spec))
    return _gradients(spec, ins[1], x, like, [False, True, False])[1]


def _gradients(
    spec: ConvolutionSpec, y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, wanted: list[bool]
) -> list[torch.Tensor]:
    steps = list(spec.stride), list(spec.padding), list(spec.dilation)
    none = [0] * len(spec.kernel)
    found: list[torch.Tensor] = _aten.convolution_backward(y, x, w, None, *steps, False, none, spec.groups, wanted)
    return found


# From the spec, its inputs, and a tensor that is laid out as the result is wanted; its numbers are not read.
_CONVOLUTIONS: dict[str, Callable[[ConvolutionSpec, Sequence[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "forward": _forward,
    "backward_data": _backward_data,
    "backward_weight": _backward_weight,
}
