"""What a program needs besides its library, as the manifest of a .dcir file has it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dcir.runtime.manifest import Manifest
from dcir.runtime.program_info import BufferInfo, ConstantInfo, ProgramInfo, ResultInfo


def described(m: Manifest, tensors: Sequence[Tensor]) -> tuple[ProgramInfo, list[Tensor]]:
    """All but the calls into torch, and the constants in the order of their slots.

    Args:
        m: the manifest, of constant sizes.
        tensors: one per constant of the manifest.
    """
    pairs = [(slot, t) for c, t in zip(m.constants, tensors, strict=True) for slot in c.slots]
    laid_out = [
        ConstantInfo(c.shape, c.strides, c.dtype, c.names[0] if c.names else c.tensor)
        for c in m.constants
        for _ in c.slots
    ]
    info = ProgramInfo(
        table_size=m.table_size,
        arena_bytes=m.arena_bytes,
        prepared_bytes=m.prepared_bytes,
        input_slots=tuple(x.slot for x in m.inputs),
        constant_slots=tuple(slot for slot, _ in pairs),
        constants=tuple(laid_out),
        static_constants=tuple(range(len(pairs))) if m.prepared_bytes else (),
        buffers=tuple(BufferInfo(b.shape, b.strides, b.dtype) for b in m.buffers),
        buffer_slots=tuple(b.slot for b in m.buffers),
        results=tuple(ResultInfo(o.source, o.index, o.shape, o.strides, o.offset, o.literal) for o in m.outputs),
        callbacks={},
        origins=m.origins,
    )
    return info, [t for _, t in pairs]
