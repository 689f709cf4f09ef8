"""The rules of a network whose sizes move: what must hold for all sizes within the bounds, and at those where it was seen."""

from __future__ import annotations

from collections.abc import Sequence

from dcir.errors import InvalidGraph
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.moving_network import MovingNetwork, MovingOperator, digest, digest_at, moving_body, polynomials
from dcir.ir.sizes import Number, Polynomial, Sizes, corners, never_negative, value_at
from dcir.ir.statements import Load, Store
from dcir.ir.verify import verify


def verify_moving(net: MovingNetwork) -> None:
    """Check what stands in the tables for all sizes, and the constant networks at both ends of the bounds and at the samples.

    Raises:
        InvalidGraph: a size is not declared; an extent can be 0, a stride or an offset negative, or a window leave its container; a
            container can need more than at the upper ends, for which memory is planned; or a constant network breaks the rules of
            its kind, or is not the one that was seen.
    """
    _check(net)
    _check_samples(net)


def _check(net: MovingNetwork) -> None:
    """What stands in the tables, those of bodies too."""
    _check_tables(net)
    for number in net.numbers():
        if strange := number.names() - net.sizes.keys():
            raise InvalidGraph(f"{number} depends on {min(strange)}, which is no size of the network")
    for name, (low, high) in net.sizes.items():
        if not (0 if name in net.remainders else 1) <= low <= high:
            raise InvalidGraph(f"{name} may be {low} to {high}; sizes of 0 make networks of their own")
    for name, c in net.containers.items():
        for d, s in zip(c.shape, c.strides, strict=True):
            _require(net.sizes, s, f"a stride of {name}")
            if isinstance(d, Polynomial):
                _require(net.sizes, d - 1, f"an extent of {name} less 1")
        largest = value_at(c.size, {n: b.high for n, b in net.sizes.items()})
        _require(net.sizes, largest - c.size, f"what {name} needs less at other sizes than at the upper ends")
    for r in net.results:
        walks = list(zip(r.shape, r.strides, strict=True))
        _check_window(net, f"the result in {r.data}", r.data, r.offset, walks)
    for op in net.widest.ops():
        _check_operator(net, op, net.operators[op.label])
        for body, widest in zip(net.operators[op.label].spec.bodies(), op.spec.bodies(), strict=True):
            _check(moving_body(body, widest, net.sizes, net.remainders))


def _check_tables(net: MovingNetwork) -> None:
    if net.containers.keys() != net.widest.containers.keys():
        raise InvalidGraph("the containers are not those of the network at the upper ends")
    if net.operators.keys() != {op.label for op in net.widest.ops()}:
        raise InvalidGraph("the operators are not those of the network at the upper ends")


def _check_operator(net: MovingNetwork, op: Op, moving: MovingOperator) -> None:
    ins, outs = net.widest.ins(op), net.widest.outs(op)
    if len(ins) != len(moving.in_offsets) or len(outs) != len(moving.out_offsets):
        raise InvalidGraph(f"{op.label} has other operands than at the upper ends", where=op.origin or None)
    for offset in (*moving.in_offsets, *moving.out_offsets):
        _require(net.sizes, offset, f"an offset of {op.label}")
    spec = moving.spec
    if not isinstance(spec, LoopNest) or 0 in spec.dims:
        return
    for d in polynomials(spec.dims):
        _require(net.sizes, d - 1, f"an extent of {op.label} less 1")
    for s in spec.body:
        if not isinstance(s, (Load, Store)) or s.args[1:]:
            continue
        operands, offsets = (ins, moving.in_offsets) if isinstance(s, Load) else (outs, moving.out_offsets)
        walks = list(zip(spec.dims, s.strides, strict=True))
        _check_window(net, op.label, operands[s.operand].data, offsets[s.operand], walks)


def _check_window(
    net: MovingNetwork, who: str, data: str, offset: Number, walks: Sequence[tuple[Number, Number]]
) -> None:
    """Whether the elements from ``offset`` on, with these extents and strides, are all in the container."""
    low, high = offset, offset
    for d, s in walks:
        if never_negative(s, net.sizes):
            high += (d - 1) * s
        elif never_negative(-s, net.sizes):
            low += (d - 1) * s
        else:
            raise InvalidGraph(f"{who} walks {data} in steps of {s}, which have no one direction")
    _require(net.sizes, low, f"the first element of {data} that {who} touches")
    _require(net.sizes, net.containers[data].size - 1 - high, f"what is left of {data} behind {who}")


def _require(sizes: Sizes, number: Number, what: str) -> None:
    if not never_negative(number, sizes):
        bounds = [(name, f"{low} to {high}") for name, (low, high) in sizes.items()]
        raise InvalidGraph(f"{what} is {number}, which is not shown to be 0 or more", details=bounds)


def _check_samples(net: MovingNetwork) -> None:
    least, *_, most = corners(net.sizes)
    if digest_at(net, most) != digest(net.widest):
        raise InvalidGraph("the network at the upper ends is not what its polynomials say")
    # What differs between sizes is in the tables. The rest is as it is at one end, or at both.
    verify(net.widest)
    verify(net.at(least))
    for values, seen in net.samples:
        if digest_at(net, dict(values)) != seen:
            where = ", ".join(f"{name}={value}" for name, value in values)
            raise InvalidGraph(f"the network for {where} is not the one that was seen there")
