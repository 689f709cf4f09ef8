"""Where a program stops for data: steps that read numbers out of tensors stand apart, and what lies between is traced as one.

A tracer cannot follow a step whose result's shape is in the data (NonZero), or that reads a tensor's numbers to know what to do.
It would give up the loop over all steps, and look at each step alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dcir.frontends.onnx.numbers import LOOP_GIVEN
from dcir.frontends.onnx.program import OnnxProgram, OnnxStep, Part, Subprogram


def parts_of(program: OnnxProgram, known: Collection[int]) -> tuple[Part, ...]:
    """The steps in parts that read no data, and parts of one step that does; none at all if no step does.

    Args:
        program: the outermost one.
        known: slots of its captures and inputs that hold numbers, not tensors.
    """
    numbers = set(known)
    rows: list[tuple[bool, list[OnnxStep]]] = []
    for step in program.steps:
        reads = _reads(step, numbers)
        if reads and step.bodies:
            step = _with_parts(step, numbers)
        numbers |= _told(step, numbers)
        if reads or not rows or rows[-1][0]:
            rows.append((reads, []))
        rows[-1][1].append(step)
    if not any(reads for reads, _ in rows):
        return ()
    return tuple(Part(tuple(steps), reads) for reads, steps in rows)


def _reads(step: OnnxStep, numbers: set[int]) -> bool:
    """Whether a step reads data, where `numbers` are at hand without."""
    if step.reads or any(
        step.inputs[i] >= 0 and step.inputs[i] not in numbers for i in step.host if i < len(step.inputs)
    ):
        return True
    return any(_reads_inside(step, body, numbers) for body in step.bodies.values())


def _with_parts(step: OnnxStep, numbers: set[int]) -> OnnxStep:
    """A step whose subgraphs stop for data, too: each of them is traced for itself."""
    bodies = {
        name: replace(body, program=replace(body.program, parts=parts_of(body.program, _inside(step, body, numbers))))
        for name, body in step.bodies.items()
    }
    return replace(step, node=replace(step.node, attributes={**step.node.attributes, **bodies}))


def _inside(step: OnnxStep, body: Subprogram, numbers: set[int]) -> set[int]:
    """The numbers at hand when a subgraph begins."""
    captured = zip(body.program.captures, step.inputs[body.start : body.stop], strict=True)
    inside = {inner for inner, outer in captured if outer in numbers}
    if step.node.op != "Loop":
        return inside
    inside |= set(body.program.inputs[:LOOP_GIVEN])
    ends = (body.program.inputs[LOOP_GIVEN:], step.inputs[LOOP_GIVEN : body.start], body.program.outputs[1:])
    carried = {inner: made for inner, outer, made in zip(*ends, strict=False) if outer in numbers}
    # What a round hands to the next one is a number only if it makes a number of numbers.
    while True:
        lost = {inner for inner, made in carried.items() if made not in _at_end(body, inside | set(carried))}
        if not lost:
            return inside | set(carried)
        carried = {inner: made for inner, made in carried.items() if inner not in lost}


def _at_end(body: Subprogram, inside: set[int]) -> set[int]:
    """The numbers at hand when a subgraph ends."""
    numbers = set(inside)
    for step in body.program.steps:
        numbers |= _told(step, numbers)
    return numbers


def _reads_inside(step: OnnxStep, body: Subprogram, numbers: set[int]) -> bool:
    inside = _inside(step, body, numbers)
    for inner in body.program.steps:
        if _reads(inner, inside):
            return True
        inside |= _told(inner, inside)
    # Whether a loop goes on is read after each round.
    return step.node.op == "Loop" and body.program.outputs[0] not in inside


def _told(step: OnnxStep, numbers: set[int]) -> set[int]:
    """Slots of a step's results that are numbers if its operands are."""
    if step.node.op in ("Shape", "Size", "SequenceLength"):
        return set(step.outputs)
    if step.node.op == "CastLike":
        return set(step.outputs) if step.inputs[0] in numbers else set()
    if step.bodies:
        return _told_inside(step, numbers)
    given = step.host_call is not None and all(slot < 0 or slot in numbers for slot in step.inputs)
    return set(step.outputs) if given else set()


def _told_inside(step: OnnxStep, numbers: set[int]) -> set[int]:
    """Results of control flow that are numbers: in each branch, or after any number of rounds."""
    told = set(step.outputs) if step.node.op in ("If", "Loop") else set()
    for body in step.bodies.values():
        inside = _inside(step, body, numbers)
        at_end = _at_end(body, inside)
        results = body.program.outputs
        if step.node.op == "Loop":
            # Without any round, what is carried comes out as it went in; scans are stacked to tensors.
            carried = zip(body.program.inputs[LOOP_GIVEN:], results[1:], strict=False)
            results = tuple(made if inner in inside else -1 for inner, made in carried)
        told &= {outer for outer, made in zip(step.outputs, results, strict=False) if made in at_end}
    return told
