"""Memory that a caller has for results: which of it a program writes to, in place of buffers of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from dcir.ops.torch_types import FROM_NAME
from dcir.runtime.program_info import ProgramInfo


def given_buffers(info: ProgramInfo, memory: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The tensors that take the place of buffers, by the buffers' numbers.

    That is so of a result that is all of a buffer, alone, in a tensor of just its layout. Other results are not written there.

    Args:
        info: of the program, with buffers that look like their results.
        memory: tensors by the numbers of the results that may be written to them.
    """
    uses = Counter(r.index for r in info.results if r.source == "buffer")
    placed = {number for number, _ in info.shared}
    found = {}
    for number, t in memory.items():
        r = info.results[number]
        if r.source != "buffer" or r.shape is not None or uses[r.index] > 1 or r.index in placed:
            continue
        b = info.buffers[r.index]
        if (tuple(t.shape), t.stride(), t.dtype) == (b.shape, b.strides, FROM_NAME[b.dtype]):
            found[r.index] = t
    return found
