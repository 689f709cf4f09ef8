"""A compiled network as a Python callable: one C call over a table of pointers, arenas kept per concurrent call."""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import operator
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import profiler

from dcir.errors import ArtefactInvalid, FallbackFailed, IndexOutOfRange
from dcir.ops.reach import check_call, refuse_batches
from dcir.ops.torch_types import FROM_NAME
from dcir.runtime import uncounted
from dcir.runtime.backward_blocks import BackwardBlocks
from dcir.runtime.blocks import Arenas, Block
from dcir.runtime.buffers import SizedBuffers, Take, new_buffer, pooled
from dcir.runtime.direct import Conditions, Direct, direct
from dcir.runtime.entry import CHANGED, OTHER_MODES, entry
from dcir.runtime.frame import CALL_BACK, Frame, Maker, beginning, fresh, placed, there
from dcir.runtime.given_memory import given_buffers
from dcir.runtime.part_by_part import PartByPart
from dcir.runtime.preparation import Preparation, Prepared
from dcir.runtime.program_info import ProgramInfo
from dcir.runtime.recorder import Recorder, declare, recorded
from dcir.runtime.watch import Watch

_ADDRESS = torch.Tensor.data_ptr
_VERSION = operator.attrgetter("_version")

_in_child = False


def _forked() -> None:
    global _in_child
    _in_child = True


# A forked process has its parent's record of a thread team but none of the threads: libgomp would wait for them forever.
os.register_at_fork(after_in_child=_forked)


@dataclass(frozen=True)
class Fixed:
    """Arguments that stay as they were in a call before.

    Attributes:
        places: (slot, address) of each.
        prepared: what was made from them, if anything is.
        watched: what must be as it was for them to be the same.
        compared: fingerprint of what ``prepared`` was made from; None if it is not compared.
        enter: looks for changes and runs, see ``entry.py``.
        made: for each result container, what gives a new one.
        token: what it is known by to those who must not hold it.
    """

    places: tuple[tuple[int, int], ...]
    prepared: Prepared | None
    watched: Watch
    compared: int | None
    enter: Callable[..., int]
    made: tuple[Callable[[], torch.Tensor], ...]
    token: object = field(default_factory=object)


