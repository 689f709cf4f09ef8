"""A network inside an operator, as plain data: what a loop repeats, or a branch may run.

Equal bodies are equal values, and a spec that holds one is saved like every other. A body has inputs and results alone: constants are
inputs, every result is a whole container of its own, and what does not change from one run to the next stands among ``static``.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcir.errors import InvalidGraph
from dcir.ir.serialize import decode, encode, register

if TYPE_CHECKING:
    from dcir.ir.network import Network


@register
@dataclass(frozen=True)
class Body:
    """A network that is not changed any more.

    Attributes:
        text: the network as JSON, its operators' specs as ``serialize.encode`` gives them.
    """

    text: str

    @staticmethod
    def of(net: Network) -> Body:
        """What a network is at this moment.

        Raises:
            InvalidGraph: it has constants, or results that are not whole containers of their own.
        """
        names = [r.data for r in net.results]
        whole = all(net.containers[n].role == "result" for n in names) and len(set(names)) == len(names)
        if net.constants or net.updates or not whole:
            raise InvalidGraph("a body takes constants as inputs, and every result of it is a container of its own")
        rows = [
            [op.label, encode(op.spec), [list(o) for o in net.ins(op)], [list(o) for o in net.outs(op)], op.origin, op.made_by]
            for op in net.ops()
        ]  # fmt: skip
        return Body(json.dumps([net.side_tables(), rows], separators=(",", ":")))

    @property
    def network(self) -> Network:
        """The network; it belongs to all who ask, and nobody may change it."""
        return _network(self.text)

    def copy(self) -> Network:
        """The network once more, to be changed."""
        return _made(self.text)

    def __repr__(self) -> str:
        """Its size, and a digest in place of the long text: different bodies have different ones."""
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:32]
        return f"<body of {len(self.network.ops())} operators {digest}>"


def _made(text: str) -> Network:
    from dcir.ir.network import Network

    side, rows = json.loads(text)
    return Network.rebuilt(side, [(label, decode(spec), *rest) for label, spec, *rest in rows])


_network = functools.lru_cache(maxsize=256)(_made)
