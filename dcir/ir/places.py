"""Where operators come from in the user's model: their places, and the modules that a place lies in."""

from __future__ import annotations

from dcir.ir.dace.nodes import Op
from dcir.ir.origins import Origins


def places_of(op: Op) -> tuple[str, ...]:
    """The places in the user's model that an operator comes from, each as ``model.layers.0 (net.py:12)``, of a node of a
    file as ``/layers.0/Conv (Conv, net.onnx:12)``; none is known of some.

    Everything that shows places to people asks here.
    """
    return (op.origin,) if op.origin else ()


def modules_of(place: str) -> tuple[str, ...]:
    """The names on the way to the module of a place, from the outermost: ``model``, ``layers``, ``0``; none where only a line is known."""
    path = place.partition(" (")[0]
    return () if path.startswith("(") else tuple(part for part in path.split(".") if part)


def modules_around(op: Op, origins: Origins) -> tuple[str, ...]:
    """The names on the way to the module that an operator lies in: of a node of a file as its exporter or its name has it."""
    titled = next((p for p in origins.of(op.came_from) if p.title), None)
    if titled is not None and titled.title == op.origin:
        return tuple(part for part in titled.module.split(".") if part)
    return next(map(modules_of, places_of(op)), ())


def titled(what: str, places: tuple[str, ...]) -> str:
    """What an operator does, and its first place, as one line."""
    if not places:
        return what
    first, more = places[0], f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"{what} [{first[1:-1] if first.startswith('(') else first}{more}]"
