"""Passes in the bodies of loops and branches: each is rewritten as a network of its own, at every depth."""

from __future__ import annotations

from dcir.ir.body import Body
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.transforms.base import Pass, PassResult, Place, applied


class Bodies:
    """The bodies of a network while passes run.

    A body is plain data and its network a copy of that; copies are kept from pass to pass, for as long as nobody else gives the operator
    another body.
    """

    def __init__(self) -> None:
        self._copies: dict[tuple[str, int], tuple[Body, Network, Bodies]] = {}

    def apply(self, p: Pass, place: Place, net: Network, outcome: PassResult) -> None:
        """Run a pass in every body of ``net``'s operators, those that they hold first, and count its rewrites in ``outcome``."""
        for op in net.ops():
            if not (bodies := op.spec.bodies()):
                continue
            inside = PassResult()
            new = tuple(self._rewritten(p, place, net, (op.label, i), body, inside) for i, body in enumerate(bodies))
            outcome.changed += inside.changed
            outcome.saved_bytes += op.spec.runs() * inside.saved_bytes
            outcome.refused.update(inside.refused)
            if any(a is not b for a, b in zip(new, bodies, strict=True)):  # a plan alone may be new
                net.rewire(op, op.spec.with_bodies(new), net.ins(op), net.outs(op), made_by=p.name)

    def _rewritten(
        self, p: Pass, place: Place, net: Network, key: tuple[str, int], body: Body, outcome: PassResult
    ) -> Body:
        known, copy, inner = self._copies.get(key, (None, None, None))
        if known is not body or copy is None or inner is None:
            copy, inner = body.copy(net.origins), Bodies()
            copy.target = net.target
            copy.rewrites = net.rewrites.inside(*key) if net.rewrites is not None else None
        done = PassResult()
        inner.apply(p, place, copy, done)
        own = applied(p, copy, place)
        changed = done.changed + own.changed
        if changed:
            verify(copy)
            body = Body.of(copy)
        self._copies[key] = (body, copy, inner)
        outcome.changed += changed
        outcome.saved_bytes += done.saved_bytes + own.saved_bytes
        outcome.refused.update(done.refused)
        outcome.refused.update(own.refused)
        return body
