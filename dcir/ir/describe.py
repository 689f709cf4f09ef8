"""Pieces of an operator's description: sizes, and the words of a loop nest."""

from __future__ import annotations

from collections.abc import Iterable

from dcir.ir.statements import Compute, Reduce, Statement

_MOST_WORDS = 6


def sizes_text(extents: Iterable[int]) -> str:
    """Extents as 2x3x4."""
    return "x".join(map(str, extents))


def words_of(body: Iterable[Statement]) -> str:
    """The distinct operations of a loop nest's statements in order, the first few of them; one without any is a copy."""
    said = (s for s in body if isinstance(s, (Reduce, Compute)))
    words = list(dict.fromkeys(s.kind if isinstance(s, Reduce) else s.op for s in said))
    more = ["…"] if len(words) > _MOST_WORDS else []
    return " ".join([*words[:_MOST_WORDS], *more]) or "copy"
