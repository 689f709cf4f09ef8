"""The flat program a graph becomes at load: numbered slots, a list of steps, and the loop that runs them.

Nothing here refers to the file any more, so tracers see plain Python: a list of values and a call per step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx.traceback import annotate, preserve_node_meta

from dcir.errors import DcirError, InvalidInput, Unsupported
from dcir.frontends.onnx.forms import check_form
from dcir.frontends.onnx.registry import Function, Node
from dcir.frontends.onnx.tensors import show
from dcir.frontends.onnx.tracing import not_entered, untraced
from dcir.frontends.onnx.values import TEXT, Host, to_tensor
from dcir.ir.origins import ANNOTATION

Shape = tuple[int | str | None, ...] | None
"""A shape as a file has it: sizes, names of sizes, or nothing."""


@dataclass(frozen=True)
class OnnxStep:
    """One operator call; slot -1 stands for an absent operand or an unused result."""

    node: Node
    call: Function
    host_call: Function | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    host: tuple[int, ...] = ()
    scalars: bool = False
    raw: bool = False
    """Control flow and sequences take their operands as they are."""
    free: tuple[int, ...] = ()
    reads: bool = False
    """The shape of its result is in its operands' data."""
    formed: bool = False
    """Its operands' shapes are looked at before it runs."""
    kept: tuple[int, ...] = ()
    random: bool = False

    @property
    def bodies(self) -> dict[str, Subprogram]:
        """The subgraphs that it runs, by attribute."""
        return {name: body for name, body in self.node.attributes.items() if isinstance(body, Subprogram)}

    def __call__(self, values: list[Any]) -> None:
        if torch.compiler.is_dynamo_compiling():
            with annotate({ANNOTATION: self.node.note}):
                run_step(self, values)
        elif torch.compiler.is_compiling():
            with preserve_node_meta(), annotate({ANNOTATION: self.node.note}):
                run_step(self, values)
        else:
            _run_explained(self, values, run_step)
        for slot in self.free:
            values[slot] = None


@dataclass(frozen=True)
class Part:
    """Steps that a tracer follows at once, or one that reads data, which it does not follow."""

    steps: tuple[OnnxStep, ...]
    reads: bool

    def __call__(self, values: list[Any]) -> None:
        for step in self.steps:
            step(values)


@dataclass(frozen=True)
class OnnxProgram:
    """Steps over `slots` values; `captures` are filled from the surrounding program, in order.

    `parts` are the same steps, apart where data must be read; none if they need not be taken apart. Where gradients are asked for,
    `training_parts` are.
    """

    slots: int
    inputs: tuple[int, ...]
    captures: tuple[int, ...]
    steps: tuple[OnnxStep, ...]
    outputs: tuple[int, ...]
    parts: tuple[Part, ...] = ()
    training_parts: tuple[Part, ...] = ()

    def run(self, arguments: tuple[Any, ...], captured: tuple[Any, ...]) -> list[Any]:
        values: list[Any] = [None] * self.slots
        for slot, value in zip(self.captures, captured, strict=True):
            values[slot] = value
        for slot, value in zip(self.inputs, arguments, strict=True):
            values[slot] = value
        parts = self.training_parts if _differentiated(arguments, captured) else self.parts
        if parts and not torch.compiler.is_exporting():
            _run_apart(parts, values)
        else:
            for step in self.steps:
                step(values)
        return [values[slot] for slot in self.outputs]


def _differentiated(arguments: tuple[Any, ...], captured: tuple[Any, ...]) -> bool:
    if torch.is_grad_enabled():
        for value in (*arguments, *captured):
            if isinstance(value, Tensor) and value.requires_grad:
                return True
    return False


@not_entered
def _run_apart(parts: tuple[Part, ...], values: list[Any]) -> None:
    for part in parts:
        if not part.reads:
            part(values)
        elif part.steps[0].bodies:
            _run_explained(part.steps[0], values, _run_control)
        else:
            _untraced(part, values)


@untraced
def _untraced(part: Part, values: list[Any]) -> None:
    part(values)


@not_entered
def _run_control(step: OnnxStep, values: list[Any]) -> None:
    operands = [values[slot] if slot >= 0 else None for slot in step.inputs]
    _keep(step, values, _not_entered(step.call)(step.node, *operands))
    for slot in step.free:
        values[slot] = None


@untraced
@cache
def _not_entered(function: Function) -> Function:
    return not_entered(function)


