"""dcir's own rules for a network, checked after every pass: order, single assignment, bounds, operand types, memory."""

from __future__ import annotations

from dcir.errors import InvalidGraph
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand
from dcir.ir.statements import Load, Store
from dcir.ir.updates import violations
from dcir.ir.verify_memory import verify_memory


def verify(net: Network) -> None:
    """Check the rules that DaCe does not know.

    Raises:
        InvalidGraph: a container is read before all its writers ran, a result is never written, a window leaves its container, an operand's
            type differs from what the operator's program says, or the memory plan has two in one place.
    """
    order = net.ops()
    position = {op: i for i, op in enumerate(order)}
    for name, c in net.containers.items():
        writers, readers = net.writers(name), net.readers(name)
        if c.role in ("input", "constant") and writers:
            raise _fault(net, writers[0], f"{name} is an {c.role} and must not be written")
        if c.role in ("transient", "result") and readers and not writers and c.size:
            raise _fault(net, readers[0], f"{name} is read but never written")
        if writers and readers:
            last = max(writers, key=position.__getitem__)
            first = min(readers, key=position.__getitem__)
            if position[first] <= position[last]:
                raise _fault(net, first, f"{name} is read before its last writer ran")
    _check_results(net)
    for op in order:
        if isinstance(op.spec, LoopNest):
            _check_program(net, op, op.spec)
        elif op.spec.bodies():
            _check_bodies(net, op)
    verify_memory(net)
    for op, source in violations(net):
        raise _fault(net, op, f"{source} is read after it was overwritten")


def _check_results(net: Network) -> None:
    """Every result is written, or an input or a constant, or in the memory of an input."""
    for number, result in enumerate(net.results):
        c = net.containers[result.data]
        if c.role not in ("transient", "result") or not c.size or result.data in net.updates:
            continue
        if not net.writers(result.data):
            raise InvalidGraph(
                f"the result {result.data} is never written",
                where=f"result {number} of the network",
                hint="a pass that takes an operator out has to leave another one that writes what it wrote",
            )


def _check_program(net: Network, op: Op, p: LoopNest) -> None:
    ins, outs = net.ins(op), net.outs(op)
    for operands, types in ((ins, p.inputs), (outs, p.outputs)):
        if len(operands) != len(types):
            raise _fault(net, op, f"{len(operands)} operands for a program of {len(types)}")
        for o, t in zip(operands, types, strict=True):
            if net.containers[o.data].dtype != t:
                raise _fault(net, op, f"{o.data} is {net.containers[o.data].dtype}, its program says {t}")
    if any(d == 0 for d in p.dims):
        return
    for s in p.body:
        if isinstance(s, (Load, Store)) and not s.args[1:]:
            _check_window(net, op, (ins if isinstance(s, Load) else outs)[s.operand], s.strides, p.dims)


def _check_bodies(net: Network, op: Op) -> None:
    """Operands are of the bodies' types, their windows in their containers in every trip, and the bodies by themselves right."""
    ins, outs = net.ins(op), net.outs(op)
    windows = op.spec.argument_windows()
    for operands, given in zip((ins, outs), windows, strict=True):
        if len(operands) != len(given):
            raise _fault(net, op, f"{len(operands)} operands for {len(given)} of its bodies")
        for o, (dtype, size, moves) in zip(operands, given, strict=True):
            c = net.containers[o.data]
            if c.dtype != dtype:
                raise _fault(net, op, f"{o.data} is {c.dtype}, its body says {dtype}")
            low, high = o.offset + min(moves, 0), o.offset + max(moves, 0) + size - 1
            if size and (low < 0 or high >= c.size):
                raise _fault(net, op, f"elements {low}..{high} of {o.data}, which has {c.size}")
    for body in op.spec.bodies():
        if not set(body.static) <= {body.inputs[i] for i in op.spec.fixed()}:
            raise _fault(net, op, "a body takes for fixed what changes from trip to trip")
        verify(body.network)


def _check_window(net: Network, op: Op, o: Operand, strides: tuple[int, ...], dims: tuple[int, ...]) -> None:
    low = o.offset + sum((d - 1) * s for d, s in zip(dims, strides, strict=True) if s < 0)
    high = o.offset + sum((d - 1) * s for d, s in zip(dims, strides, strict=True) if s > 0)
    size = net.containers[o.data].size
    if low < 0 or high >= size:
        raise _fault(net, op, f"elements {low}..{high} of {o.data}, which has {size}")


def _fault(net: Network, op: Op, message: str) -> InvalidGraph:
    order = net.ops()
    at = order.index(op)
    window = []
    for i, other in enumerate(order[max(0, at - 5) : at + 5], start=max(0, at - 5)):
        ins = ", ".join(f"{o.data}+{o.offset}" for o in net.ins(other))
        outs = ", ".join(f"{o.data}+{o.offset}" for o in net.outs(other))
        window.append(f"{'>' if i == at else ' '} {other.label}({ins}) -> {outs}  [{other.made_by}]")
    return InvalidGraph(message, where=op.origin or None, details=[("near", "\n".join(window))])
