"""A compiled network on a GPU as a Python callable: one C call puts all of it on PyTorch's current stream, and nothing waits.

All memory is PyTorch's: results by ``torch.empty_strided``, scratch memory by one ``torch.empty`` a call, so that the order on streams,
what happens when memory runs out and captures of graphs are what they are for PyTorch's own operators. With ``DCIR_CUDA=twin`` the
tensors are the CPU's and the kernels run there.
"""

from __future__ import annotations

import _ctypes
import ctypes
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import profiler

from dcir.errors import ArtefactInvalid, DcirError, FallbackFailed, IndexOutOfRange, InvalidInput
from dcir.kernel_images import image_name, images_of
from dcir.ops.reach import check_call
from dcir.ops.torch_types import FROM_NAME
from dcir.runtime.blocks import Arenas
from dcir.runtime.cuda_calls import DeviceCall, tensor_in
from dcir.runtime.cuda_capture import DeviceCapture, TwinCapture
from dcir.runtime.cuda_clock import StepClock, steps_of
from dcir.runtime.cuda_device import architecture_of, capturing, device_of
from dcir.runtime.cuda_driver import CudaDriver, Kernels, cuda_driver
from dcir.runtime.cuda_replays import Captured, Replays
from dcir.runtime.cuda_status import StatusWords
from dcir.runtime.frame import CALL_BACK
from dcir.runtime.part_by_part import PartByPart
from dcir.runtime.preparation import Preparation
from dcir.runtime.program import Program
from dcir.runtime.program_info import ProgramInfo

# Behind a launch's error stands the number of its operator (``codegen/cuda/print_driver.py``).
_LAUNCH_FAILED = 1_000_000
_CPU = torch.device("cpu")


class _Frame:
    """One call's table of pointers and of the tensors behind them.

    Attributes:
        twin: what notes calls into torch in place of their being made.
    """

    def __init__(self, slots: int, callbacks: Mapping[int, DeviceCall]) -> None:
        self.table = (ctypes.c_void_p * max(slots, 1))()
        self.bases: list[torch.Tensor | None] = [None] * max(slots, 1)
        self.address = ctypes.addressof(self.table)
        self.error: BaseException | None = None
        self.twin: TwinCapture | None = None

        def call(number: int) -> int:
            try:
                if self.twin is not None:
                    self.twin.call(callbacks[number], self)
                else:
                    callbacks[number](self)
            except BaseException as e:
                self.error = e
                return 1
            return 0

        self.call_back = CALL_BACK(call)

    def put(self, slot: int, t: torch.Tensor) -> None:
        """Have a tensor at a slot."""
        self.bases[slot] = t
        self.table[slot] = t.data_ptr()

    def clear(self) -> None:
        """Hold no tensor any more."""
        self.bases[:] = [None] * len(self.bases)


