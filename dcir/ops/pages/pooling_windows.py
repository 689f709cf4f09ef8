"""Windows of pooling: which input positions an output position sees, and the reverse, as scalar expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.many_sizes import windows_between
from dcir.ir.types import compute_type
from dcir.ops.lowering import Kernel, Ref
from dcir.ops.pages.moving_edges import hidden


def per_dimension(value: int | Sequence[int], n: int) -> tuple[int, ...]:
    """A pooling argument given once or per dimension."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * n if len(values) == 1 else values


def both(conditions: Sequence[Expr | None]) -> Expr | None:
    """All conditions hold; None where there is nothing to hold."""
    known = [c for c in conditions if c is not None]
    result = known[0] if known else None
    for c in known[1:]:
        assert result is not None
        result = result & c
    return result


@dataclass(frozen=True)
class Windows:
    """Regular windows over the last dimensions.

    Attributes:
        size: input extents.
        out: output extents.
        kernel, stride, padding, dilation: per dimension.
        rounded_up: whether the last windows may leave the padded input.
    """

    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    rounded_up: bool = False

    @property
    def n(self) -> int:
        """Number of pooled dimensions."""
        return len(self.size)

    def open_ended(self, d: int) -> bool:
        """Whether the last window leaves the padded input at some of the sizes that the graph is for, and at others not."""
        return self.rounded_up and windows_between(self.size[d], self.out[d]) is not None

    def inside(self, d: int) -> bool:
        """Whether no window leaves the input in dimension ``d``."""
        if self.open_ended(d):
            return False
        last = (self.out[d] - 1) * self.stride[d] + (self.kernel[d] - 1) * self.dilation[d] - self.padding[d]
        return self.padding[d] == 0 and last < self.size[d]

    def position(self, b: LoopNestBuilder, d: int, at: int, tap: int) -> Expr:
        """Input position of a window's tap; ``at`` and ``tap`` are loops."""
        return b.index(at) * self.stride[d] + b.index(tap) * self.dilation[d] - self.padding[d]

    def load(self, k: Kernel, x: Ref, lead: int, other: float) -> Expr:
        """The input under a tap, ``other`` outside; loops are (leading, output positions, taps)."""
        b, n = k.body, self.n
        spatial = x.strides[lead:]
        strides = [
            *x.strides[:lead],
            *(s * t for s, t in zip(spatial, self.stride, strict=True)),
            *(s * t for s, t in zip(spatial, self.dilation, strict=True)),
        ]
        conditions: list[Expr | None] = []
        beyond = any(map(self.open_ended, range(n)))
        for d in range(n):
            if not self.inside(d):
                i = self.position(b, d, lead + d, lead + n + d)
                conditions += [i >= 0, i < (hidden(b, self.size[d]) if beyond else self.size[d])]
        mask = both(conditions)
        if beyond:
            # A load may be laid out anew where its loops stay inside, which is so at some sizes; a gather everywhere.
            at = [self.position(b, d, lead + d, lead + n + d) for d in range(n)]
            none = (*x.strides[:lead], *(0,) * (2 * n))
            return k.gather(
                x,
                none,
                at,
                range(lead, lead + n),
                checked=False,
                mask=mask,
                other=b.const(other, compute_type(x.dtype)),
            )
        # The first tap of the first window may lie before the tensor; the mask keeps it from being read.
        start = replace(x, offset=x.offset - sum(s * p for s, p in zip(spatial, self.padding, strict=True)))
        if mask is None:
            return k.load(start, strides)
        return k.load(start, strides, mask=mask, other=b.const(other, compute_type(x.dtype)))

    def covering(self, d: int) -> int:
        """How many windows at most have a tap on one input position."""
        return ((self.kernel[d] - 1) * self.dilation[d]) // self.stride[d] + 1

    def distances(self, d: int, phase: int) -> list[int]:
        """What to add to i for the windows that may cover input position i * stride + phase."""
        reach, step = phase + self.padding[d], self.stride[d]
        behind = (self.kernel[d] - 1) * self.dilation[d] - reach % step
        return [reach // step - a for a in range(behind // step + 1)]

    def window(self, b: LoopNestBuilder, d: int, at: Expr, which: Expr) -> Expr:
        """Number of a window that may cover the input position ``at``; ``which`` counts backwards from the last."""
        reach, step = at + self.padding[d], self.stride[d]
        if step & (step - 1) == 0:  # unlike a division, a shift keeps a loop in vectors
            last = b.op("shr", reach, b.const(step.bit_length() - 1, "i64")) if step > 1 else reach
        else:
            last = b.op("idiv_floor", reach, b.const(step, "i64"))
        return last - which

    def covers(self, b: LoopNestBuilder, d: int, at: Expr, window: Expr) -> Expr:
        """Whether there is such a window, and it has a tap or a gap between taps on the input position ``at``."""
        span = at + self.padding[d] - window * self.stride[d]
        inside = (window >= 0) & (window < self.out[d])
        return inside & (span <= (self.kernel[d] - 1) * self.dilation[d])