class Program:
    """A loaded network. Calls from several threads are safe: each call in flight has its own arena and table.

    What depends on parameters alone is computed at the first call and again when a parameter changes (``preparation.py``); with
    ``like``, a program of the same library for other sizes, that is done once for both. ``buffers`` gives results their memory, where
    that is to serve those other sizes, too.

    Attributes:
        name: of its calls in torch's profiler.
    """

    def __init__(
        self,
        path: Path,
        info: ProgramInfo,
        constants: Sequence[torch.Tensor],
        arenas: Arenas | None = None,
        *,
        prepare: str = "version",
        like: Program | None = None,
        buffers: SizedBuffers | None = None,
    ) -> None:
        self.info = info = info.with_buffers_as_results()
        self.arenas = Arenas() if arenas is None else arenas
        self.constants = list(constants)
        self.name = "dcir"
        self._like = like  # which keeps the library loaded
        self._load(path) if like is None else self._share(like)
        self._recorder = Recorder(info.events) if info.events else None
        self._free: list[Frame] = []
        static = set(info.static_inputs)
        self._static_slots = [info.input_slots[i] for i in info.static_inputs]
        # Constants are tensors that a user may hold, too: a module's attribute, the weights of a compiled file.
        self._static_constants = [self.constants[i] for i in info.static_constants]
        self._held = self.constants if info.constants else []
        self.preparation: Preparation = Preparation(
            info.prepared_bytes, prepare, self._fingerprint,
            functools.partial(self._enter, self._digest), functools.partial(self._enter, self._prepare),
        )  # fmt: skip
        if like is not None:  # it prepares the same values
            self.preparation = like.preparation
        self._tensor_inputs = [(i, s) for i, s in enumerate(info.input_slots) if s >= 0 and i not in static]
        shared, self._sized = dict(info.shared), buffers
        alloc: list[tuple[Maker, int]] = [
            (beginning(info.buffers[i], shared[i]) if i in shared else fresh(take), slot)
            for i, (take, slot) in enumerate(zip(self._takes(), info.buffer_slots, strict=True))
        ]
        # Whether a call returns something else than its buffers, in their order.
        self._windows = [(r.source, r.index, r.shape) for r in info.results] != [
            ("buffer", i, None) for i in range(len(info.buffers))
        ]
        self._placed: tuple[BackwardBlocks | None, list[tuple[Maker, int]]] = None, alloc

    def _load(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
            self._run = self._library.dcir_run
            self._prepare = self._library.dcir_prepare
            self._fingerprint = self._library.dcir_fingerprint
            self._digest = self._library.dcir_digest
        except (OSError, AttributeError) as e:
            details = [("system", str(e))]
            raise ArtefactInvalid("a compiled library cannot be loaded", where=str(path), details=details) from e
        # A process that compiles graph after graph would otherwise map one library after another.
        weakref.finalize(self, _ctypes.dlclose, self._library._handle).atexit = False
        self._run.restype = ctypes.c_int
        self._run.argtypes = [ctypes.c_void_p, CALL_BACK]
        self._prepare.restype, self._prepare.argtypes = ctypes.c_int, [ctypes.c_void_p]
        self._fingerprint.restype, self._fingerprint.argtypes = ctypes.c_ulonglong, [ctypes.c_void_p]
        if self.info.parts > 1:
            part = self._library.dcir_part
            part.restype, part.argtypes = ctypes.c_int, [ctypes.c_void_p, CALL_BACK, ctypes.c_int]
        if self.info.events:
            declare(self._library, self.info.parts)
        self._digest.restype = None
        self._digest.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_void_p]

    def _share(self, like: Program) -> None:
        self._library, self._run = like._library, like._run
        self._prepare, self._fingerprint, self._digest = like._prepare, like._fingerprint, like._digest

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Run the network.

        Args:
            args: the graph's arguments, laid out as when it was compiled.

        Raises:
            InvalidInput: the call is traced, or wants forward derivatives.
            IndexOutOfRange: an index tensor leads outside a tensor.
            FallbackFailed: an operator run through torch failed.
        """
        check_call(args)
        # What part_by_part asks its helpers for is in line here: a short call is made of little else.
        try:
            frame = self._free.pop()
        except IndexError:
            frame = Frame(self)
        arena = self.arenas.take(self.info.arena_bytes)
        try:
            table = frame.table
            frame.fixed = None
            table[0] = arena.address
            for i, slot in self._tensor_inputs:
                table[slot] = args[i].data_ptr()
            for slot, i in self.info.updates:
                table[slot] = args[i].data_ptr()
            buffers = self._new_buffers(table, args)
            if self._static_slots or self.info.prepared_bytes:
                self._make_ready(self._static(args), frame)
            elif self._held:
                self._find_held(frame)
            if profiler._is_profiler_enabled:
                code = self._told(self.name, "dcir_run", frame)
            else:
                code = self._enter(self._run, frame.address, frame.call_back)
            if code:
                self._fail(code, frame)
        except RuntimeError:
            refuse_batches(args)
            raise
        finally:
            self.arenas.give(arena)
            self._free.append(frame)
        return self._results(buffers, args)

    def part_by_part(
        self, args: Sequence[Any], memory: Mapping[int, torch.Tensor] | None = None
    ) -> tuple[list[Any], PartByPart]:
        """The results of a call that has computed nothing yet, and what runs it (``info.parts``).

        Args:
            args: as of a call.
            memory: for results by their numbers, where they may be written (``given_memory.py``); nobody else writes there until then.

        Raises:
            InvalidInput: as by a call.
        """
        check_call(args)
        frame, arena = self._taken()
        try:
            given = given_buffers(self.info, memory) if memory else {}
            results = self._results(self._filled(frame, arena, args, given), args)
        except BaseException:
            self._give_back(frame, arena)
            raise

        def run(part: int) -> None:
            if profiler._is_profiler_enabled:
                code = self._told(f"{self.name}, part {part + 1} of {self.info.parts}", "dcir_part", frame, part)
            else:
                code = self._enter(self._library.dcir_part, frame.address, frame.call_back, part)
            if code:
                self._fail(code, frame)

        # Whoever called may let go of the arguments, which are read until the last part has run.
        release = functools.partial(self._give_back, frame, arena)
        return results, PartByPart(self.info.parts, run, results, self.info.ready, list(args), release)

    def _taken(self) -> tuple[Frame, Block]:
        """A frame and an arena that no other call uses."""
        try:
            frame = self._free.pop()
        except IndexError:
            frame = Frame(self)
        return frame, self.arenas.take(self.info.arena_bytes)

    def _give_back(self, frame: Frame, arena: Block) -> None:
        self.arenas.give(arena)
        self._free.append(frame)

    def _filled(
        self, frame: Frame, arena: Block, args: Sequence[Any], given: Mapping[int, torch.Tensor]
    ) -> list[torch.Tensor]:
        """New buffers; the frame's table has their addresses, and those of all that the call reads."""
        table = frame.table
        frame.fixed = None
        table[0] = arena.address
        for i, slot in self._tensor_inputs:
            table[slot] = args[i].data_ptr()
        for slot, i in self.info.updates:
            table[slot] = args[i].data_ptr()
        buffers = self._new_buffers(table, args, given)
        if self._static_slots or self.info.prepared_bytes:
            self._make_ready(self._static(args), frame)
        elif self._held:
            self._find_held(frame)
        return buffers

    def fixed(self, args: Sequence[Any], moving: Sequence[int], watched: Watch) -> Fixed | None:
        """The arguments of the last call but those at ``moving``, for ``again``; None where it cannot be used.

        That is where arguments are written to or handed on, results lie in memory of others, or nobody counts writes.

        Args:
            args: of the last call.
            moving: numbers of the arguments that later calls bring.
            watched: what must stay as it is for the others to be the same.
        """
        info, known = self.info, self.preparation.known
        if (
            info.updates
            or info.shared
            or self._placed[0] is not None
            or any(r.source != "buffer" for r in info.results)
        ):
            return None
        if known is None and (self._static_slots or info.prepared_bytes):
            return None
        held = [i for i, slot in enumerate(info.input_slots) if slot >= 0 and i not in moving]
        if known is not None:
            static = self._static(args)
            if set(moving) & set(info.static_inputs) or any(t.is_inference() for t in static):
                return None
            if list(map(_ADDRESS, static)) != known.addresses or list(map(_VERSION, static)) != known.versions:
                return None
        slots = (0, *(info.input_slots[i] for i in moving if info.input_slots[i] >= 0), *info.buffer_slots)
        compared = known.fingerprint if known is not None and self.preparation.policy != "frozen" else None
        return Fixed(
            tuple((info.input_slots[i], args[i].data_ptr()) for i in held),
            known,
            watched,
            compared,
            entry(self._library, watched, slots, compared),
            self._takes(),
        )

    def like(self, fixed: Fixed) -> Fixed:
        """The same arguments, for this program of the library that ``fixed`` was made for: calls of other sizes."""
        return replace(fixed, made=self._takes(), token=object())

    def again(self, fixed: Fixed, moving: Sequence[torch.Tensor]) -> list[Any] | int:
        """Run with other tensors for some arguments and the rest as it was.

        The caller vouches that ``moving`` are laid out as when the program was compiled.

        Args:
            fixed: the rest.
            moving: the tensors that the program reads, in the order of ``fixed``'s ``moving``.

        Returns:
            The results; ``OTHER_MODES`` or ``CHANGED`` of ``entry.py`` where nothing was run.
        """
        try:
            frame = self._free.pop()
        except IndexError:
            frame = Frame(self)
        arena = self.arenas.take(self.info.arena_bytes)
        try:
            prepared = fixed.prepared
            if frame.fixed is not fixed.token:
                frame.fill(fixed)
            if prepared is not None and not self._unwritten(prepared):
                return CHANGED
            buffers = [new() for new in fixed.made]
            places = [t.data_ptr() for t in moving], [t.data_ptr() for t in buffers]
            if _in_child:
                code = self._enter(fixed.enter, frame.address, frame.calls, arena.address, *places[0], *places[1])
            else:
                code = fixed.enter(frame.address, frame.calls, arena.address, *places[0], *places[1])
            if code:
                if code in (OTHER_MODES, CHANGED):
                    return code
                self._fail(code, frame)
        finally:
            self.arenas.give(arena)
            self._free.append(frame)
        return self._results(buffers, ()) if self._windows else buffers

    def direct(self, fixed: Fixed, conditions: Conditions, inputs: Sequence[tuple[torch.Tensor, int]]) -> Direct | None:
        """``again`` as one native function (``direct.py``), for calls like the present one; None where it cannot be.

        That is where results are several, large or windows, or torch is called.

        Args:
            fixed: the arguments that stay.
            conditions: what the call depends on besides those, its own arguments and modes.
            inputs: tensors of the call, and the number of the argument that each is, -1 for one that the program does not have.
        """
        info, prepared = self.info, fixed.prepared
        if _in_child or self._windows or len(info.buffers) != 1 or info.callbacks:
            return None
        if self._static_constants or (prepared is not None and prepared.compared) or pooled(info.buffers[0]):
            return None
        frame, arena, buffer = Frame(self), self.arenas.shared(info.arena_bytes), info.buffers[0]
        frame.fill(fixed)
        frame.table[0] = arena.block.address
        # A forked process, memory that was given away and a call for new values show in these.
        own = (globals(), vars(uncounted), vars(self.preparation))
        made = direct(
            self._library, fixed.watched, replace(conditions, dictionaries=(*conditions.dictionaries, *own)),
            [(t, info.input_slots[i] if i >= 0 else -1) for t, i in inputs],
            (buffer.shape, buffer.strides, FROM_NAME[buffer.dtype]), info.buffer_slots[0], frame.address,
            ctypes.addressof(arena.busy), fixed.compared,
            (self, frame, arena),
        )  # fmt: skip
        return None if _in_child or (prepared is not None and not self._unwritten(prepared)) else made

    def place(self, blocks: BackwardBlocks) -> None:
        """Take buffers from the blocks of a backward from the next call on."""
        alloc = list(self._placed[1])
        for number, (block, offset) in blocks.buffers.items():
            alloc[number] = placed(self.info.buffers[number], block, offset), alloc[number][1]
        self._placed = blocks, alloc

    def _takes(self) -> tuple[Take, ...]:
        """What gives each result its memory."""
        if self._sized is None:
            return tuple(map(new_buffer, self.info.buffers))
        return tuple(self._sized.take(i, b) for i, b in enumerate(self.info.buffers))

    def _new_buffers(
        self, table: Any, args: Sequence[Any], given: Mapping[int, torch.Tensor] | None = None
    ) -> list[torch.Tensor]:
        buffers = []
        backward, alloc = self._placed
        if given:
            alloc = [(there(given[i]) if i in given else new, slot) for i, (new, slot) in enumerate(alloc)]
        blocks = backward.take() if backward is not None else ()
        for new, slot in alloc:
            t = new(args, blocks)
            table[slot] = t.data_ptr()
            buffers.append(t)
        return buffers

    def _results(self, buffers: Sequence[torch.Tensor], args: Sequence[Any]) -> list[Any]:
        out: list[Any] = []
        for r in self.info.results:
            if r.source == "literal":
                out.append(r.literal)
                continue
            base = buffers[r.index] if r.source == "buffer" else args[r.index]
            if r.shape is None:
                out.append(base)
            else:
                out.append(torch.as_strided(base, r.shape, r.strides, r.offset + base.storage_offset()))
        return out

    def _enter(self, function: Callable[..., int], *arguments: Any) -> int:
        """Call into the library; a forked process does so without a team."""
        if not _in_child:
            return function(*arguments)
        threads = self._library.omp_get_max_threads()
        self._library.omp_set_num_threads(1)
        try:
            return function(*arguments)
        finally:
            self._library.omp_set_num_threads(threads)

    def _told(self, name: str, function: str, frame: Frame, *part: int) -> int:
        """Call into the library while torch's profiler is on."""
        run, more = recorded(self._library, function, self._recorder)
        with _RecordFunctionFast(name):
            return self._enter(run, frame.address, frame.call_back, *part, *more)

    @property
    def library(self) -> ctypes.CDLL:
        """The loaded library; it is unloaded with the program."""
        return self._library

    def ticks(self, steps: int) -> list[int]:
        """Nanoseconds of each step of the last call, and of opening teams; of a library that was built to be profiled."""
        return list((ctypes.c_ulonglong * (steps + 1)).in_dll(self._library, "dcir_ticks"))

    def profiled_calls(self, steps: int) -> int:
        """How many calls its clock has seen."""
        return (ctypes.c_ulonglong * (steps + 2)).in_dll(self._library, "dcir_ticks")[steps + 1]

    def _unwritten(self, prepared: Prepared) -> bool:
        """Whether values made before belong to the contents of tensors whose versions and fingerprint the caller compares, and of
        constants, as far as is noted."""
        if self._static_constants:
            versions = list(map(_VERSION, self._static_constants))
            if prepared.versions is None or prepared.versions[-len(versions) :] != versions:
                return False
        return self.preparation.unwritten(prepared)

    def _static(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors that prepared values depend on."""
        return [*(args[i] for i in self.info.static_inputs), *self._static_constants]

    def _make_ready(self, static: list[torch.Tensor], frame: Frame) -> None:
        """Give the frame the static inputs, and the values that belong to their present contents.

        A frame that was used with the same addresses is not filled again.
        """
        table = frame.table
        addresses = list(map(_ADDRESS, static))
        if addresses != frame.addresses or frame.moves != uncounted.moves.number:
            self._find(addresses, frame)
        known = self.preparation.for_tensors(static, addresses, table, frame.address)
        # The frame holds the block while its kernels read it, whatever other calls prepare meanwhile.
        if frame.prepared is not known or table[1] != known.block.address:
            frame.prepared = known
            table[1] = known.block.address

    def _find(self, addresses: list[int], frame: Frame) -> None:
        """Give the frame the places of static inputs and of constants, which may have other memory than before (``x.data = y``)."""
        frame.put_constants(self)
        for slot, address in zip(self._static_slots, addresses, strict=False):
            frame.table[slot] = address
        frame.addresses = addresses

    def _find_held(self, frame: Frame) -> None:
        """``_find`` where nothing is prepared, so that constants alone may have moved."""
        addresses = list(map(_ADDRESS, self._held))
        if addresses != frame.addresses or frame.moves != uncounted.moves.number:
            self._find(addresses, frame)

    def _fail(self, code: int, frame: Frame) -> None:
        if code < 0:
            error, frame.error = frame.error, None
            raise error if error is not None else FallbackFailed("an operator run through torch failed")
        raise IndexOutOfRange(
            "index out of range: an index tensor holds a value outside the tensor it indexes",
            where=self.info.origins[code - 1] or None,
            hint="check the range of the indices (torch's eager mode raises at the same place)",
        )
