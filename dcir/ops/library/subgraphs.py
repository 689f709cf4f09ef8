"""Graphs inside a graph (``torch.cond``, ``while_loop``, ``scan``, ``flex_attention``): the names specs know them by.

A spec is plain data and the graphs are not, so a spec holds a token; who holds the ``Subgraph`` keeps the graph behind it.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass, field
from typing import Any

_TOKENS = itertools.count()
_GRAPHS: weakref.WeakValueDictionary[str, Subgraph] = weakref.WeakValueDictionary()


@dataclass(eq=False)
class Subgraph:
    """A graph that an operator calls, and the token that stands for it in a spec; or what else only torch makes something of."""

    graph: Any
    token: str = field(default_factory=lambda: f"g{next(_TOKENS)}")

    def __post_init__(self) -> None:
        _GRAPHS[self.token] = self


def graph_of(token: str) -> Any:
    """The graph behind a token; None once it is gone, or in another process."""
    found = _GRAPHS.get(token)
    return None if found is None else found.graph