@dataclass(frozen=True)
class Subprogram:
    """A subgraph held by an attribute; its captured values are operands `start` to `stop` of its node.

    Attributes:
        declared: shapes of its inputs and of its results as the file has them: sizes, names, or None.
        types: element types of its results, as numbers of the file format; 0 for unknown.
        repeatable: it runs on tensors alone, and does the same in every round.
        nested: it has control flow of its own.
        shared: operands that it captures and that may share memory with others.
    """

    program: OnnxProgram
    start: int
    stop: int
    declared: tuple[tuple[Shape, ...], tuple[Shape, ...]] = ((), ())
    types: tuple[int, ...] = ()
    repeatable: bool = False
    nested: bool = False
    shared: tuple[int, ...] = ()

    def __call__(self, arguments: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Any]:
        if len(arguments) != len(self.program.inputs):
            message = f"a subgraph of {len(self.program.inputs)} inputs is called with {len(arguments)}"
            raise InvalidInput(message)
        return self.program.run(arguments, operands[self.start : self.stop])


@not_entered
def _run_explained(step: OnnxStep, values: list[Any], run: Callable[[OnnxStep, list[Any]], None]) -> None:
    try:
        run(step, values)
    except DcirError as error:
        locate(error, step.node.label)
        raise
    except Exception as error:
        # Tracers raise and catch their own errors; nothing may come between.
        if type(error).__module__ != "builtins" or torch._C._len_torch_dispatch_stack() > 0:
            raise
        # torch's own words are right about what is wrong, but they do not say where in the file.
        first = str(error).strip().split("\n")[0] or type(error).__name__
        rows, hint = _evidence(step, values), "the operator's attributes and operands must fit each other"
        if isinstance(error, NotImplementedError):
            hint = "another element type: a Cast in front"
            raise Unsupported(
                f"torch cannot do this: {first}", where=step.node.label, details=rows, hint=hint
            ) from error
        raise InvalidInput(f"the operator fails: {first}", where=step.node.label, details=rows, hint=hint) from error


def locate(error: DcirError, label: str) -> None:
    """Give an error of a node what it lacks of its three parts."""
    if error.where is None:
        error.where = label
    if error.hint is None and isinstance(error, Unsupported):
        error.hint = "other operators or element types that mean the same"
    if error.hint is None:
        error.hint = (
            "the operator's page in ONNX's documentation says what it takes: correct the file, or export it again"
        )


def _evidence(step: OnnxStep, values: list[Any]) -> list[tuple[str, str]]:
    """The operands and attributes of a step that fails."""
    rows = [(f"operand {i}", _describe(values[s])) for i, s in enumerate(step.inputs) if s >= 0]
    for name, value in step.node.attributes.items():
        if isinstance(value, (str, int, float, tuple)):
            rows.append((name, show(value) if isinstance(value, str) else str(value)[:80]))
    return rows


def _describe(value: Any) -> str:
    if not isinstance(value, (Tensor, Host)):
        return type(value).__name__
    text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Host) and value.dtype is not TEXT:
        text += f" {str(list(value.values))[:60]}"
    return text


def run_step(step: OnnxStep, values: list[Any]) -> None:
    """Run one step: on host values where all operands are, else on tensors."""
    operands = [values[slot] if slot >= 0 else None for slot in step.inputs]
    result = NotImplemented
    if step.host_call is not None and _all_host(operands):
        result = step.host_call(step.node, *operands)
    if result is NotImplemented:
        if not step.raw:
            operands = _prepare(step, operands)
        if step.formed:
            check_form(step.node, operands)
        result = step.call(step.node, *operands)
    _keep(step, values, result)


def _keep(step: OnnxStep, values: list[Any], result: Any) -> None:
    if isinstance(result, (Tensor, Host, list)) or result is None:
        results: tuple[Any, ...] = (result,)
    else:
        results = tuple(result)
    for slot, value in zip(step.outputs, results, strict=False):
        if slot >= 0:
            values[slot] = value


def _all_host(operands: list[Any]) -> bool:
    for value in operands:
        if value is not None and not isinstance(value, Host):
            return False
    return len(operands) > 0


def _prepare(step: OnnxStep, operands: list[Any]) -> list[Any]:
    device = None
    for value in operands:
        if isinstance(value, Tensor):
            device = value.device
            break
    # An operator needs at least one real tensor to know its type and device by.
    scalars = step.scalars and device is not None
    prepared: list[Any] = []
    for position, value in enumerate(operands):
        keep = (
            position in step.host
            or position in step.kept
            or (scalars and isinstance(value, Host) and len(value.values) == 1)
        )
        keep = keep and not (isinstance(value, Host) and value.dtype is TEXT)
        prepared.append(to_tensor(value, device) if isinstance(value, Host) and not keep else value)
    return prepared
