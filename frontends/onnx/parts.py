"""Where a program stops for data: steps that read numbers out of tensors stand apart, and what lies between is traced as one.

A tracer cannot follow a step whose result's shape is in the data (NonZero), or that reads a tensor's numbers to know what to do.
It would give up the loop over all steps, and look at each step alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dcir.frontends.onnx.at_hand import inside, reads, told
from dcir.frontends.onnx.program import OnnxProgram, OnnxStep, Part


def with_parts(program: OnnxProgram, known: Collection[int]) -> OnnxProgram:
    """The program with its parts, and those for calls of which gradients are asked.

    Args:
        program: the outermost one.
        known: slots of its captures and inputs that hold numbers, not tensors.
    """
    return replace(
        program, parts=parts_of(program, known), training_parts=parts_of(program, known, gradients=True)
    )  # fmt: skip


def parts_of(program: OnnxProgram, known: Collection[int], gradients: bool = False) -> tuple[Part, ...]:
    """The steps in parts that read no data, and parts of one step that does; none at all if no step does.

    Args:
        program: the outermost one, or a subgraph.
        known: slots of its captures and inputs that hold numbers, not tensors.
        gradients: whether some are asked for.
    """
    numbers = set(known)
    rows: list[tuple[bool, list[OnnxStep]]] = []
    for step in program.steps:
        found = reads(step, numbers, gradients)
        if found and step.bodies:
            step = _stopping(step, numbers, gradients)
        numbers |= told(step, numbers)
        if found or not rows or rows[-1][0]:
            rows.append((found, []))
        rows[-1][1].append(step)
    if not any(apart for apart, _ in rows):
        return ()
    return tuple(Part(tuple(steps), apart) for apart, steps in rows)


def _stopping(step: OnnxStep, numbers: set[int], gradients: bool) -> OnnxStep:
    """A step whose subgraphs stop for data, too: each of them is traced for itself."""
    bodies = {}
    for name, body in step.bodies.items():
        parts = parts_of(body.program, inside(step, body, numbers), gradients)
        bodies[name] = replace(body, program=replace(body.program, parts=parts, training_parts=parts))
    return replace(step, node=replace(step.node, attributes={**step.node.attributes, **bodies}))
