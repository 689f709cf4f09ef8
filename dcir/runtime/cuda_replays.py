"""Calls of a program that are replays of one call (``Options.cuda_graphs``): one launch in place of one a kernel.

    first call      as always: kernels and libraries get ready
    second call     recorded, with the addresses that its arguments have; then replayed
    further ones    replayed

An argument whose address was another one in the call before is copied to memory of the capture's own, in every call; the others
(parameters, buffers, caches) are read, and written, where they lie. If one of these moves, the call is recorded once more. What a call
gives is copied out, so it stays as it is when the next call runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dcir.runtime.cuda_calls import tensor_in
from dcir.runtime.cuda_capture import Capture
from dcir.runtime.cuda_status import StatusWords
from dcir.runtime.program_info import ProgramInfo

_MOST_CAPTURES = 4
"""Of one program on one stream; then its calls run as without."""
_Pointers = list[int | None]


@dataclass
class Captured:
    """A call that can be replayed.

    Attributes:
        capture: it.
        given: the arguments that it reads.
        buffers: what it writes its results to; None of what is gone when it ends.
        words: where its kernels report bad indices.
        holds: what must live as long.
    """

    capture: Capture
    given: list[Any]
    buffers: list[torch.Tensor | None]
    words: StatusWords
    holds: Any = None


@dataclass
class _Stream:
    """What is known of the calls on one stream.

    Attributes:
        seen: addresses of the arguments of the call before.
        moving: arguments that are copied.
        captures: how many there were.
        kept: the last one.
        refused: why there is none any more.
    """

    seen: _Pointers | None = None
    moving: set[int] = field(default_factory=set)
    captures: int = 0
    kept: Captured | None = None
    refused: str = ""


class Replays:
    """The captured calls of a program.

    Args:
        info: of the program.
        record: records a call with some arguments on a device and a stream.
        refused: why none can be recorded; "" if it can.
    """

    def __init__(
        self, info: ProgramInfo, record: Callable[[list[Any], torch.device, int], Captured], refused: str = ""
    ) -> None:
        self._info, self._record, self.refused = info, record, refused
        self._shared = dict(info.shared)
        self._given_back = {r.index for r in info.results if r.source == "buffer"}
        self._written = {i for _, i in info.updates} | set(self._shared.values())
        self._streams: dict[tuple[torch.device, int], _Stream] = {}
        self._one = threading.Lock()  # what is captured has one set of memory

    @property
    def captures(self) -> int:
        """How many calls were recorded."""
        return sum(s.captures for s in self._streams.values())

    def why_not(self) -> str:
        """Why calls are not replayed; "" if they are, or will be."""
        return self.refused or next((s.refused for s in self._streams.values() if s.refused), "")

    def words(self) -> Iterator[StatusWords]:
        """Where bad indices are reported."""
        return (s.kept.words for s in [*self._streams.values()] if s.kept is not None)

    def called(self, args: Sequence[Any], device: torch.device, stream: int) -> list[Any] | None:
        """The buffers of a call that is replayed; None of one that has to run.

        Raises:
            IndexOutOfRange, ArtefactInvalid: as the replayed call does.
        """
        with self._one:
            return self._called(args, device, stream)

    def _called(self, args: Sequence[Any], device: torch.device, stream: int) -> list[Any] | None:
        state = self._streams.setdefault((device, stream), _Stream())
        if self.refused or state.refused:
            return None
        pointers = [a.data_ptr() if isinstance(a, torch.Tensor) else None for a in args]
        if state.kept is None or any(pointers[i] != state.seen[i] for i in self._fixed(state)):  # type: ignore[index]
            if state.seen is None:
                state.seen = pointers
                return None
            with torch.inference_mode(mode=False):  # what is made is used by later calls in any mode
                self._capture(state, args, pointers, device, stream)
            if state.kept is None:
                return None
        return self._replayed(state, state.kept, args, device)

    def _fixed(self, state: _Stream) -> list[int]:
        """Arguments that are read where they lie."""
        return [i for i, p in enumerate(state.seen or ()) if p is not None and i not in state.moving]

    def _capture(
        self, state: _Stream, args: Sequence[Any], pointers: _Pointers, device: torch.device, stream: int
    ) -> None:
        """Record a call, or note why not."""
        assert state.seen is not None
        tensors = [i for i, p in enumerate(pointers) if p is not None]
        elsewhere = {i for i in tensors if args[i].device != device}
        state.moving |= elsewhere | {i for i in tensors if pointers[i] != state.seen[i]}
        if state.captures == _MOST_CAPTURES - 1:
            state.moving |= set(tensors)
        state.moving -= self._written
        state.seen, state.kept, state.captures = pointers, None, state.captures + 1
        if elsewhere & self._written:
            state.refused = "the call writes to a tensor on the CPU"
        elif state.captures > _MOST_CAPTURES:
            state.refused = "the call writes to tensors at other addresses every time"
        if state.refused:
            return
        given = list(args)
        for i in state.moving:
            given[i] = _like(args[i], device)
        _copy([given[i] for i in state.moving], [args[i] for i in state.moving])
        try:
            state.kept = self._record(given, device, stream)
        except Exception as e:  # whatever a capture forbids: the call itself tells what is wrong with it
            state.refused = f"it cannot be captured: {e}".partition("\n")[0]

    def _replayed(
        self, state: _Stream, kept: Captured, args: Sequence[Any], device: torch.device
    ) -> list[torch.Tensor | None]:
        """Copy in, replay, copy out."""
        moving = sorted(state.moving)
        _copy([kept.given[i] for i in moving], [args[i] for i in moving])
        kept.capture.replay()
        if kept.words.count:
            kept.words.send()
        found: list[torch.Tensor | None] = []
        copied: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number, t in enumerate(kept.buffers):
            if t is None or number not in self._given_back:
                found.append(None)
            elif number in self._shared:
                found.append(tensor_in(args[self._shared[number]], 0, tuple(t.shape), t.stride(), t.dtype))
            else:
                made = _like(t, device)
                found.append(made)
                copied.append((made, t))
        _copy([made for made, _ in copied], [t for _, t in copied])
        return found


def _like(t: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Memory for the same window."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)


def _copy(targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> None:
    """Copy tensors that lie alike, with what lies between their elements: some repeat elements, which torch would not write to."""
    pairs = [(_span(t), _span(s)) for t, s in zip(targets, sources, strict=True) if t.numel()]
    if pairs:
        with torch.no_grad():
            torch._foreach_copy_([t for t, _ in pairs], [s for _, s in pairs], non_blocking=True)


def _span(t: torch.Tensor) -> torch.Tensor:
    """All memory from the first element of a tensor to the last."""
    t = t.detach()
    length = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return torch.as_strided(t, (length,), (1,), t.storage_offset())
