"""Page of dropout: torch draws the mask, the arithmetic around it fuses with its neighbours.

native_dropout(x)  -->  mask = bernoulli(1 - p) in torch;  y = x * mask / (1 - p)

Eager torch draws the same mask from the same state of its generator, so results stay equal, seed by seed.
"""

from __future__ import annotations

from collections.abc import Iterable

from dcir.ops.library.torch_call import TorchCall
from dcir.ops.lowering import Lowering, NotNative, Ref, is_contiguous
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def _certain() -> Iterable[Sample]:
    """Calls whose result does not depend on chance."""
    yield Sample((rand(3, 5), 0.5, False), name="evaluation")
    yield Sample((rand(3, 5), 0.0, True), name="nothing dropped")
    yield Sample((rand(3, 5), 1.0, True), name="everything dropped")


@operator("aten.native_dropout.default", samples=_certain)
def native_dropout(ctx: Lowering, x: Ref, p: float, train: bool | None) -> tuple[Ref, Ref]:
    """The kept elements, scaled up by 1 / (1 - p), and the mask."""
    mask = ctx.result(1)
    if train is False:
        return x, ctx.full(1, mask)
    if p == 1:  # nothing is left to chance, and torch draws nothing
        ctx.full(0, mask)
        return ctx.pointwise(lambda v: v * 0.0, x), mask
    if not is_contiguous(mask.shape, mask.strides):
        raise NotNative("a mask drawn in another order than it is stored")
    if x.numel:
        # The operator reads nothing of its argument but type and shape: one element stands for all.
        like = ctx.full(0, ctx.new((), "bool"))
        window = (mask.shape, (0,) * len(mask.shape), "bool")
        spec = TorchCall(
            "aten.bernoulli.p", (("t", 0), ("v", 1.0 - p)), (), (window,), ((mask.shape, mask.strides, "bool"),)
        )
        ctx.draw(spec, [like], [mask])
    scale = 1.0 / (1.0 - p)
    return ctx.pointwise(lambda v, m: v * m * scale, x, mask), mask
