"""Words on a GPU in which kernels note that they met a bad index, and copies of them that are read when they have arrived."""

from __future__ import annotations

import torch

_CPU = torch.device("cpu")


class StatusWords:
    """A word for each operator that may meet a bad index, on the device, and a copy of them that is on its way.

    What a copy needs on the host is made with the first: a capture of a graph, in which none is sent, forbids to make it.

    Args:
        count: how many.
        device: where.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.count, self.device = count, device
        self._words = torch.zeros(max(count, 1), dtype=torch.int32, device=device)
        self._seen = self._words
        self._event: torch.cuda.Event | None = None
        self._under_way = False
        self.address = self._words.data_ptr()

    @property
    def idle(self) -> bool:
        """Whether nobody's answer is still to be read."""
        return not self._under_way

    def send(self) -> None:
        """Put the copy on the stream, behind what was launched; not in a capture, whose replays nobody looks at."""
        if self.device.type != "cuda":
            self._under_way = True
            return
        if torch.cuda.is_current_stream_capturing():
            return
        if self._event is None:
            self._event = torch.cuda.Event()
            self._seen = torch.zeros(max(self.count, 1), dtype=torch.int32, device=_CPU, pin_memory=True)
        self._seen.copy_(self._words, non_blocking=True)
        self._event.record()
        self._under_way = True

    def seen(self, *, wait: bool) -> int | None:
        """The first operator that met a bad index, once the copy has arrived; None if none did, or it is still on its way."""
        if not self._under_way:
            return None
        if self._event is not None:
            if wait:
                self._event.synchronize()
            elif not self._event.query():
                return None
        self._under_way = False
        bad = self._seen.nonzero()
        if len(bad) == 0:
            return None
        self._words.zero_()
        return int(bad[0])
