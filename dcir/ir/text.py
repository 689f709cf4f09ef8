"""A network as text: its containers, its operators in order with what they read and write, its results."""

from __future__ import annotations

from collections.abc import Iterable

from dcir.ir.memory_plan import ARENA
from dcir.ir.network import Container, Network, Operand
from dcir.ir.origins import union


def network_text(net: Network) -> str:
    """The network, one line a container and two lines an operator; specs as they are written in Python.

    Sizes are extents in elements, ``+`` a shift in elements, times and addresses do not occur: equal networks have equal texts.
    Numbers behind an operator's place are those of the imported operators that it came from; places of these, at the end.
    """
    lines = [
        f"network of {len(net.ops())} operators, {net.bytes_moved()} bytes moved, {net.memory.nbytes(ARENA)} bytes of arena"
    ]
    lines += ["", "containers"]
    lines += [f"  {name:<8} {_described(net, name, c)}" for name, c in net.containers.items()]
    lines += ["", "operators"]
    prepared = net.prepared_ops()
    for op in net.ops():
        when = "once  " if op in prepared else ""
        call = f"{_listed(net.outs(op))} = {op.label}({_listed(net.ins(op))})"
        numbers = " ".join(map(str, op.came_from))
        lines.append(f"  {when}{call}  # {' '.join(filter(None, (op.made_by, op.origin, f'[{numbers}]')))}")
        lines.append(f"      {op.spec!r}")
        if op.own_schedule is not None:
            lines.append(f"      runs as {op.own_schedule}")
        for body in op.spec.bodies():
            lines += [f"      | {line}".rstrip() for line in network_text(body.network).splitlines()]
    lines += ["", "results"]
    lines += [
        f"  {number}: {r.data}+{r.offset} {r.dtype}{list(r.shape)} strides {list(r.strides)}"
        for number, r in enumerate(net.results)
    ]
    lines += _places(net)
    return "\n".join(lines) + "\n"


def _places(net: Network) -> list[str]:
    """The imported operators that the network came from, of which something is known."""
    numbers = union(n for op in net.ops() for n in (op.came_from, *(body.came_from for body in op.spec.bodies())))
    lines = []
    for number in numbers:
        for p in net.origins.of([number]):
            if p.operator:
                lines.append(f"  {number}: {p.label} = {p.operator}  {p}")
    return ["", "imported operators", *lines] if lines else []


def _listed(operands: Iterable[Operand]) -> str:
    return ", ".join(f"{o.data}+{o.offset}" if o.offset else o.data for o in operands)


def _described(net: Network, name: str, c: Container) -> str:
    place = net.memory.describe(name) or (f"in place of {net.updates[name]}" if name in net.updates else "")
    where = f" {place}" if place else ""
    known_as = f"  {net.names[name]}" if name in net.names else ""
    return f"{c.role:<9} {c.dtype}{list(c.shape)} strides {list(c.strides)}{where}{known_as}"
