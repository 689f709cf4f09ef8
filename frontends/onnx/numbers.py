"""Which values are numbers that steer operators (shapes, axes, counts …), and which are data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dcir.frontends.onnx.program import OnnxProgram, OnnxStep, Subprogram

_FORM_ONLY = {"Shape": 0, "Size": 0, "CastLike": 1}
"""The operand of which only the shape or the type matters, not what is in it."""
LOOP_GIVEN = 2
"""A loop takes a count and a condition before what it carries; its body is told the round and that it goes on."""


@dataclass(frozen=True)
class Uses:
    """Slots of a program, by how they are used; a slot may be in several.

    Attributes:
        numbers: what steers operators is computed of these.
        data: so are tensors, perhaps by arithmetic on numbers at first.
        tensors: these are operands of operators that take tensors.
    """

    numbers: set[int]
    data: set[int]
    tensors: set[int]


def uses_of(program: OnnxProgram) -> Uses:
    """How slots are used, traced back through arithmetic and subgraphs."""
    return _uses(program, frozenset(), frozenset(range(len(program.outputs))))


def _uses(program: OnnxProgram, numbers: frozenset[int], data: frozenset[int]) -> Uses:
    results = {program.outputs[i] for i in data}
    uses = Uses({program.outputs[i] for i in numbers}, results, set(results))
    for step in reversed(program.steps):
        asked = _positions(step.outputs, uses.numbers)
        shown = _positions(step.outputs, uses.data)
        steers = step.host_call is not None and bool(asked)
        inside = {place for body in step.bodies.values() for place in range(body.start, body.stop)}
        if step.bodies and step.node.op == "Loop":
            inside |= set(range(LOOP_GIVEN, min(inside, default=len(step.inputs))))
        for position, slot in enumerate(step.inputs):
            if slot < 0 or position in inside or position == _FORM_ONLY.get(step.node.op):
                continue
            if position in step.host or steers:
                uses.numbers.add(slot)
            if position not in step.host and (shown or not steers):
                uses.data.add(slot)
            if position not in step.host and step.host_call is None:
                uses.tensors.add(slot)
        for body in step.bodies.values():
            found = _uses_inside(step, body, asked, shown)
            uses.numbers.update(found.numbers)
            uses.data.update(found.data)
            uses.tensors.update(found.tensors)
    return uses


def _positions(slots: Iterable[int], among: set[int]) -> frozenset[int]:
    return frozenset(i for i, slot in enumerate(slots) if slot in among)


def _uses_inside(step: OnnxStep, body: Subprogram, asked: frozenset[int], shown: frozenset[int]) -> Uses:
    """Slots outside of a subgraph, by how it uses them, or makes its results of them."""
    loop = step.node.op == "Loop"
    if loop:  # its first result says whether to go on
        asked, shown = frozenset({0, *(i + 1 for i in asked)}), frozenset(i + 1 for i in shown)
    inside = _uses(body.program, asked, shown)
    pairs = list(zip(body.program.captures, step.inputs[body.start : body.stop], strict=True))
    if loop:
        carried = step.inputs[LOOP_GIVEN : body.start]
        pairs += zip(body.program.inputs[LOOP_GIVEN:], carried, strict=False)

    def outside(slots: set[int]) -> set[int]:
        return {outer for inner, outer in pairs if inner in slots and outer >= 0}

    return Uses(outside(inside.numbers), outside(inside.data), outside(inside.tensors))