class CudaProgram(Program):
    """A loaded network on a GPU. Calls from several threads are safe.

    ``info.callbacks`` take the tensors of a call by slot (``cuda_calls.py``).

    Args:
        path, info, constants: as of a program on the CPU.
        made: table slots of buffers whose tensors calls into torch make; what is no result they may let go of again.
        twin: whether tensors and kernels are the CPU's.

    Attributes:
        replays: the calls that are replays of a recorded one; None where nobody wants that.
    """

    def __init__(
        self,
        path: Path,
        info: ProgramInfo,
        constants: Sequence[torch.Tensor],
        made: Collection[int] = (),
        *,
        twin: bool,
    ) -> None:
        self.info = info.with_buffers_as_results()
        self.name = "dcir"
        self.arenas = Arenas()
        self.constants = list(constants)
        self._twin, self._path, self._made = twin, path, frozenset(made)
        self._load(path)
        self.preparation = Preparation(
            info.prepared_bytes, "version", lambda frame: 0, lambda *given: None, lambda frame: None
        )
        shared = dict(self.info.shared)
        self._buffers = [
            (b.shape, b.strides, FROM_NAME[b.dtype], slot, shared.get(i, -1))
            for i, (b, slot) in enumerate(zip(self.info.buffers, self.info.buffer_slots, strict=True))
        ]
        self._inputs = [(i, s) for i, s in enumerate(self.info.input_slots) if s >= 0]
        self._frames: list[_Frame] = []
        self._on: dict[torch.device, list[torch.Tensor]] = {}
        self._driver: CudaDriver | None = None
        self._kernels: Kernels | None = None
        self._words: list[StatusWords] = []
        self._clocks: dict[torch.device, StepClock] = {}
        self._clock: StepClock | None = None
        self.replays: Replays | None = None

    def _load(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
            self._run, bind = self._library.dcir_run, self._library.dcir_bind
            checked = ctypes.c_int.in_dll(self._library, "dcir_checked_count").value
            self._checked = list((ctypes.c_int * max(checked, 1)).in_dll(self._library, "dcir_checked"))[:checked]
            count = ctypes.c_int.in_dll(self._library, "dcir_kernel_count").value
            names = (ctypes.c_char_p * max(count, 1)).in_dll(self._library, "dcir_kernels")
            shared = (ctypes.c_int * max(count, 1)).in_dll(self._library, "dcir_shared")
            self._needed = [((names[i] or b"").decode(), shared[i]) for i in range(count)]
            self._decides = bool(ctypes.c_int.in_dll(self._library, "dcir_decides").value)
        except (OSError, AttributeError, ValueError) as e:
            details = [("system", str(e))]
            raise ArtefactInvalid("a compiled library cannot be loaded", where=str(path), details=details) from e
        weakref.finalize(self, _ctypes.dlclose, self._library._handle).atexit = False
        self._run.restype = ctypes.c_int
        self._run.argtypes = [ctypes.c_void_p, CALL_BACK, ctypes.c_void_p, ctypes.c_void_p]
        bind.restype, bind.argtypes = None, [ctypes.c_void_p] * 5
        if self._twin:
            bind(None, None, None, None, None)
            self._library.dcir_fault.restype = ctypes.c_char_p

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Run the network on the current stream of its device.

        Args:
            args: the graph's arguments, laid out as when it was compiled.

        Raises:
            InvalidInput: the call is traced, or wants forward derivatives.
            IndexOutOfRange: an index tensor led outside a tensor, in this call or (on a device) in one before.
            FallbackFailed: an operator run through torch failed.
            ArtefactInvalid: the device refuses a kernel.
        """
        check_call(args)
        device = _CPU if self._twin else device_of(args, self.constants)
        if device.type == "cuda" and torch.cuda.current_device() != device.index:
            with torch.cuda.device(device):
                return self._called(args, device)
        return self._called(args, device)

    def replay_calls(self) -> str:
        """Have calls be replays of one that is recorded; why not, "" if they are."""
        refused = next((c.unrecorded for c in self.info.callbacks.values() if c.unrecorded), "")  # type: ignore[attr-defined]
        if self._decides:
            refused = "what comes next depends on a bool on the device"
        self.replays = Replays(self.info, self._recorded, refused)
        return refused

    def _called(self, args: Sequence[Any], device: torch.device) -> list[Any]:
        in_capture = capturing(device)
        if not in_capture:  # a capture forbids to ask whether something has arrived
            for words in (*self._words, *(self.replays.words() if self.replays is not None else ())):
                self._tell(words.seen(wait=False))
            if self.replays is not None:
                stream = 0 if self._twin else self._stream(device)
                replayed = self.replays.called(args, device, stream)
                if replayed is not None:
                    for words in self.replays.words() if self._twin else ():
                        self._tell(words.seen(wait=True))
                    return self._results(replayed, args)
        frame = self._frames.pop() if self._frames else self._frame()
        words = self._take_words(device, any_of_them=in_capture)
        try:
            given, whole = self._put_on_stream(frame, args, device, words)
            if words.count:
                words.send()
            if self._twin:
                self._tell(words.seen(wait=True))
            self._write_back(args, given)
        finally:
            frame.clear()
            self._frames.append(frame)
            self._words.append(words)
        return self._results(whole, args)

    def _frame(self) -> _Frame:
        return _Frame(self.info.table_size, self.info.callbacks)  # type: ignore[arg-type]

    def _put_on_stream(
        self, frame: _Frame, args: Sequence[Any], device: torch.device, words: StatusWords
    ) -> tuple[list[Any], list[Any]]:
        """All of a call; its arguments as they are on the device, and what it writes its results to."""
        given, buffers = self._with_tensors(frame, args, device)
        if self._twin:
            stream = None if frame.twin is None else frame.twin.stream
        else:
            stream = self._stream(device)
        if profiler._is_profiler_enabled:
            with _RecordFunctionFast(self.name):
                code = self._run(frame.address, frame.call_back, stream, words.address)
        else:
            code = self._run(frame.address, frame.call_back, stream, words.address)
        if code:
            self._refused(code, frame)
        return given, self._complete(buffers, frame)

    def _recorded(self, given: list[Any], device: torch.device, stream: int) -> Captured:
        """A call that is recorded and has not run."""
        frame, words = self._frame(), StatusWords(len(self._checked), device)
        if self._twin:
            frame.twin = twin = TwinCapture(self._library)
            _, whole = twin.record(lambda: self._put_on_stream(frame, given, device, words))
            return Captured(twin, given, whole, words, frame)
        capture = DeviceCapture(device, stream)
        _, whole = capture.record(lambda: self._put_on_stream(frame, given, device, words))
        frame.clear()  # its scratch memory is the graph's, and that of other graphs in turn
        return Captured(capture, given, whole, words)

    def _complete(self, buffers: Sequence[torch.Tensor | None], frame: _Frame) -> list[Any]:
        """The buffers with those that calls into torch have made; None of those that are gone."""
        found: list[Any] = []
        for t, (shape, strides, _, slot, _) in zip(buffers, self._buffers, strict=True):
            if t is None:
                t = frame.bases[slot]
                if t is not None and (t.shape, t.stride()) != (shape, strides):
                    t = torch.as_strided(t.detach(), shape, strides)
            found.append(t)
        return found

    def _with_tensors(
        self, frame: _Frame, args: Sequence[Any], device: torch.device
    ) -> tuple[list[Any], list[torch.Tensor | None]]:
        """The arguments as they are on the device, and new buffers; the frame has them all."""
        info, given = self.info, list(args)
        if device.type == "cuda" and capturing(device) and any(given[i].device != device for i, _ in self._inputs):
            raise InvalidInput(
                "a tensor on the CPU cannot be read in a captured call", where=self.name,
                hint="move it to the GPU before torch.cuda.graph",
            )  # fmt: skip
        for i, slot in self._inputs:
            if given[i].device != device:
                given[i] = given[i].to(device, non_blocking=True)
            frame.put(slot, given[i])
        for slot, i in info.updates:
            if given[i].device != device:
                given[i] = given[i].to(device, non_blocking=True)
            frame.put(slot, given[i])
        for slot, c in zip(info.constant_slots, self._constants_on(device), strict=True):
            frame.put(slot, c)
        buffers: list[torch.Tensor | None] = []
        for shape, strides, dtype, slot, argument in self._buffers:
            if slot in self._made:
                buffers.append(None)
                continue
            if argument >= 0:
                t = tensor_in(given[argument], 0, shape, strides, dtype)
            else:
                t = torch.empty_strided(shape, strides, dtype=dtype, device=device)
            frame.put(slot, t)
            buffers.append(t)
        if info.arena_bytes:
            frame.put(0, torch.empty(info.arena_bytes, dtype=torch.uint8, device=device))
        if info.prepared_bytes:
            frame.put(1, torch.empty(info.prepared_bytes, dtype=torch.uint8, device=device))
        return given, buffers

    def _write_back(self, args: Sequence[Any], given: Sequence[Any]) -> None:
        """Arguments that are the CPU's and were written: their numbers."""
        for _, i in self.info.updates:
            if given[i] is not args[i]:
                args[i].copy_(given[i])

    def _constants_on(self, device: torch.device) -> list[torch.Tensor]:
        if device not in self._on:
            self._on[device] = [c.to(device) for c in self.constants]
        return self._on[device]

    def _stream(self, device: torch.device) -> int:
        """PyTorch's current stream, with the kernels loaded for its device."""
        if self._driver is None:
            self._driver = cuda_driver()
        self._driver.enter(device.index)
        if (self._kernels is None or not self._kernels.is_ready(device.index)) and capturing(device):
            raise InvalidInput(
                "the first call on a device cannot be captured: its kernels are loaded there", where=self.name,
                hint="call the model once before torch.cuda.graph",
            )  # fmt: skip
        if self._kernels is None:
            images, arch = images_of(self._path), ""
            if images:
                arch = architecture_of(device.index, {name.partition("/")[0] for name in images})
            rows = [(name, images[image_name(arch, name)], shared) for name, shared in self._needed]
            self._kernels = self._driver.load(rows, device.index)
            driver = self._driver
            self._library.dcir_bind(driver.launch, driver.copy, driver.move, driver.wait, self._kernels.table)
        self._kernels.ready(device.index)
        if (steps := steps_of(self._library)) and not capturing(device):
            if device not in self._clocks:
                self._clocks[device] = StepClock(self._library, self._driver.record, steps)
            self._clock = self._clocks[device].chosen()
        return int(torch._C._cuda_getCurrentRawStream(device.index))

    def _take_words(self, device: torch.device, *, any_of_them: bool) -> StatusWords:
        for i, words in enumerate(self._words):
            if words.device == device and (words.idle or any_of_them):
                return self._words.pop(i)
        return StatusWords(len(self._checked), device)

    def ticks(self, steps: int) -> list[int]:
        """Nanoseconds of each step of the last call, and 0 for teams of threads; of a library that was built to be profiled."""
        return super().ticks(steps) if self._clock is None else self._clock.ticks()

    def _tell(self, bad: int | None) -> None:
        """Say that an operator met a bad index."""
        if bad is None:
            return
        where = self.info.origins[self._checked[bad]] or None
        raise IndexOutOfRange(
            "index out of range: an index tensor holds a value outside the tensor it indexes"
            + ("" if self._twin else ", in an earlier call"),
            where=where,
            hint="check the range of the indices (torch's eager mode raises at the same place)",
        )

    def _refused(self, code: int, frame: _Frame) -> None:
        if code < 0:
            error, frame.error = frame.error, None
            raise error if error is not None else FallbackFailed("an operator run through torch failed")
        error_code, number = divmod(code, _LAUNCH_FAILED)
        what = self._library.dcir_fault().decode() if self._twin else cuda_driver().name_of(error_code)
        raise ArtefactInvalid(f"a kernel cannot run: {what}", where=self.info.origins[number - 1] or None)

    def part_by_part(
        self, args: Sequence[Any], memory: Mapping[int, torch.Tensor] | None = None
    ) -> tuple[list[Any], PartByPart]:
        """As of a program on the CPU; all parts are on the stream before the first is asked for."""
        results = self(args)
        return results, PartByPart(
            self.info.parts, lambda part: None, results, self.info.ready, list(args), lambda: None
        )

    def fixed(self, *args: Any) -> None:
        """None: there is no shorter way to call it."""

    def place(self, blocks: Any) -> None:
        """Refuse: no pass for GPUs has a forward write where its backward wants it.

        Raises:
            DcirError: always.
        """
        raise DcirError("a program on a GPU has no blocks of a backward")
