"""Which slots hold numbers as a program runs: shapes, constants, and what arithmetic makes of them; and which steps read others."""

from __future__ import annotations

from dcir.frontends.onnx.numbers import LOOP_GIVEN
from dcir.frontends.onnx.program import OnnxStep, Shape, Subprogram


def told(step: OnnxStep, numbers: set[int]) -> set[int]:
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
    numbers_out = set(step.outputs) if step.node.op in ("If", "Loop") else set()
    for body in step.bodies.values():
        within = inside(step, body, numbers)
        made_here = at_end(body, within)
        results = body.program.outputs
        if step.node.op == "Loop":
            # Without any round, what is carried comes out as it went in; scans are stacked to tensors.
            carried = zip(body.program.inputs[LOOP_GIVEN:], results[1:], strict=False)
            results = tuple(made if inner in within else -1 for inner, made in carried)
        numbers_out &= {outer for outer, made in zip(step.outputs, results, strict=False) if made in made_here}
    return numbers_out


def inside(step: OnnxStep, body: Subprogram, numbers: set[int]) -> set[int]:
    """The numbers at hand when a subgraph begins."""
    captured = zip(body.program.captures, step.inputs[body.start : body.stop], strict=True)
    within = {inner for inner, outer in captured if outer in numbers}
    if step.node.op != "Loop":
        return within
    within |= set(body.program.inputs[:LOOP_GIVEN])
    ends = (body.program.inputs[LOOP_GIVEN:], step.inputs[LOOP_GIVEN : body.start], body.program.outputs[1:])
    carried = {inner: made for inner, outer, made in zip(*ends, strict=False) if outer in numbers}
    # What a round hands to the next one is a number only if it makes a number of numbers.
    while True:
        lost = {inner for inner, made in carried.items() if made not in at_end(body, within | set(carried))}
        if not lost:
            return within | set(carried)
        carried = {inner: made for inner, made in carried.items() if inner not in lost}


def at_end(body: Subprogram, first: set[int]) -> set[int]:
    """The numbers at hand when a subgraph ends, of those at hand when it begins."""
    numbers = set(first)
    for step in body.program.steps:
        numbers |= told(step, numbers)
    return numbers


def reads(step: OnnxStep, numbers: set[int], gradients: bool = False) -> bool:
    """Whether a step reads data, where `numbers` are at hand without.

    Args:
        step: any.
        numbers: slots.
        gradients: whether some are asked for: a loop that data ends has none as an operator.
    """
    if step.reads:
        return True
    if asks(step, numbers) and not runs_as_region(step, gradients):
        return True
    return any(_reads_inside(step, body, numbers, gradients) for body in step.bodies.values())


def asks(step: OnnxStep, numbers: set[int]) -> bool:
    """Whether an operand that a step wants as a number is none of `numbers`, or a loop's body says whether it goes on."""
    wanted = {step.inputs[i] for i in step.host if i < len(step.inputs)}
    if any(slot >= 0 and slot not in numbers for slot in wanted):
        return True
    # Whether a loop goes on is read after each round.
    return step.node.op == "Loop" and any(
        body.program.outputs[0] not in at_end(body, inside(step, body, numbers)) for body in step.bodies.values()
    )


def runs_as_region(step: OnnxStep, gradients: bool) -> bool:
    """Whether control flow on data is one operator where it is compiled: bodies that run on tensors, with results like what they follow."""
    bodies = list(step.bodies.values())
    if not bodies or not all(body.repeatable for body in bodies):
        return False
    if step.node.op == "If":
        first, second = (body.declared[1] for body in bodies)
        return first == second and all(map(_known, first))
    if step.node.op != "Loop" or gradients:
        return False
    ((given, made),) = (body.declared for body in bodies)
    # What rounds make besides what they carry has as many rows as there are rounds.
    return given[LOOP_GIVEN:] == made[1:] and all(map(_known, made[1:]))


def _known(shape: Shape) -> bool:
    return shape is not None and None not in shape


def _reads_inside(step: OnnxStep, body: Subprogram, numbers: set[int], gradients: bool) -> bool:
    within = inside(step, body, numbers)
    for inner in body.program.steps:
        if reads(inner, within, gradients):
            return True
        within |= told(inner, within)
    return False
