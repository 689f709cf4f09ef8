"""Reads a node's attributes into plain Python values and holds the node against its schema."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto

from dcir.errors import InvalidModel, Unsupported
from dcir.frontends.onnx.tensors import read_sparse, read_text, read_value, show

_A = AttributeProto


@lru_cache(maxsize=4096)
def schema_of(domain: str, name: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None


def check_node(
    domain: str, node: NodeProto, version: int, attributes: dict[str, AttributeProto], label: str
) -> onnx.defs.OpSchema | None:
    """The node's schema, or None if the operator does not exist; raises `InvalidModel` where they disagree."""
    schema = schema_of(domain, node.op_type, version)
    if schema is None or (schema.deprecated and schema.max_input == 0):
        return None
    given, made = len(node.input), len(node.output)
    if not schema.min_input <= given <= schema.max_input:
        message = f"{given} operands, the operator takes {schema.min_input} to {schema.max_input}"
        raise InvalidModel(message, where=label)
    if not schema.min_output <= made <= schema.max_output:
        message = f"{made} results, the operator has {schema.min_output} to {schema.max_output}"
        raise InvalidModel(message, where=label)
    for name, attribute in attributes.items():
        declared = schema.attributes.get(name)
        if declared is None:
            raise InvalidModel(f"the operator has no attribute {show(name)}", where=label)
        kind: Any = declared.type
        if kind.value != attribute.type:
            raise InvalidModel(f"attribute {show(name)} has the wrong type", where=label)
    for name, declared in schema.attributes.items():
        if declared.required and name not in attributes:
            raise InvalidModel(f"attribute {show(name)} is missing", where=label)
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    for position, name in enumerate(node.input):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if formal.option != optional and not name:
            raise InvalidModel(f"operand {position} ({formal.name}) is missing", where=label)
    return schema


def read_attribute(attribute: AttributeProto, folder: Path | None, label: str) -> Any:
    """Ints, floats, strings, tuples of these, tensors, or host values of strings."""
    kind = attribute.type
    where = f"{label}, attribute {show(attribute.name)}"
    if kind == _A.INT:
        return int(attribute.i)
    if kind == _A.FLOAT:
        return float(attribute.f)
    if kind == _A.STRING:
        return read_text(attribute.s, where)
    if kind == _A.INTS:
        return tuple(int(v) for v in attribute.ints)
    if kind == _A.FLOATS:
        return tuple(float(v) for v in attribute.floats)
    if kind == _A.STRINGS:
        return tuple(read_text(v, where) for v in attribute.strings)
    if kind == _A.TENSOR:
        return read_value(attribute.t, folder, where)
    if kind == _A.SPARSE_TENSOR:
        return read_sparse(attribute.sparse_tensor, folder)
    if kind == _A.TYPE_PROTO:
        return None
    raise Unsupported(f"attributes of type {kind} are not supported", where=where)
