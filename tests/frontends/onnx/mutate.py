"""Models of one operator with something wrong about them: made of the valid ones in ONNX's own suite."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto

from tests.frontends.onnx.backend_suite import node_cases

_HUGE = 2**62
"""Beyond what any check lets through: what is merely large would be computed, and take the memory that it needs."""
_INTS = (-1, 0, 1, 7, -100, _HUGE, -_HUGE)
_FLOATS = (-1.0, 0.0, float("nan"), float("inf"))
_TEXTS = ("", "foreign", "N\u00d6TSET", "ij,jk->ik;", "a" * 300)


@dataclass(frozen=True)
class Mutant:
    """A model, its inputs, and what was done to it."""

    name: str
    change: str
    model: ModelProto
    inputs: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.change}"


def valid() -> dict[str, Mutant]:
    """One valid model of each operator, the most telling one: with the most attributes and inputs."""
    chosen: dict[str, Mutant] = {}
    for case in node_cases().values():
        graph = case.model.graph
        if len(graph.node) != 1 or case.model.functions or not case.data_sets:
            continue
        node = graph.node[0]
        key = f"{node.domain}.{node.op_type}".strip(".")
        inputs = tuple(case.data_sets[0][0])
        if any(isinstance(v, list) or v is None for v in inputs):
            continue
        before = chosen.get(key)
        if before is None or _telling(case.model) > _telling(before.model):
            chosen[key] = Mutant(key, "as it is", case.model, inputs)
    return chosen


def _telling(model: ModelProto) -> tuple[int, int]:
    node = model.graph.node[0]
    return len(node.attribute), sum(bool(name) for name in node.input)


def mutants(origin: Mutant) -> Iterator[Mutant]:
    """What can go wrong with a model: attributes, operands and their types."""
    yield from _attributes(origin)
    yield from _operands(origin)


def _changed(origin: Mutant, change: str, inputs: tuple[Any, ...] | None = None) -> Mutant:
    model = ModelProto()
    model.CopyFrom(origin.model)
    for output in model.graph.output:
        output.ClearField("type")  # it may be another one now
    return Mutant(origin.name, change, model, origin.inputs if inputs is None else inputs)


def _without(origin: Mutant, change: str, attribute: str, *instead: AttributeProto) -> Mutant:
    mutant = _changed(origin, change)
    attributes = mutant.model.graph.node[0].attribute
    left = [a for a in attributes if a.name != attribute]
    del attributes[:]
    attributes.extend([*left, *instead])
    return mutant


def _attributes(origin: Mutant) -> Iterator[Mutant]:
    node = origin.model.graph.node[0]
    given = {a.name for a in node.attribute}
    versions = {o.domain: o.version for o in origin.model.opset_import}
    schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
    for name, declared in schema.attributes.items():
        kind = declared.type.value
        if name in given:
            yield _without(origin, f"without {name}", name)
        before = next((a for a in node.attribute if a.name == name), declared.default_value)
        for value in _values(kind, before, len(np.shape(origin.inputs[0])) if origin.inputs else 0):
            made = onnx.helper.make_attribute(name, value, attr_type=kind)
            yield _without(origin, f"{name} = {_shown(value)}", name, made)
        wrong = 1.5 if kind != AttributeProto.FLOAT else "text"
        yield _without(origin, f"{name} of another type", name, onnx.helper.make_attribute(name, wrong))


def _shown(value: Any) -> str:
    text = ascii(value) if isinstance(value, (int, float, str, list)) else type(value).__name__
    return text[:60]


def _values(kind: int, before: AttributeProto, rank: int) -> Iterator[Any]:
    if kind == AttributeProto.INT:
        yield from _INTS
    elif kind == AttributeProto.FLOAT:
        yield from _FLOATS
    elif kind == AttributeProto.STRING:
        yield from _TEXTS
    elif kind == AttributeProto.INTS:
        yield from _lists(list(before.ints) or list(range(rank)))
    elif kind == AttributeProto.FLOATS:
        yield from ([], [float("nan")] * max(len(before.floats), 1), [*before.floats, 1.0])
    elif kind == AttributeProto.STRINGS:
        yield from ([], ["foreign"] * max(len(before.strings), 1), [*(s.decode() for s in before.strings), "more"])
    elif kind == AttributeProto.TENSOR:
        yield onnx.numpy_helper.from_array(np.zeros((2, 0), np.float32))
        yield onnx.numpy_helper.from_array(np.array(["word"], object))


def _lists(before: list[int]) -> Iterator[list[int]]:
    yield []
    yield [*before, 1]
    if before:
        yield before[:-1]
        yield [before[0]] * len(before)
        yield before[::-1]
        for value in (-1, 0, -9, 9, _HUGE, -_HUGE):
            yield [value, *before[1:]]
            yield [*before[:-1], value]


def _operands(origin: Mutant) -> Iterator[Mutant]:
    node, inputs = origin.model.graph.node[0], origin.inputs
    names = [name for name in node.input if name]
    if [v.name for v in origin.model.graph.input] != names or len(names) != len(inputs):
        return
    for i in range(len(names)):
        mutant = _changed(origin, f"without operand {i}")
        mutant.model.graph.node[0].input[list(node.input).index(names[i])] = ""
        yield mutant
        for j in range(i):
            mutant = _changed(origin, f"operands {j} and {i} exchanged")
            places = [list(node.input).index(names[k]) for k in (i, j)]
            ends = mutant.model.graph.node[0].input
            ends[places[0]], ends[places[1]] = node.input[places[1]], node.input[places[0]]
            yield mutant
        for label, value in _arrays(np.asarray(inputs[i]), origin.name + str(i)):
            mutant = _changed(origin, f"operand {i} {label}", (*inputs[:i], value, *inputs[i + 1 :]))
            text = value.dtype.kind in "OUS"
            code = onnx.TensorProto.STRING if text else onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            mutant.model.graph.input[i].CopyFrom(onnx.helper.make_tensor_value_info(names[i], code, value.shape))
            yield mutant


def _arrays(value: np.ndarray[Any, Any], seed: str) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    if value.dtype.kind in "OUS":
        yield "of numbers", np.zeros(value.shape, np.float32)
        return
    yield "with a dimension more", value[None]
    yield "flat", value.reshape(-1)
    yield "empty", value[:0] if value.ndim else value.reshape(1)[:0]
    yield "as a scalar", value.reshape(-1)[0] if value.size else np.zeros((), value.dtype)
    yield "of bools", value.astype(bool)
    yield "of strings", np.full(value.shape, "word", object)
    yield (
        "of floats" if value.dtype.kind in "iu" else "of integers",
        value.astype(np.float32 if value.dtype.kind in "iu" else np.int64),
    )
    if value.ndim:
        yield "cut", value[..., : max(value.shape[-1] - 1, 0)]
        yield "turned", value.T.copy()
    if value.dtype.kind in "iu" and value.size and value.size <= 64:
        rng = np.random.default_rng(zlib.crc32(seed.encode()))
        ends = (_HUGE, -_HUGE) if value.dtype == np.int64 else (np.iinfo(value.dtype).min,)
        for number in (-1, 0, 9, -9, *ends):
            place = int(rng.integers(value.size))
            other = value.copy().reshape(-1)
            other[place] = number if number >= 0 or value.dtype.kind == "i" else 0
            yield f"with {number} at {place}", other.reshape(value.shape)
