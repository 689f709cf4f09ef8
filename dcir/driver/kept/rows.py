"""What is kept at one address of the cache: rows, of each its name, its bytes, and a seal that ties them to the address."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Collection
from typing import NamedTuple

from dcir.cache import Cache, key_of
from dcir.frontends.torch.kept.objects import Reader

_LOG = logging.getLogger(__name__)
_MOST = 16
"""Rows at one address, the last ones that came."""


class Row(NamedTuple):
    """One trace, or one graph.

    Attributes:
        name: what it is known by.
        moves: whether it is for all sizes.
        frame: what Dynamo made of it; empty of a graph.
        body: what the graph became.
    """

    name: str
    moves: bool
    frame: bytes
    body: bytes


def read_rows(cache: Cache, kind: str, address: str, suffix: str) -> list[Row]:
    """What is kept at an address, the latest first."""
    try:
        data = cache.read(kind, address, suffix)
    except OSError:  # somebody has made room just now
        data = None
    return _rows(data, address)


def add_row(cache: Cache, kind: str, address: str, suffix: str, new: Row, gone: Collection[str] = ()) -> None:
    """Keep a row, in the place of one of its name, and of ``gone`` nothing."""

    def changed(data: bytes | None) -> bytes:
        kept = [row for row in _rows(data, address) if row.name != new.name and row.name not in gone]
        return pickle.dumps([(*row, _seal(address, row)) for row in [new, *kept][:_MOST]], protocol=5)

    cache.change(kind, address, suffix, changed)
    _LOG.debug("a trace is kept: %s, %d bytes", new.name, len(new.frame) + len(new.body))


def _rows(data: bytes | None, address: str) -> list[Row]:
    try:
        rows = [] if data is None else Reader(data, frozenset()).load()
    except Exception as e:  # whatever bytes that nobody wrote are taken for
        _LOG.debug("kept traces cannot be read: %s: %s", type(e).__name__, e)
        return []
    form = (str, bool, bytes, bytes, str)
    whole = [row for row in rows if type(row) is tuple and tuple(map(type, row)) == form] if type(rows) is list else []
    return [Row(*row[:-1]) for row in whole if row[-1] == _seal(address, Row(*row[:-1]))]


def _seal(address: str, row: Row) -> str:
    """The digest of a row and of where it is kept: put in another place, or together with the programs of another one, it is none."""
    return key_of(address, row.name, str(row.moves), row.frame, row.body)
