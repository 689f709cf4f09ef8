"""Captures of what a call puts on a stream: CUDA's graphs, and the same for kernels' twin on the CPU.

In both nothing runs while it is recorded, and a replay runs it at the addresses that it was recorded with.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from dcir.errors import ArtefactInvalid
from dcir.runtime.cuda_calls import Bases, DeviceCall

T = TypeVar("T")
# A process captures one graph at a time; those of one stream share scratch memory, since they are replayed one behind the other and leave
# nothing there.
_ONE = threading.Lock()
_POOLS: dict[tuple[int, int], Any] = {}


class Capture(Protocol):
    """What a call has put on a stream."""

    def record(self, run: Callable[[], T]) -> T:
        """Hear what ``run`` puts on the stream, once."""

    def replay(self) -> None:
        """Put all of it on the current stream."""


class DeviceCapture:
    """A graph of CUDA's.

    Args:
        device: where it runs.
        stream: the only one that it is replayed on.
    """

    def __init__(self, device: torch.device, stream: int) -> None:
        index = device.index
        if (index, stream) not in _POOLS:
            _POOLS[index, stream] = torch.cuda.graph_pool_handle()
        self._graph, self._pool, self._device = torch.cuda.CUDAGraph(), _POOLS[index, stream], device

    def record(self, run: Callable[[], T]) -> T:
        """Hear what ``run`` puts on the stream; other threads may go on with what they do."""
        side = torch.cuda.Stream(self._device)
        with _ONE, torch.cuda.graph(self._graph, pool=self._pool, stream=side, capture_error_mode="thread_local"):
            return run()

    def replay(self) -> None:
        """One launch."""
        self._graph.replay()


_Sizes, _Pointers = ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_void_p)
_HEARS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _Sizes, _Pointers)
_TWIN = ctypes.CFUNCTYPE(ctypes.c_int, _Sizes, _Pointers)
_SIZES = 7  # of a grid and a block, and bytes of shared memory


class TwinCapture:
    """Launches and calls into torch of one run of a library with kernels' twins.

    Args:
        library: the loaded library.

    Attributes:
        stream: what the library takes for a stream, so that launches are noted in place of being run.
    """

    def __init__(self, library: Any) -> None:
        count = ctypes.c_int.in_dll(library, "dcir_kernel_count").value
        twins = (ctypes.c_void_p * max(count, 1)).in_dll(library, "dcir_twins")
        given = (ctypes.c_int * max(count, 1)).in_dll(library, "dcir_arguments")
        self._arguments = dict(zip(twins[:count], given[:count], strict=True))
        self._fault = library.dcir_fault
        self._steps: list[Callable[[], None]] = []
        self._hears = _HEARS(self._hear)
        self.stream = ctypes.cast(self._hears, ctypes.c_void_p).value

    @property
    def steps(self) -> int:
        """How many launches and calls it holds."""
        return len(self._steps)

    def record(self, run: Callable[[], T]) -> T:
        """Hear what ``run`` starts; it hands ``stream`` to the library and calls back to ``call``."""
        return run()

    def call(self, back: DeviceCall, frame: Bases) -> None:
        """Note a call into torch. What it will make gets its memory now."""
        back.release(frame)
        if back.makes is not None:
            slot, (shape, strides, dtype) = back.makes
            frame.put(slot, torch.empty_strided(shape, strides, dtype=dtype))
        self._steps.append(partial(back.run, _Again(list(frame.bases))))

    def replay(self) -> None:
        """Run all of it."""
        for step in self._steps:
            step()

    def _hear(self, function: int, sizes: Any, arguments: Any) -> int:
        count = self._arguments[function]
        values = (ctypes.c_void_p * count)(*(ctypes.c_void_p.from_address(arguments[i]).value for i in range(count)))
        begin, size = ctypes.addressof(values), ctypes.sizeof(ctypes.c_void_p)
        pointers = (ctypes.c_void_p * count)(*(begin + i * size for i in range(count)))
        self._steps.append(partial(self._start, function, (ctypes.c_uint * _SIZES)(*sizes[:_SIZES]), pointers, values))
        return 0

    def _start(self, function: int, sizes: Any, pointers: Any, values: Any) -> None:
        if _TWIN(function)(sizes, pointers):
            raise ArtefactInvalid(f"a kernel cannot run: {self._fault().decode()}")


class _Again:
    """The tensors of a recorded call, for its replays: what is made is copied to where it was when it was recorded."""

    def __init__(self, bases: list[torch.Tensor | None]) -> None:
        self.bases = bases

    def put(self, slot: int, t: torch.Tensor) -> None:
        """Have a tensor's numbers at a slot."""
        there = self.bases[slot]
        assert there is not None
        there.copy_(t)
