"""Sequences as Python lists, optionals as the value or None."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dcir.errors import InvalidModel
from dcir.frontends.onnx.program import Subprogram
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import Host, axis_of, ints, scalar, to_tensor


def _position(index: Any, length: int, *, last: int) -> int:
    at = int(scalar(index))
    at = at + length if at < 0 else at
    if not 0 <= at <= last:
        raise InvalidModel(f"position {at} is outside a sequence of {length} elements")
    return at


@onnx_op("SequenceConstruct", since=11)
def sequence_construct(node: Node, *operands: Tensor) -> list[Tensor]:
    return list(operands)


@onnx_op("SequenceEmpty", since=11)
def sequence_empty(node: Node) -> list[Tensor]:
    return []


@onnx_op("SequenceAt", since=11, host=(1,))
def sequence_at(node: Node, sequence: list[Any], index: Any) -> Any:
    return sequence[_position(index, len(sequence), last=len(sequence) - 1)]


@onnx_op("SequenceErase", since=11, host=(1,))
def sequence_erase(node: Node, sequence: list[Any], index: Any = None) -> list[Any]:
    at = len(sequence) - 1 if index is None else _position(index, len(sequence), last=len(sequence) - 1)
    return sequence[:at] + sequence[at + 1 :]


@onnx_op("SequenceInsert", since=11, host=(2,))
def sequence_insert(node: Node, sequence: list[Any], value: Any, index: Any = None) -> list[Any]:
    at = len(sequence) if index is None else _position(index, len(sequence), last=len(sequence))
    return [*sequence[:at], value, *sequence[at:]]


@onnx_op("SequenceLength", since=11)
def sequence_length(node: Node, sequence: list[Any]) -> Host:
    return Host((len(sequence),), (), torch.int64)


@onnx_op("ConcatFromSequence", since=11)
def concat_from_sequence(node: Node, sequence: list[Tensor]) -> Tensor:
    return torch.stack(sequence, node["axis"]) if node["new_axis"] else torch.cat(sequence, node["axis"])


@onnx_op("SplitToSequence", since=11, host=(1,))
def split_to_sequence(node: Node, x: Tensor, split: Any = None) -> list[Tensor]:
    axis = axis_of(node["axis"], x.ndim)
    if split is None:
        parts = list(torch.split(x, 1, axis))
        return parts if node["keepdims"] else [p.squeeze(axis) for p in parts]
    return list(torch.split(x, ints(split) if len(split.shape) else int(scalar(split)), axis))


@onnx_op("SequenceMap", since=17, raw=True)
def sequence_map(node: Node, *operands: Any) -> Any:
    body: Subprogram = node["body"]
    given = operands[: body.start]
    results: list[list[Any]] = [[] for _ in body.program.outputs]
    for i in range(len(given[0])):
        arguments = tuple(v[i] if isinstance(v, list) else v for v in given)
        for result, value in zip(results, body(arguments, operands), strict=True):
            result.append(to_tensor(value) if isinstance(value, Host) else value)
    return tuple(results)


@onnx_op("Optional", since=15, raw=True)
def optional(node: Node, value: Any = None) -> Any:
    return (value,)


@onnx_op("OptionalHasElement", since=15, raw=True)
def optional_has_element(node: Node, value: Any = None) -> Host:
    return Host((value is not None,), (), torch.bool)


@onnx_op("OptionalGetElement", since=15, raw=True)
def optional_get_element(node: Node, value: Any) -> Any:
    if value is None:
        raise InvalidModel("an empty optional has no element")
    return (value,)
