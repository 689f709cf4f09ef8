"""Turns a checked ModelProto into a `OnnxProgram` and its state.

Names become slots, functions are written out, constants are folded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto
from torch import Tensor

from dcir.errors import DcirError, InvalidModel, Unsupported
from dcir.frontends.onnx.allowed import check_attributes
from dcir.frontends.onnx.attributes import check_node, read_attribute
from dcir.frontends.onnx.element_types import check_body, check_types, name_of, type_of
from dcir.frontends.onnx.fold import Folder
from dcir.frontends.onnx.forms import RULES
from dcir.frontends.onnx.frames import Frame, Scope
from dcir.frontends.onnx.model_file import MAX_NESTING, MAX_NODES, domain_of, functions_of, opsets_of
from dcir.frontends.onnx.node_origins import NodeOrigin
from dcir.frontends.onnx.ops.create import constant
from dcir.frontends.onnx.program import OnnxProgram, OnnxStep, Subprogram, locate
from dcir.frontends.onnx.registry import Node, OperatorRow, find, find_host
from dcir.frontends.onnx.repeatable import declared_shapes, types_of
from dcir.frontends.onnx.tensors import NARROW_TYPES, read_sparse, read_value, show
from dcir.frontends.onnx.values import Host, to_host


@dataclass
class Initial:
    """A value that the file holds: `kind` is parameter, buffer or constant (foldable)."""

    name: str
    tensor: Tensor
    kind: str


@dataclass
class Context:
    """What surrounds a list of nodes: operator sets, attribute bindings of the enclosing call, depth, place in the file."""

    opsets: dict[str, int]
    origin: NodeOrigin
    bindings: dict[str, AttributeProto] | None = None
    depth: int = 0


class Builder:
    """Builds the program of one model; unsupported operators are collected and reported together."""

    def __init__(self, model: ModelProto, folder: Path | None, file: str | None = None) -> None:
        self.model, self.folder = model, folder
        self.origin = NodeOrigin.of_file(file)
        self.functions = functions_of(model)
        self.unsupported: list[tuple[str, str]] = []
        self.nodes = 0
        self.folder_of_constants = Folder()
        self.frame = Frame()
        self.initials: dict[int, Initial] = {}
        self.host_slots: set[int] = set()
        self.tensor_slots: set[int] = set()

    def build(self) -> OnnxProgram:
        graph = self.model.graph
        opsets = opsets_of(self.model.opset_import, "the model") or {"": 1}
        scope = Scope(self.frame)
        uses = self._uses(graph, opsets)
        initials = self._initials(graph)
        narrow = {p.name: p.data_type for p in graph.initializer if p.data_type in NARROW_TYPES}
        kinds = {p.name: name_of(p.data_type) for p in graph.initializer}
        for value in graph.input:
            if not value.name or value.name in scope.names:
                raise InvalidModel(f"graph input {show(value.name)} has no name or appears twice")
            if value.name in initials:
                continue
            scope.names[value.name] = slot = self.frame.slot()
            self.frame.inputs.append(slot)
            if value.type.tensor_type.elem_type in NARROW_TYPES:
                self.frame.narrow[slot] = value.type.tensor_type.elem_type
            self._declare(self.frame, slot, type_of(value.type))
        for name, tensor in initials.items():
            if isinstance(tensor, Host):
                scope.names[name] = self._words(name, tensor, self.frame)
                self._declare(self.frame, scope.names[name], kinds.get(name))
                continue
            kind = _kind(tensor, uses.get(name, set()))
            if kind == "constant":
                slot = self.frame.constant(tensor)
            else:
                slot = self.frame.slot()
            self.initials[slot] = Initial(name, tensor, kind)
            if name in narrow:
                self.frame.narrow[slot] = narrow[name]
            self._declare(self.frame, slot, kinds.get(name))
            scope.names[name] = slot
        self._nodes(graph.node, scope, Context(opsets, self.origin))
        if self.unsupported:
            raise Unsupported.collect(self.unsupported, hint="other operators or element types that mean the same")
        outputs = [self._output(value.name, scope) for value in graph.output]
        if not outputs:
            raise InvalidModel("the graph has no outputs")
        program = self.frame.program(outputs)
        self._note_uses(self.frame.steps, outputs)
        return program

    def _initials(self, graph: GraphProto) -> dict[str, Tensor | Host]:
        tensors: dict[str, Tensor | Host] = {}
        for proto in (*graph.initializer, *graph.sparse_initializer):
            name = proto.values.name if isinstance(proto, SparseTensorProto) else proto.name
            if not name or name in tensors:
                raise InvalidModel(f"initializer {show(name)} has no name or appears twice")
            try:
                if isinstance(proto, SparseTensorProto):
                    tensors[name] = read_sparse(proto, self.folder)
                else:
                    tensors[name] = read_value(proto, self.folder)
            except Unsupported as error:
                self.unsupported.append((error.message, error.where or "initializer"))
                tensors[name] = torch.empty(0)
        return tensors

    def _words(self, name: str, value: Host, frame: Frame) -> int:
        """A slot for strings, which no module holds as state: a step makes them."""
        slot = frame.slot()
        node = Node("Constant", 1, {"value": value}, label=f"initializer {show(name)}")
        frame.steps.append(OnnxStep(node, constant, None, (), (slot,), raw=True))
        return slot

    def _uses(self, graph: GraphProto, opsets: dict[str, int]) -> dict[str, set[str]]:
        """For each name, how the outermost nodes use it: as host value, running statistic, or plain tensor."""
        uses: dict[str, set[str]] = {}
        for node in graph.node:
            domain = domain_of(node.domain)
            entry = find(domain, node.op_type, opsets.get(domain, 1))
            for position, name in enumerate(node.input):
                how = "tensor"
                if entry is not None and position in entry.host:
                    how = "host"
                elif entry is not None and position in entry.state:
                    how = "state"
                uses.setdefault(name, set()).add(how)
        return uses

    def _output(self, name: str, scope: Scope) -> int:
        slot = scope.find(name)
        if slot is None:
            raise InvalidModel(f"graph output {show(name)} is made by no node")
        return slot

    def _nodes(self, nodes: Iterable[NodeProto], scope: Scope, context: Context) -> None:
        if context.depth > MAX_NESTING:
            raise InvalidModel(f"graphs or functions are nested deeper than {MAX_NESTING}")
        for number, node in enumerate(nodes):
            self.nodes += 1
            if self.nodes > MAX_NODES:
                raise InvalidModel(f"the graph has more than {MAX_NODES} nodes")
            origin = context.origin.at(node, number, context.opsets.get(domain_of(node.domain)))
            self._node(node, scope, replace(context, origin=origin))

    def _node(self, node: NodeProto, scope: Scope, context: Context) -> None:
        label = f"node {show(node.name)} ({show(node.op_type)[1:-1]})" if node.name else show(node.op_type)[1:-1]
        try:
            inputs = [self._input(name, scope) for name in node.input]
            domain = domain_of(node.domain)
            function = self.functions.get((domain, node.op_type, node.overload))
            if function is not None:
                outputs = self._call(function, node, inputs, scope.frame, context, label)
            else:
                outputs = self._operator(node, domain, inputs, scope, context, label)
        except DcirError as error:
            locate(error, label)
            raise
        for name, slot in zip(node.output, outputs, strict=True):
            if not name:
                continue
            if name in scope.names:
                raise InvalidModel(f"the name {show(name)} is given to two values", where=label)
            scope.names[name] = slot

    def _input(self, name: str, scope: Scope) -> int:
        if not name:
            return -1
        slot = scope.find(name)
        if slot is None:
            message = f"{show(name)} is used before any node makes it: the graph is cyclic, unsorted or incomplete"
            raise InvalidModel(message)
        return slot

    def _call(
        self,
        function: onnx.FunctionProto,
        node: NodeProto,
        inputs: list[int],
        frame: Frame,
        context: Context,
        label: str,
    ) -> list[int]:
        if len(inputs) > len(function.input) or len(node.output) > len(function.output):
            raise InvalidModel("a function is called with too many operands or results", where=label)
        bindings = {attribute.name: attribute for attribute in function.attribute_proto}
        for attribute in node.attribute:
            bound = self._bound(attribute, context)
            if bound is not None:
                bindings[attribute.name] = bound
        for name in function.attribute:
            if name not in bindings:
                raise InvalidModel(f"attribute {show(name)} of a function is missing", where=label)
        scope = Scope(frame)
        for position, name in enumerate(function.input):
            if name in scope.names:
                raise InvalidModel(f"function input {show(name)} appears twice", where=label)
            scope.names[name] = inputs[position] if position < len(inputs) else -1
        opsets = opsets_of(function.opset_import, label) or context.opsets
        inner = Context(opsets, context.origin, bindings, context.depth + 1)
        self._nodes(function.node, scope, inner)
        return [self._output(name, scope) for name in function.output[: len(node.output)]]

    def _bound(self, attribute: AttributeProto, context: Context) -> AttributeProto | None:
        """The attribute, or what the enclosing call gives for it; None when the call leaves it out."""
        if not attribute.ref_attr_name:
            return attribute
        if context.bindings is None:
            raise InvalidModel("an attribute refers to a function's attribute outside of any function")
        found = context.bindings.get(attribute.ref_attr_name)
        if found is None:
            return None
        copy = AttributeProto()
        copy.CopyFrom(found)
        copy.name = attribute.name
        return copy

    def _operator(
        self, proto: NodeProto, domain: str, inputs: list[int], scope: Scope, context: Context, label: str
    ) -> list[int]:
        frame = scope.frame
        version = context.opsets.get(domain)
        outputs = [frame.slot() if name else -1 for name in proto.output]
        spelled = f"{domain}::{proto.op_type}" if domain else proto.op_type
        if version is None:
            raise InvalidModel(f"no operator set is imported for {show(spelled)}", where=label)
        attributes = {}
        for raw in proto.attribute:
            bound = self._bound(raw, context)
            if bound is None:
                continue
            if bound.name in attributes:
                raise InvalidModel(f"attribute {show(bound.name)} is given twice", where=label)
            attributes[bound.name] = bound
        entry = find(domain, proto.op_type, version)
        schema = check_node(domain, proto, version, attributes, label)
        if entry is None or schema is None:
            self.unsupported.append((f"operator {show(spelled)[1:-1]} (opset {version})", label))
            return outputs
        values, captured = self._attributes(attributes, schema, scope, context, len(inputs), label)
        check_attributes(proto.op_type, values, len(inputs), label)
        types = [frame.types.get(slot) for slot in inputs]
        kinds = check_types(schema, types, values, label)
        for attribute in attributes.values():
            if attribute.type == AttributeProto.GRAPH:
                check_body(schema, attribute.g, types, label)
        for name in entry.numbers:
            if isinstance(given := values.get(name), Tensor):
                values[name] = to_host(given)
        narrow = {i: frame.narrow[slot] for i, slot in enumerate(inputs) if slot in frame.narrow}
        node = Node(
            proto.op_type, schema.since_version, values, len(outputs), len(outputs), label, context.origin.note, narrow
        )
        host = find_host(domain, proto.op_type) if not captured else None
        operands = (*inputs, *captured)
        step = OnnxStep(
            node, entry.function, host, operands, tuple(outputs), entry.host, entry.scalars, entry.raw,
            reads=entry.reads, formed=proto.op_type in RULES, kept=entry.kept, random=entry.random,
        )  # fmt: skip
        if captured or not self._fold(step, entry, frame, outputs):
            frame.steps.append(step)
        for slot, kind in zip(outputs, kinds, strict=False):
            self._declare(frame, slot, kind)
        return self._typed(node, frame, outputs)

    def _declare(self, frame: Frame, slot: int, kind: str | None) -> None:
        if kind is not None and slot >= 0:
            frame.types[slot] = kind

    def _typed(self, node: Node, frame: Frame, outputs: list[int]) -> list[int]:
        """Note which results are of a type that torch holds in a wider one."""
        code = node.narrow.get(0)
        if node.op in ("Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"):
            named = {"Cast": node.get("to"), "CastLike": node.narrow.get(1), "QuantizeLinear": node.narrow.get(2)}
            code = node.get("output_dtype") or named.get(node.op)
        if node.op in ("Shape", "Size", "NonZero", "ArgMax", "ArgMin"):  # whatever they are of, int64
            code = None
        if node.op == "Constant" and not node.narrow:
            code = node.get("value_type")
        if code in NARROW_TYPES:
            frame.narrow.update({slot: code for slot in outputs if slot >= 0})
        return outputs

    def _fold(self, step: OnnxStep, entry: OperatorRow, frame: Frame, outputs: list[int]) -> bool:
        if entry.random or entry.raw or not all(slot < 0 or slot in frame.constants for slot in step.inputs):
            return False
        results = self.folder_of_constants.fold(step, frame.constants)
        if results is None:
            return False
        for index, slot in enumerate(outputs):
            if slot >= 0:
                outputs[index] = frame.constant(results[index])
        return True

    def _attributes(
        self,
        attributes: dict[str, AttributeProto],
        schema: onnx.defs.OpSchema,
        scope: Scope,
        context: Context,
        start: int,
        label: str,
    ) -> tuple[dict[str, Any], list[int]]:
        values: dict[str, Any] = {}
        for name, declared in schema.attributes.items():
            if name not in attributes and declared.default_value.type != AttributeProto.UNDEFINED:
                values[name] = read_attribute(declared.default_value, self.folder, label)
        captured: list[int] = []
        for name, attribute in attributes.items():
            if attribute.type == AttributeProto.GRAPH:
                within = replace(context, origin=context.origin.inside(name))
                program, slots = self._subgraph(attribute.g, scope, within)
                begin = start + len(captured)
                captured.extend(slots)
                shapes, types = declared_shapes(attribute.g), types_of(attribute.g.output)
                values[name] = Subprogram(program, begin, begin + len(slots), shapes, types)
            else:
                values[name] = read_attribute(attribute, self.folder, label)
                if attribute.type == AttributeProto.TENSOR and attribute.t.data_type in NARROW_TYPES:
                    values["value_type"] = attribute.t.data_type
        return values, captured

    def _subgraph(self, graph: GraphProto, scope: Scope, context: Context) -> tuple[OnnxProgram, list[int]]:
        frame = Frame(outer=scope.frame)
        inner = Scope(frame, parent=scope)
        for value in graph.input:
            if not value.name or value.name in inner.names:
                raise InvalidModel(f"subgraph input {show(value.name)} has no name or appears twice")
            inner.names[value.name] = slot = frame.slot()
            frame.inputs.append(slot)
            self._declare(frame, slot, type_of(value.type))
            if value.type.tensor_type.elem_type in NARROW_TYPES:
                frame.narrow[slot] = value.type.tensor_type.elem_type
        narrow = {p.name: p.data_type for p in graph.initializer if p.data_type in NARROW_TYPES}
        for name, tensor in self._initials(graph).items():
            if name not in inner.names:
                if isinstance(tensor, Host):
                    inner.names[name] = self._words(name, tensor, frame)
                else:
                    inner.names[name] = slot = frame.constant(tensor)
                    if name in narrow:
                        frame.narrow[slot] = narrow[name]
        self._nodes(graph.node, inner, replace(context, depth=context.depth + 1))
        if self.unsupported:
            return OnnxProgram(frame.count, tuple(frame.inputs), (), (), ()), [slot for slot, _ in frame.captures]
        outputs = [self._output(value.name, inner) for value in graph.output]
        return frame.program(outputs), [slot for slot, _ in frame.captures]

    def _note_uses(self, steps: list[OnnxStep], outputs: list[int]) -> None:
        """Which constants are read as numbers, which as tensors."""
        self.tensor_slots.update(outputs)
        for step in steps:
            for position, slot in enumerate(step.inputs):
                (self.host_slots if position in step.host else self.tensor_slots).add(slot)


def _kind(tensor: Tensor, uses: set[str]) -> str:
    """Trained weights are parameters; numbers that steer operators, scalars and integers are constants."""
    if uses == {"state"}:
        return "buffer"
    if uses == {"host"} or tensor.ndim == 0 or not (tensor.is_floating_point() or tensor.is_complex()):
        return "constant"
    return "parameter" if tensor.dtype.itemsize > 1 else "constant"
