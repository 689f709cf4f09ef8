"""DaCe's own validation of a network SDFG, without its files in the user's folder and its slow search for cycles."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import networkx

from dcir.errors import InvalidGraph


def validate(sdfg: Any, empty: Collection[str] = ()) -> None:
    """Have DaCe validate an SDFG of one state.

    Args:
        sdfg: the SDFG.
        empty: names of containers without an element, which nobody has to write before they are read; DaCe's shapes cannot say so.

    Raises:
        InvalidGraph: the SDFG is not valid.
    """
    state = sdfg.start_state
    # DaCe saves an invalid graph into the working directory, which is the user's.
    sdfg.__dict__["save"] = lambda *_, **__: None
    # Its search for cycles starts anew at every node: seconds for a thousand of them, where one sweep tells.
    state.__dict__["has_cycles"] = lambda: not networkx.is_directed_acyclic_graph(state.nx)
    unwritten = [n for n in state.data_nodes() if n.data in empty and not n.setzero] if empty else []
    for node in unwritten:
        node.setzero = True
    try:
        sdfg.validate()
    except Exception as e:
        raise InvalidGraph("the network SDFG does not validate", details=[("dace", str(e)[:500])]) from e
    finally:
        for node in unwritten:
            node.setzero = False
        del sdfg.__dict__["save"]
        del state.__dict__["has_cycles"]
