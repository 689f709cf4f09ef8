"""Pieces of an operator's description: sizes, and the words of a loop nest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dcir.ir.loop_nest import LoopNest

_SILENT = frozenset(("load", "store", "const", "index", "cast", "narrow"))
_MOST_WORDS = 6


def sizes_text(extents: Iterable[int]) -> str:
    """Extents as 2x3x4."""
    return "x".join(map(str, extents))


def words_of(nest: LoopNest) -> str:
    """The distinct operations of a loop nest in order, the first few of them; one without any is a copy."""
    words = list(dict.fromkeys(s.attr[0] if s.op == "reduce" else s.op for s in nest.body if s.op not in _SILENT))
    more = ["…"] if len(words) > _MOST_WORDS else []
    return " ".join([*words[:_MOST_WORDS], *more]) or "copy"
