"""A network whose sizes move: one structure, polynomials in place of numbers, and a constant network for any values of the sizes.

It is made from constant networks at several sizes and never rewritten. Kernels for it read the sizes when they run
(``codegen/moving_kernel.py``).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dcir.errors import Unsupported
from dcir.ir.body import Body, unplanned
from dcir.ir.network import Network, Operand, Result
from dcir.ir.operator import Operator
from dcir.ir.serialize import encode, register
from dcir.ir.sizes import Number, Polynomial, Quotient, Sizes, check_values, divided, value_at
from dcir.ir.statements import Const
from dcir.ir.types import TYPES

Numbers = tuple[Number, ...]


class MovingContainer(NamedTuple):
    """A container as ``network.Container`` has it, with numbers that may move. An extent that moves is never 0."""

    shape: Numbers
    strides: Numbers
    dtype: str
    role: str

    @property
    def size(self) -> Number:
        """Elements from first to last, both included."""
        if 0 in self.shape:
            return 0
        total: Number = 1
        for d, s in zip(self.shape, self.strides, strict=True):
            total += (d - 1) * s
        return total


class MovingResult(NamedTuple):
    """A result as ``network.Result`` has it, with numbers that may move."""

    data: str
    shape: Numbers
    strides: Numbers
    offset: Number
    dtype: str


@register
@dataclass(frozen=True)
class MovingOperator:
    """What moves of an operator; which containers its operands lie in does not.

    Attributes:
        spec: its spec, with a ``Polynomial`` in the place of each integer that moves (and of a whole float that a loop nest computes with),
            and a ``Quotient`` in that of another such float.
        in_offsets, out_offsets: first element of each operand within its container.
    """

    spec: Operator
    in_offsets: Numbers
    out_offsets: Numbers


@dataclass(frozen=True)
class MovingNetwork:
    """A network for all sizes within their bounds.

    Attributes:
        sizes: the bounds of each size, by name.
        widest: the network at the upper ends. Its structure, its order and its plan of the arena are those of all sizes.
        containers: by name.
        operators: by label.
        results: in the order of the call.
        samples: sizes at which constant networks were seen, and their ``digest``.
        remainders: sizes that are what a division leaves over of an input's, and may be 0.
    """

    sizes: Sizes
    widest: Network
    containers: dict[str, MovingContainer]
    operators: dict[str, MovingOperator]
    results: tuple[MovingResult, ...]
    samples: tuple[tuple[tuple[tuple[str, int], ...], str], ...]
    remainders: frozenset[str] = frozenset()

    def at(self, values: Mapping[str, int]) -> Network:
        """The constant network for some sizes.

        Args:
            values: one for each size, by name.

        Raises:
            InvalidInput: they are other sizes, or lie outside of the bounds.
        """
        check_values(self.sizes, values)
        net = self.widest.clone()
        for name, c in self.containers.items():
            if next(polynomials(c), None) is not None:
                net.resize(name, fixed(c.shape, values), fixed(c.strides, values))
        for op in net.ops():
            moving, ins, outs = self.operators[op.label], net.ins(op), net.outs(op)
            if next(polynomials((moving, *(self.containers[o.data] for o in (*ins, *outs)))), None) is None:
                continue
            places = [
                [Operand(o.data, value_at(n, values)) for o, n in zip(operands, offsets, strict=True)]
                for operands, offsets in ((ins, moving.in_offsets), (outs, moving.out_offsets))
            ]
            net.rewire(op, fixed(moving.spec, values), *places)
        net.results = [Result(*fixed(tuple(r), values)) for r in self.results]
        return net

    def usual(self) -> dict[str, int]:
        """The sizes that code is best at."""
        return usual_sizes(self.sizes)

    def numbers(self) -> list[Polynomial]:
        """The distinct polynomials in it, in the order in which they come."""
        return list(dict.fromkeys(polynomials((*self.containers.values(), *self.operators.values(), *self.results))))


def usual_sizes(sizes: Sizes) -> dict[str, int]:
    """The sizes that costs are counted at: a quarter of the upper ends."""
    return {name: max(low, high // 4) for name, (low, high) in sizes.items()}


def moving_body(body: Body, widest: Body, sizes: Sizes, remainders: frozenset[str] = frozenset()) -> MovingNetwork:
    """A body in which numbers move, as a network of its own.

    Args:
        body: with polynomials.
        widest: what it is at the upper ends.
        sizes, remainders: of the network around it.
    """
    containers = {c.name: MovingContainer(c.shape, c.strides, c.dtype, c.role) for c in body.containers}
    operators = {
        o.label: MovingOperator(o.spec, tuple(n for _, n in o.ins), tuple(n for _, n in o.outs)) for o in body.operators
    }
    results = [
        MovingResult(n, containers[n].shape, containers[n].strides, 0, containers[n].dtype) for n in body.results
    ]
    return MovingNetwork(sizes, widest.network, containers, operators, tuple(results), (), remainders)


def constant(net: Network | MovingNetwork, what: str) -> Network:
    """``net``, for those that know constant networks only.

    Raises:
        Unsupported: its sizes move; ``what`` is not made for such a network.
    """
    if isinstance(net, MovingNetwork):
        sizes = [(name, f"{low} to {high}") for name, (low, high) in net.sizes.items()]
        raise Unsupported(
            f"there is no {what} for a network whose sizes move", details=sizes, hint=".at(...) makes constant ones"
        )
    return net


_PLAIN = frozenset({int, str, float, bool, type(None)})
"""What holds no polynomial, and is most of what there is."""


def fixed(value: Any, values: Mapping[str, int]) -> Any:
    """A spec, or what is in one, with the value of each polynomial in its place."""
    return with_numbers(value, lambda number: value_at(number, values))


def with_numbers(value: Any, given: Callable[[Polynomial], Any]) -> Any:
    """A spec, or what is in one, with what ``given`` has for it in the place of each polynomial."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, Polynomial):
        return given(value)
    if kind is tuple:
        inside = [with_numbers(v, given) for v in value]
        return value if all(map(operator.is_, inside, value)) else tuple(inside)
    names = _fields(kind)
    if not names:
        return value
    changed = {}
    for name in names:
        old = getattr(value, name)
        new = with_numbers(old, given)
        if new is not old:
            changed[name] = new
    made = dataclasses.replace(value, **changed) if changed else value
    if isinstance(made, Quotient) and isinstance(made.over, int) and isinstance(made.under, int):
        return divided(made.over, made.under)
    if isinstance(made, Const) and isinstance(made.value, int) and TYPES[made.dtype].kind == "float":
        return dataclasses.replace(made, value=float(made.value))
    return made


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass; none of another class."""
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def set_floats(net: Network, floats: Mapping[float, float]) -> None:
    """Put other floats in the place of some that loop nests compute with, as they are or as a float32 holds them."""
    rounded = {float(np.float32(old)): float(np.float32(new)) for old, new in floats.items()}
    if not floats:
        return

    def other(value: Any) -> Any:
        if isinstance(value, Const):
            if not isinstance(value.value, float) or (value.value not in floats and value.value not in rounded):
                return value
            return dataclasses.replace(value, value=floats.get(value.value, rounded.get(value.value, value.value)))
        if type(value) is tuple:
            return tuple(map(other, value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            changed = {f.name: other(v) for f in dataclasses.fields(value) if type(v := getattr(value, f.name)) is tuple
                       or dataclasses.is_dataclass(v)}  # fmt: skip
            return (
                dataclasses.replace(value, **changed)
                if any(
                    changed[name] is not getattr(value, name) and changed[name] != getattr(value, name)
                    for name in changed
                )
                else value
            )
        return value

    for op in net.ops():
        spec = other(op.spec)
        if spec is not op.spec:
            net.rewire(op, spec, net.ins(op), net.outs(op))


def polynomials(value: Any) -> Iterator[Polynomial]:
    """The polynomials in a spec, or in what is made of such."""
    if isinstance(value, Polynomial):
        yield value
    elif isinstance(value, tuple):
        for v in value:
            yield from polynomials(v)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            yield from polynomials(getattr(value, f.name))


def digest(net: Network) -> str:
    """What a constant network computes, as a text of fixed length: equal for equal containers, operators and results."""
    rows: list[Any] = [[n, c.shape, c.strides, c.dtype, c.role] for n, c in sorted(net.containers.items())]
    for op in sorted(net.ops(), key=lambda op: op.label):
        rows.append([op.label, encode(unplanned(op.spec)), net.ins(op), net.outs(op)])
    return _digest(rows, net.results)


def digest_at(net: MovingNetwork, values: Mapping[str, int]) -> str:
    """``digest(net.at(values))``, without that network, which takes ten times as long to make."""
    containers = [(n, fixed(tuple(c), values)) for n, c in sorted(net.containers.items())]
    rows: list[Any] = [[n, *c] for n, c in containers]
    for op in sorted(net.widest.ops(), key=lambda op: op.label):
        moving = net.operators[op.label]
        operands = [
            [Operand(o.data, value_at(n, values)) for o, n in zip(side, offsets, strict=True)]
            for side, offsets in ((net.widest.ins(op), moving.in_offsets), (net.widest.outs(op), moving.out_offsets))
        ]
        rows.append([op.label, encode(fixed(unplanned(moving.spec), values)), *operands])
    return _digest(rows, [Result(*fixed(tuple(r), values)) for r in net.results])


def _digest(rows: list[Any], results: Sequence[Result]) -> str:
    rows = rows + [[r.data, r.shape, r.strides, r.offset, r.dtype] for r in results]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
