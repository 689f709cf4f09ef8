"""Element types of values, as far as the file says them: operands are held against the operator's schema at load.

torch would compute on other types by rules of its own, which are not ONNX's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import onnx
from onnx import TensorProto, TypeProto

from dcir.errors import InvalidModel
from dcir.frontends.onnx.values import ONNX_TYPES, Host

_NAMES: dict[int, str] = {
    code: f"tensor({name.lower()})" for name, code in TensorProto.DataType.items() if name != "UNDEFINED"
}
_SAID_BY: dict[str, str] = {
    "Cast": "to", "BitCast": "to", "QuantizeLinear": "output_dtype", "DequantizeLinear": "output_dtype",
    **dict.fromkeys((
        "Bernoulli", "EyeLike", "Multinomial", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike",
    ), "dtype"),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"), "output_datatype"),
}  # fmt: skip
"""The attribute that names the type of the result."""


def name_of(code: int) -> str | None:
    """The schemas' name of tensors of an element type."""
    return _NAMES.get(code)


def type_of(proto: TypeProto) -> str | None:
    """The schemas' name of a declared type, or None if it is not declared."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return name_of(proto.tensor_type.elem_type)
    if kind in ("sequence_type", "optional_type"):
        inner = type_of(getattr(proto, kind).elem_type)
        return None if inner is None else f"{'seq' if kind == 'sequence_type' else 'optional'}({inner})"
    return None


def check_types(
    schema: onnx.defs.OpSchema, given: Sequence[str | None], attributes: dict[str, Any], label: str
) -> list[str | None]:
    """Hold operands against the schema.

    Args:
        schema: of the operator.
        given: type of each operand, None where it is absent or unknown.
        attributes: of the node, as read.
        label: the node.

    Returns:
        Types of the results, as far as they follow.

    Raises:
        InvalidModel: an operand has a type that the operator does not take, or two differ that must not.
    """
    formals, allowed, results = _forms(schema)
    bound: dict[str, tuple[int, str]] = {}
    for position, kind in enumerate(given):
        if kind is None or not formals:
            continue
        name, variable, homogeneous = formals[min(position, len(formals) - 1)]
        takes = allowed.get(variable, (variable,))
        if kind not in takes:
            message = f"operand {position} ({name}) is a {kind}"
            raise InvalidModel(message, where=label, hint=f"one of {', '.join(takes)}")
        first, other = bound.setdefault(variable, (position, kind)) if homogeneous else (position, kind)
        if other != kind:
            message = f"operand {first} is a {other}, operand {position} ({name}) is a {kind}"
            raise InvalidModel(message, where=label, hint="the operator wants both of one type: a Cast in front")
    attribute = _SAID_BY.get(schema.name, "")
    said = attributes.get(attribute)
    # Quantisation writes 0 where the type follows from an operand.
    if isinstance(said, int) and (said or not attribute.startswith("output_dtype")):
        makes = allowed.get(results[0], (results[0],))
        if name_of(said) not in makes:
            names = ", ".join(f"{code} ({name})" for code, name in _NAMES.items() if name in makes)
            raise InvalidModel(f"attribute {attribute!r} is {said}", where=label, hint=f"one of {names}")
        return [name_of(said)]
    if schema.name == "Constant":
        return [_constant(attributes)]
    made = []
    for variable in results:
        takes = allowed.get(variable, (variable,))
        made.append(bound[variable][1] if variable in bound else takes[0] if len(takes) == 1 else None)
    return made


def check_body(schema: onnx.defs.OpSchema, body: onnx.GraphProto, given: Sequence[str | None], label: str) -> None:
    """Hold what a Loop or Scan hands to its body against what the body declares.

    Raises:
        InvalidModel: two types differ.
    """
    skipped = {"Loop": 2, "Scan": 0 if schema.since_version >= 9 else 1}.get(schema.name)
    if skipped is None:
        return
    inputs = body.input[2:] if schema.name == "Loop" else body.input
    for number, (value, kind) in enumerate(zip(inputs, given[skipped:], strict=False), start=skipped):
        declared = type_of(value.type)
        if None not in (declared, kind) and declared != kind:
            message = f"operand {number} is a {kind}, the body declares a {declared}"
            raise InvalidModel(message, where=label, hint="a Cast in front, or another declaration")


def _constant(attributes: dict[str, Any]) -> str | None:
    value = attributes.get("value")
    if "value_type" in attributes:
        return name_of(attributes["value_type"])
    if isinstance(value, Host):
        return "tensor(string)" if value.dtype is None else None
    return None if value is None else name_of(ONNX_TYPES.get(value.dtype, 0))


@lru_cache(maxsize=4096)
def _known(name: str, domain: str, since: int) -> tuple[Any, ...]:
    schema = onnx.defs.get_schema(name, since, domain)
    formals = tuple((f.name, f.type_str, f.is_homogeneous) for f in schema.inputs)
    allowed = {c.type_param_str: tuple(c.allowed_type_strs) for c in schema.type_constraints}
    return formals, allowed, tuple(f.type_str for f in schema.outputs)


def _forms(
    schema: onnx.defs.OpSchema,
) -> tuple[tuple[tuple[str, str, bool], ...], dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Name, type variable and homogeneity of each operand; what each variable allows; variables of the results."""
    formals, allowed, results = _known(schema.name, schema.domain, schema.since_version)
    return formals, allowed, results
