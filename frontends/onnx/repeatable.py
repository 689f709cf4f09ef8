"""Which subgraphs run on tensors alone, as the body of an operator must: no number that steers them changes from round to round.

A step that reads data, or draws random numbers, keeps its subgraph in Python. Whether the shapes of what a loop carries stay the same is
known here as far as the file says it; where it does not, following a round tells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from onnx import GraphProto, ValueInfoProto

from dcir.frontends.onnx.at_hand import inside, reads, told
from dcir.frontends.onnx.numbers import LOOP_GIVEN
from dcir.frontends.onnx.program import OnnxProgram, OnnxStep, Shape, Subprogram


def marked(program: OnnxProgram, known: Collection[int], alone: Collection[int]) -> OnnxProgram:
    """The program with its subgraphs marked (`Subprogram.repeatable` and what follows it), at every depth.

    Args:
        program: any.
        known: slots that hold numbers whenever it runs.
        alone: slots of tensors that share no memory with others.
    """
    numbers = set(known)
    steps = []
    for step in program.steps:
        if step.bodies:
            step = _marked_step(step, numbers, alone, program)
        numbers |= told(step, numbers)
        steps.append(step)
    return replace(program, steps=tuple(steps))


def _marked_step(step: OnnxStep, numbers: set[int], alone: Collection[int], program: OnnxProgram) -> OnnxStep:
    free = not _wanted_as_numbers(told(step, numbers), program)
    bodies = {}
    for name, body in step.bodies.items():
        within = _as_body(step, body, numbers)
        captured = dict(zip(body.program.captures, range(body.start, body.stop), strict=True))
        lone = {slot for slot, place in captured.items() if step.inputs[place] in alone}
        inner = marked(body.program, within, lone)
        repeatable = free and not _reads_or_draws(inner, within)
        if not repeatable:
            inner = marked(body.program, inside(step, body, numbers), lone)
        bodies[name] = replace(
            body, program=inner, repeatable=repeatable, nested=any(s.bodies for s in inner.steps),
            shared=tuple(place for slot, place in captured.items() if slot not in lone),
        )  # fmt: skip
    return replace(step, node=replace(step.node, attributes={**step.node.attributes, **bodies}))


def _as_body(step: OnnxStep, body: Subprogram, numbers: set[int]) -> set[int]:
    """The numbers at hand in the body of an operator: what does not change, and that a loop goes on."""
    captured = zip(body.program.captures, step.inputs[body.start : body.stop], strict=True)
    within = {inner for inner, outer in captured if outer in numbers}
    return within | set(body.program.inputs[LOOP_GIVEN - 1 : LOOP_GIVEN]) if step.node.op == "Loop" else within


def _reads_or_draws(program: OnnxProgram, numbers: set[int]) -> bool:
    """Whether a step reads data or draws random numbers."""
    numbers = set(numbers)
    for step in program.steps:
        if _draws(step) or reads(step, numbers):
            return True
        numbers |= told(step, numbers)
    return False


def _draws(step: OnnxStep) -> bool:
    return step.random or any(_draws(inner) for body in step.bodies.values() for inner in body.program.steps)


def _wanted_as_numbers(made: set[int], program: OnnxProgram) -> bool:
    """Whether anything computes with numbers that control flow makes: as tensors they would have to be read."""
    wanted = made & set(program.outputs)
    for step in program.steps:
        steers = (
            step.inputs if step.host_call is not None else [step.inputs[i] for i in step.host if i < len(step.inputs)]
        )
        wanted |= made & set(steers)
    return bool(wanted - {-1})


def declared_shapes(graph: GraphProto) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Shapes of a subgraph's inputs and of its results, as the file has them."""
    return _shapes(graph.input), _shapes(graph.output)


def types_of(values: Iterable[ValueInfoProto]) -> tuple[int, ...]:
    """Element types as the file has them; 0 where it has none."""
    return tuple(value.type.tensor_type.elem_type for value in values)


def _shapes(values: Iterable[ValueInfoProto]) -> tuple[Shape, ...]:
    return tuple(_shape(value) for value in values)


def _shape(value: ValueInfoProto) -> Shape:
    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
