"""Control flow: If, Loop, Scan.

Compiled, they are operators with bodies where those allow it (``regions.py``). Else a condition or trip count that is known as a host
value unrolls while tracing, and one that lives in a tensor is read, which ends what is traced.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dcir.errors import InvalidModel, TypeMismatch, Unsupported
from dcir.frontends.onnx.program import Subprogram
from dcir.frontends.onnx.regions import chosen, own_operands, repeated, repeated_while, tensors_of
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.tracing import untraced
from dcir.frontends.onnx.values import Host, axis_of, scalar, to_tensor, torch_dtype

MAX_TRIPS = 1 << 31


@onnx_op("If", host=(0,), raw=True)
def if_(node: Node, condition: Any, *captured: Any) -> Any:
    operands = (condition, *captured)
    then, other = node["then_branch"], node["else_branch"]
    if isinstance(condition, Tensor) and torch.compiler.is_exporting():
        return _traced_if(condition, then, other, operands)
    if isinstance(condition, Tensor) and torch.compiler.is_compiling() and then.repeatable and other.repeatable:
        own = own_operands((then, other), operands)
        made = chosen(condition, lambda: then((), own), lambda: other((), own))
        if made is not None:
            return made
    taken: Subprogram = then if bool(_asked(condition)) else other
    return tuple(taken((), operands))


def _asked(value: Any) -> Any:
    """The one number of an operand; where it is data, no tracer sees it being read."""
    return _read(value) if isinstance(value, Tensor) and not torch.compiler.is_exporting() else scalar(value)


@untraced
def _read(value: Tensor) -> Any:
    return scalar(value)


def _traced_if(condition: Tensor, then: Subprogram, other: Subprogram, operands: tuple[Any, ...]) -> Any:
    places = [i for i, v in enumerate(operands) if i > 0 and isinstance(v, Tensor)]

    def branch(body: Subprogram) -> Any:
        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            full = list(operands)
            for place, tensor in zip(places, tensors, strict=True):
                full[place] = tensor
            # A branch of `cond` may not hand on one of its operands itself.
            return tuple(to_tensor(v).clone() for v in body((), tuple(full)))

        return run

    tensors = tuple(operands[i] for i in places)
    return torch.cond(condition.reshape(()), branch(then), branch(other), tensors)


@onnx_op("Loop", host=(0, 1), raw=True)
def loop(node: Node, trips: Any, condition: Any, *rest: Any) -> Any:
    body: Subprogram = node["body"]
    operands = (trips, condition, *rest)
    carried = list(operands[2 : body.start])
    if body.repeatable and torch.compiler.is_compiling():
        made = _as_operator(body, operands, carried)
        if made is not None:
            return made
    limit = MAX_TRIPS if trips is None else _asked(trips)
    running = True if condition is None else bool(_asked(condition))
    scans: list[list[Any]] = [[] for _ in range(len(body.program.outputs) - 1 - len(carried))]
    trip = 0
    while trip < limit and running:
        arguments = (Host((trip,), (), torch.int64), Host((True,), (), torch.bool), *carried)
        proceed, *results = body(arguments, operands)
        carried = results[: len(carried)]
        for scan, value in zip(scans, results[len(carried) :], strict=True):
            scan.append(to_tensor(value))
        running = proceed is None or bool(_asked(proceed))
        trip += 1
    first = len(body.program.outputs) - len(scans)
    return (*carried, *(_stacked(scan, body, first + i) for i, scan in enumerate(scans)))


def _as_operator(body: Subprogram, operands: tuple[Any, ...], carried: list[Any]) -> tuple[Any, ...] | None:
    """A loop as one operator; None if it must run in Python."""
    trips, condition = operands[:2]
    state = tensors_of(carried)
    if state is None:
        return None
    on, operands = Host((True,), (), torch.bool), own_operands((body,), operands)

    def turn(number: Tensor, values: list[Tensor]) -> tuple[Any, list[Any], list[Any]]:
        proceed, *results = body((number, on, *values), operands)
        return proceed, results[: len(values)], results[len(values) :]

    proceed = turn(torch.zeros((), dtype=torch.int64), state)[0]
    endless = not isinstance(condition, Tensor) and not isinstance(proceed, Tensor)
    if endless and isinstance(trips, Host):
        if not (condition is None or scalar(condition)) or not (proceed is None or scalar(proceed)):
            return None  # no round, or one
        made = repeated(
            lambda values, part: turn(part[0], values)[1:], state, [torch.arange(scalar(trips))], body.nested
        )
        return None if made is None else (*made[0], *made[1])
    if (endless and trips is None) or len(body.program.outputs) - 1 > len(state):
        return None
    limit = trips if trips is None or isinstance(trips, Tensor) else scalar(trips)
    running = condition if isinstance(condition, Tensor) else condition is None or bool(scalar(condition))
    last = repeated_while(lambda number, values: turn(number, values)[:2], limit, running, state)
    return None if last is None else tuple(last)


def _stacked(parts: list[Any], body: Subprogram, number: int) -> Any:
    """Results of all rounds together; of none, as the body declares result ``number``, with 0 for what it leaves open."""
    if parts:
        return torch.stack(parts)
    shape = body.declared[1][number] if number < len(body.declared[1]) else None
    code = body.types[number] if number < len(body.types) else 0
    sizes = [d if isinstance(d, int) else 0 for d in shape or ()]
    return torch.empty([0, *sizes], dtype=torch_dtype(code) if code else torch.float32)


@onnx_op("Scan", since=8, raw=True)
def scan_8(node: Node, lengths: Any, *rest: Any) -> Any:
    """Opset 8 has a batch axis before everything, and all sequences of a batch are taken at full length."""
    body: Subprogram = node["body"]
    operands = (lengths, *rest)
    count = node["num_scan_inputs"]
    given = [to_tensor(v) for v in operands[1 : body.start]]
    directions = _of_scan(node, "directions", count)
    if lengths is not None:
        raise Unsupported("a scan of opset 8 with sequence lengths is not supported", hint="opset 9 or later")
    per_batch = []
    for b in range(given[0].shape[0]):
        states, inputs = [v[b] for v in given[:-count]], [v[b] for v in given[-count:]]
        per_batch.append(_scan(body, operands, states, inputs, directions, [0] * count, [], []))
    return tuple(torch.stack(parts) for parts in zip(*per_batch, strict=True))


@onnx_op("Scan", since=9, raw=True)
def scan(node: Node, *operands: Any) -> Any:
    body: Subprogram = node["body"]
    count = node["num_scan_inputs"]
    given = [to_tensor(v) for v in operands[: body.start]]
    if count > len(given):
        raise InvalidModel(f"attribute 'num_scan_inputs' is {count}, {len(given)} operands are given", hint="no more")
    states, inputs = given[: len(given) - count], given[len(given) - count :]
    made = len(body.program.outputs) - len(states)
    directions, axes = _of_scan(node, "scan_input_directions", count), _of_scan(node, "scan_input_axes", count)
    out_axes = _of_scan(node, "scan_output_axes", made)
    return _scan(
        body, operands, states, inputs, directions, axes, out_axes, _of_scan(node, "scan_output_directions", made)
    )


def _of_scan(node: Node, name: str, count: int) -> list[int]:
    """An attribute with a number for each input or output that is scanned; by default zeros."""
    given = node.get(name)
    values = [0] * count if given is None else list(given)
    flags = "directions" in name and any(v not in (0, 1) for v in values)
    if len(values) != count or flags:
        raise InvalidModel(f"attribute {name!r} is {values}", hint=f"{count} numbers{' of 0 or 1' * flags}, or none")
    return values


def _scan(
    body: Subprogram,
    operands: tuple[Any, ...],
    states: list[Any],
    inputs: list[Tensor],
    directions: list[int],
    axes: list[int],
    out_axes: list[int],
    out_directions: list[int],
) -> tuple[Any, ...]:
    dims = [axis_of(a, x.ndim) for a, x in zip(axes, inputs, strict=True)]
    steps = inputs[0].shape[dims[0]]
    if any(x.shape[d] != steps for x, d in zip(inputs, dims, strict=True)):
        shapes = ", ".join(str(list(x.shape)) for x in inputs)
        raise TypeMismatch(
            f"scanned inputs of shapes {shapes} differ in length along {dims}", hint="equally many slices of each"
        )
    if body.repeatable and (made := _scan_as_operator(body, operands, states, inputs, dims, directions)) is not None:
        last, rows = made
        turned = [row.flip(0) if i < len(out_directions) and out_directions[i] else row for i, row in enumerate(rows)]
        axes_out = [axis_of(out_axes[i], row.ndim) if i < len(out_axes) else 0 for i, row in enumerate(turned)]
        return (*last, *(row.movedim(0, axis) for row, axis in zip(turned, axes_out, strict=True)))
    outputs: list[list[Any]] = [[] for _ in range(len(body.program.outputs) - len(states))]
    for t in range(steps):
        slices = [
            torch.select(x, d, steps - 1 - t if back else t)
            for x, d, back in zip(inputs, dims, directions, strict=True)
        ]
        results = body((*states, *slices), operands)
        for out, value in zip(outputs, results[len(states) :], strict=True):
            out.append(to_tensor(value))
        states = results[: len(states)]
    stacked = []
    for i, parts in enumerate(outputs):
        parts = parts[::-1] if i < len(out_directions) and out_directions[i] else parts
        axis = axis_of(out_axes[i], parts[0].ndim + 1) if i < len(out_axes) else 0
        stacked.append(torch.stack(parts, axis))
    return (*states, *stacked)


def _scan_as_operator(
    body: Subprogram,
    operands: tuple[Any, ...],
    states: list[Any],
    inputs: list[Tensor],
    dims: list[int],
    directions: list[int],
) -> tuple[list[Any], list[Any]] | None:
    """States at the end, and what all rounds make, stacked along the first dimension; None if it must run in Python."""
    state = tensors_of(states)
    if state is None:
        return None
    moving = [x.movedim(d, 0) for x, d in zip(inputs, dims, strict=True)]
    moving = [x.flip(0) if back else x for x, back in zip(moving, directions, strict=True)]
    operands = own_operands((body,), operands)

    def turn(values: list[Tensor], parts: list[Tensor]) -> tuple[list[Any], list[Any]]:
        results = body((*values, *parts), operands)
        return results[: len(values)], results[len(values) :]

    return repeated(turn, state, moving, body.nested)
