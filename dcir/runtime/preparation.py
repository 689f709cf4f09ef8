"""What a program computed from its parameters and keeps between calls, and whether it still belongs to their contents.

It does not where a parameter is another tensor, has another version counter, was given away to something that counts no writes
(``uncounted.py``) and may differ, or differs in a few probed elements. Parameters whose memory others may write at any time are
digested in every call, which takes the time of reading them.
"""

from __future__ import annotations

import ctypes
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dcir.runtime import uncounted
from dcir.runtime.blocks import Block

_ADDRESS = torch.Tensor.data_ptr
_VERSION = operator.attrgetter("_version")


@dataclass(frozen=True)
class Prepared:
    """Values made from static tensors, and what those were.

    The storages are held, so that no other tensor can be at their addresses while this record is compared with.

    Attributes:
        block: where the values lie.
        versions: None of tensors made in inference mode, whose writes nobody counts.
        noted: count of accesses to watched memory before the values were made.
        compared: (number, reason, owners of its memory) of the static tensors that are digested in every call.
        digests: theirs, with what computes them anew.
        epoch: of the preparation.
    """

    block: Block
    storages: tuple[Any, ...]
    addresses: list[int]
    versions: list[int] | None
    fingerprint: int
    noted: int
    compared: tuple[tuple[int, str, int], ...]
    digests: Digests
    epoch: int


class Digests:
    """Digests of the memory of some tensors."""

    def __init__(self, function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> None:
        n = len(tensors)
        self._function, self._count = function, n
        self._from = (ctypes.c_void_p * max(n, 1))(*map(_ADDRESS, tensors))
        self._bytes = (ctypes.c_longlong * max(n, 1))(*map(_span, tensors))
        self._values = self._take() if n else ()

    def same(self) -> bool:
        """Whether the memory is as it was when this was made."""
        return not self._count or self._take() == self._values

    @property
    def nbytes(self) -> int:
        """Bytes that are digested."""
        return sum(self._bytes[: self._count])

    def _take(self) -> tuple[int, ...]:
        to = (ctypes.c_ulonglong * self._count)()
        self._function(self._from, self._bytes, self._count, to)
        return tuple(to)


@dataclass
class Preparation:
    """The values that one program keeps.

    Attributes:
        nbytes: their size.
        policy: "version", "always" or "frozen", see ``Options.prepare``.
        fingerprint: of a call's table, from the library.
        digest: the library's function that digests memory.
        run: computes the values for a call's table.
    """

    nbytes: int
    policy: str
    fingerprint: Callable[[int], int]
    digest: Callable[..., Any]
    run: Callable[[int], Any]
    known: Prepared | None = None
    epoch: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self) -> None:
        """Have the next call compute the values anew."""
        self.epoch += 1

    def compared(self) -> list[tuple[int, str]]:
        """(bytes, reason) of the static tensors that are digested in every call."""
        known = self.known
        return [] if known is None else [(known.storages[i].nbytes(), reason) for i, reason, _ in known.compared]

    def for_tensors(self, static: list[torch.Tensor], addresses: list[int], table: Any, frame: int) -> Prepared:
        """The values that belong to the present contents of the static tensors.

        A network has hundreds of parameters, and this is in every call: the loops are the interpreter's own.

        Args:
            static, addresses: the tensors, and where they lie.
            table, frame: of the call, filled with these addresses, and its own address.
        """
        known = self.known
        versions = _versions(static)
        if known is not None and addresses == known.addresses:
            if self.policy == "frozen" and known.epoch == self.epoch:
                return known
            if versions is not None and versions == known.versions and self.holds(known, frame):
                return known
        with self._lock:
            return self._made(static, addresses, versions, table, frame)

    def holds(self, known: Prepared, frame: int) -> bool:
        """Whether values made for these very tensors, in these versions, still belong to their contents."""
        if self.policy == "frozen":
            return known.epoch == self.epoch
        return self.fingerprint(frame) == known.fingerprint and self.unwritten(known)

    def unwritten(self, known: Prepared) -> bool:
        """``holds``, but for the fingerprint, which the caller compares."""
        if self.policy == "always" or known.epoch != self.epoch:
            return False
        if self.policy == "frozen":
            return True
        if uncounted.count() != known.noted:
            return False
        if not known.compared:
            return True
        # Where somebody let go of the memory, what is to be compared is looked at anew.
        let_go = any(uncounted.owners(known.storages[i]) < owners for i, _, owners in known.compared)
        return not let_go and known.digests.same()

    def _made(
        self, static: list[torch.Tensor], addresses: list[int], versions: list[int] | None, table: Any, frame: int
    ) -> Prepared:
        block = Block(self.nbytes)
        table[1] = block.address
        storages = tuple(t.untyped_storage() for t in static)
        # What is noted or written from here on shows as a difference, whether or not the values have it already.
        epoch, noted = self.epoch, uncounted.count()
        uncounted.watch(storages)
        reasons = uncounted.loose(static) if self.policy == "version" and versions is not None else {}
        compared = tuple((i, reason, uncounted.owners(storages[i])) for i, reason in reasons.items())
        digests = Digests(self.digest, [static[i] for i, _, _ in compared])
        fingerprint = self.fingerprint(frame)
        self.run(frame)
        made = Prepared(block, storages, addresses, versions, fingerprint, noted, compared, digests, epoch)
        if versions is not None:
            self.known = made
        return made


def _versions(static: list[torch.Tensor]) -> list[int] | None:
    try:
        return list(map(_VERSION, static))
    except RuntimeError:  # made in inference mode
        return None


def _span(t: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last."""
    if t.numel() == 0:
        return 0
    return t.itemsize * (1 + sum((d - 1) * s for d, s in zip(t.shape, t.stride(), strict=True)))
