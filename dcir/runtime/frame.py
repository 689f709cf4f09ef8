"""One call's pointer table, and what makes the buffers of its results, or finds them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dcir.errors import InvalidInput
from dcir.ops.torch_types import FROM_NAME
from dcir.runtime import uncounted
from dcir.runtime.buffers import Take, window
from dcir.runtime.preparation import Prepared
from dcir.runtime.program_info import BufferInfo, ConstantInfo

if TYPE_CHECKING:
    from dcir.runtime.program import Fixed, Program

CALL_BACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)


class Frame:
    """One call's pointer table."""

    def __init__(self, program: Program) -> None:
        info = program.info
        self.prepared: Prepared | None = None
        # Of what was last put in its place: static inputs and constants.
        self.addresses: list[int] = []
        self.moves = -1
        # Which ``Fixed`` the table is filled for: itself it reaches the module, which nothing that its code is held by may hold.
        self.fixed: object = None
        self.table = (ctypes.c_void_p * max(info.table_size, 1))()
        self.put_constants(program)
        self.sizes = (ctypes.c_longlong * max(len(info.sizes), 1))(*info.sizes)
        if info.sizes_slot >= 0:
            self.table[info.sizes_slot] = ctypes.addressof(self.sizes)
        self.address = ctypes.addressof(self.table)
        self.error: BaseException | None = None
        callbacks, table = info.callbacks, self.table

        def call(number: int) -> int:
            try:
                callbacks[number](table)
            except BaseException as e:
                self.error = e
                return 1
            return 0

        self.call_back = CALL_BACK(call)
        self.calls = ctypes.cast(self.call_back, ctypes.c_void_p).value or 0

    def put_constants(self, program: Program) -> None:
        """Give the table the constants where they lie now.

        Raises:
            InvalidInput: one is laid out otherwise than code reads it.
        """
        held = list(zip(program.constants, program.info.constants, strict=False))
        uncounted.watch(t.untyped_storage() for t, _ in held)
        moves = uncounted.moves.number
        for t, laid_out in held:
            _check(t, laid_out)
        for slot, t in zip(program.info.constant_slots, program.constants, strict=True):
            self.table[slot] = t.data_ptr()
        self.moves = moves

    def fill(self, fixed: Fixed) -> None:
        """Give the table what stays as it was."""
        for slot, address in fixed.places:
            self.table[slot] = address
        if fixed.prepared is not None:
            self.prepared, self.addresses = fixed.prepared, fixed.prepared.addresses
            self.table[1] = fixed.prepared.block.address
        self.fixed = fixed.token


def _check(t: torch.Tensor, wanted: ConstantInfo) -> None:
    strides = zip(wanted.shape, t.stride(), wanted.strides, strict=False)
    if (
        t.dtype is FROM_NAME[wanted.dtype]
        and tuple(t.shape) == wanted.shape
        and (t.numel() == 0 or all(n == 1 or have == want for n, have, want in strides))
        and t.is_cpu
        and not (t.is_conj() or t.is_neg())
    ):
        return
    compiled, now = (FROM_NAME[wanted.dtype], wanted.shape, wanted.strides), (t.dtype, t.shape, t.stride())
    raise InvalidInput(
        f"{wanted.name} of a compiled file cannot be laid out otherwise", where=wanted.name,
        details=[("compiled", _shown(*compiled)), ("now", _shown(*now))],
        hint="copy into it: load_state_dict without assign=True, or x.copy_(); or dcir.optimize(model)",
    )  # fmt: skip


def _shown(dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> str:
    return f"{dtype} {list(shape)}, strides {list(strides)}"


# From the arguments of a call and the blocks it has taken to a buffer.
Maker = Callable[[Sequence[Any], Sequence[torch.Tensor]], torch.Tensor]


def fresh(take: Take) -> Maker:
    """A buffer of its own."""
    return lambda args, blocks: take()


def placed(info: BufferInfo, block: int, offset: int) -> Maker:
    """A buffer in a block that the call has taken."""
    dtype = FROM_NAME[info.dtype]
    return lambda args, blocks: window(blocks[block], offset, info.shape, info.strides, dtype)


def beginning(info: BufferInfo, argument: int) -> Maker:
    """A buffer where an argument begins."""
    dtype = FROM_NAME[info.dtype]
    return lambda args, blocks: window(args[argument], 0, info.shape, info.strides, dtype)


def there(buffer: torch.Tensor) -> Maker:
    """A buffer that is there already."""
    return lambda args, blocks: buffer
