"""`OnnxModule`: an ONNX graph as an `nn.Module`, trainable and traceable; and `load`, which makes one."""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import ModelProto, TensorProto, ValueInfoProto
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from dcir.errors import DcirError, InvalidInput, InvalidModel, Unsupported
from dcir.frontends.onnx import table as _table
from dcir.frontends.onnx.build import Builder
from dcir.frontends.onnx.model_file import read_model
from dcir.frontends.onnx.numbers import Uses, uses_of
from dcir.frontends.onnx.parts import with_parts
from dcir.frontends.onnx.program import OnnxProgram, locate
from dcir.frontends.onnx.repeatable import marked
from dcir.frontends.onnx.tensors import MAX_RANK, from_numpy, show, to_numpy
from dcir.frontends.onnx.tracing import Unlogged
from dcir.frontends.onnx.values import HOST_LIMIT, TEXT, Host, to_host, to_tensor, torch_dtype

Dim = int | str | None
Shapes = Mapping[str, Sequence[int | str]]
MAX_NUMBERS = 1024
FEW_NUMBERS = 16
"""Not more integers may be a shape or the like of which tensors are computed, too."""

assert _table  # imported for its effect: it fills the operator table


@dataclass(frozen=True)
class ValueSpec:
    """One input or output: our name, the file's name, element type, dims (int, own symbol such as `d0`, or None)."""

    name: str
    original: str
    dtype: torch.dtype | None
    shape: tuple[Dim, ...] | None
    onnx_type: int = 0
    kind: str = "tensor"
    host: bool = False
    """Its numbers steer operators (a shape, axes, a count): tracers want them as Python numbers, not as a tensor."""


class OnnxModule(nn.Module):
    """Runs the program of an ONNX graph.

    Float initializers of rank 1 or more are parameters; integers, scalars and running statistics are buffers or folded
    constants. Keys of the state dict are our own identifiers; `original_names` maps them to the file's names.

    Attributes:
        input_specs, output_specs: `ValueSpec` per graph input (without initializers) and output.
        output_names: Our names of the outputs.
        original_names: State-dict key to name in the file.
        dim_names: Own symbol of a symbolic dimension to its name in the file.
    """

    def __init__(self, program: OnnxProgram, inputs: Sequence[ValueSpec], outputs: Sequence[ValueSpec]) -> None:
        super().__init__()
        self.program = program
        self.input_specs = tuple(inputs)
        self.output_specs = tuple(outputs)
        self.output_names = tuple(spec.name for spec in outputs)
        self.original_names: dict[str, str] = {}
        self.dim_names: dict[str, str] = {}
        self._state: tuple[str, ...] = ()
        self._hosts: tuple[Host | None, ...] = ()
        self._takes_numbers = any(spec.host for spec in inputs)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """As `forward`, with numbers in place of small tensors that are read as numbers."""
        if torch.compiler.is_dynamo_compiling():
            return super().__call__(*inputs, **named)
        if torch.compiler.is_exporting():
            with Unlogged():
                return super().__call__(*inputs, **named)
        if self._takes_numbers:
            inputs = self.as_numbers(*_merge(self.input_specs, inputs, named)) if named else self.as_numbers(*inputs)
            named = {}
        try:
            with Unlogged():
                return super().__call__(*inputs, **named)
        except Exception as error:
            if isinstance(error, DcirError) and error.where is not None:
                locate(error, error.where)  # where a tracer followed the operator, it has no hint yet
            else:
                self.explain_failure(inputs, named, error)
            raise

    def explain_failure(self, inputs: Sequence[Any], named: Mapping[str, Any], error: Exception) -> None:
        """Run a call that failed operator by operator, for an error that names the node.

        Raises:
            DcirError: the call fails in eager mode, too.
        """
        try:
            with torch.no_grad():
                self.forward(*inputs, **named)
        except DcirError as found:
            raise found from None if type(found) is type(error) else error

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Outputs of the graph: one value, or a tuple of them.

        Args:
            inputs: One value per entry of `input_specs`, in order. An input whose spec says `host` may be a number or a
                list of numbers instead of a tensor; it is then static to tracers.
            named: Or by (our) name.

        Raises:
            InvalidInput: The number, type or shape of the inputs does not fit.
        """
        arguments = self._bind(inputs, named)
        state = []
        for name, host in zip(self._state, self._hosts, strict=True):
            if host is None:
                state.append(getattr(self, name))
            elif name:
                state.append(host._replace(twin=getattr(self, name)))
            else:
                state.append(host)
        if (device := _device_of(arguments, state)) is None or device.type == "cpu":
            results = self._run(arguments, tuple(state))
        else:
            # Operators that make a tensor from nothing must make it beside the others.
            with torch.device(device):
                results = self._run(arguments, tuple(state))
        return results[0] if len(results) == 1 else tuple(results)

    def _bind(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        specs = self.input_specs
        if named:
            inputs = _merge(specs, inputs, named)
        if len(inputs) != len(specs):
            names = ", ".join(spec.name for spec in specs)
            raise InvalidInput(f"{len(inputs)} inputs are given, the model takes {len(specs)}: {names}")
        bound = []
        for spec, value in zip(specs, inputs, strict=True):
            if spec.kind == "string":
                value = _words(spec, value)
            elif spec.host and isinstance(value, (int, float, list, tuple)):
                value = _numbers(spec, value)
            elif spec.kind == "tensor":
                _check(spec, value)
            bound.append(value)
        return tuple(bound)

    def _run(self, arguments: tuple[Any, ...], state: tuple[Any, ...]) -> list[Any]:
        return [_result(v) for v in self.program.run(arguments, state)]

    def as_numbers(self, *inputs: Any) -> tuple[Any, ...]:
        """The inputs with small tensors at `host` inputs replaced by numbers, so that tracing needs no data."""
        if len(inputs) != len(self.input_specs):
            return inputs  # a call says what is wrong
        pairs = zip(self.input_specs, inputs, strict=True)
        return tuple(_as_numbers(v) if spec.host and _fits(spec, v) else v for spec, v in pairs)


def _device_of(arguments: tuple[Any, ...], state: list[Any]) -> torch.device | None:
    for value in (*arguments, *state):
        if isinstance(value, Tensor):
            return value.device
    return None


def _result(value: Any) -> Any:
    """Strings leave as arrays of objects, all else as tensors."""
    if isinstance(value, list):
        return [_result(part) for part in value]
    if isinstance(value, Host):
        return to_numpy(value, 0) if value.dtype is TEXT else to_tensor(value)
    return value


def _words(spec: ValueSpec, value: Any) -> Host:
    """Strings from an array of objects, a list, or one word."""
    words = value if isinstance(value, Host) else from_numpy(np.asarray(value, object))
    if not isinstance(words, Host) or words.dtype is not TEXT:
        raise InvalidInput(f"input {spec.name} must hold strings, it is a {type(value).__name__}")
    _check_shape(spec, words.shape)
    return words


def _fits(spec: ValueSpec, value: Any) -> bool:
    """Whether it is a small tensor, of the type and rank that the file says: numbers have none that could be checked."""
    if not isinstance(value, Tensor) or value.ndim > 1 or value.numel() > MAX_NUMBERS or value.dtype != spec.dtype:
        return False
    return not (value.requires_grad or value.is_meta or isinstance(value, FakeTensor))


def _as_numbers(value: Tensor) -> Any:
    wide = value.to(torch.float32) if value.dtype.is_floating_point and value.dtype.itemsize == 1 else value
    return wide.tolist()


def _numbers(spec: ValueSpec, value: Any) -> Host:
    assert spec.dtype is not None
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    shape = (len(values),) if isinstance(value, (list, tuple)) else ()
    _check_shape(spec, shape)
    return Host(values, shape, spec.dtype)


def _merge(specs: tuple[ValueSpec, ...], inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    rest = [spec.name for spec in specs[len(inputs) :]]
    unknown = [name for name in named if name not in rest]
    missing = [name for name in rest if name not in named]
    if unknown or missing:
        rows = [("unknown", ", ".join(unknown) or "none"), ("missing", ", ".join(missing) or "none")]
        raise InvalidInput("the named inputs do not fit the model", details=rows)
    return (*inputs, *(named[name] for name in rest))


def _check(spec: ValueSpec, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise InvalidInput(f"input {spec.name} must be a tensor, it is a {type(value).__name__}")
    if value.dtype != spec.dtype:
        raise InvalidInput(f"input {spec.name} must have type {spec.dtype}, it has {value.dtype}")
    _check_shape(spec, value.shape)


def _check_shape(spec: ValueSpec, shape: Sequence[int]) -> None:
    if spec.shape is None:
        return
    fits = len(spec.shape) == len(shape)
    if fits:
        for want, have in zip(spec.shape, shape, strict=True):
            if isinstance(want, int) and want != have:
                fits = False
    if not fits:
        raise InvalidInput(f"input {spec.name} must have shape {list(spec.shape)}, it has {list(shape)}")


def load(source: str | os.PathLike[str] | ModelProto, *, shapes: Shapes | None = None) -> OnnxModule:
    """Read an ONNX file (or a ModelProto) as a module.

    Args:
        source: Path of the file, or the model as an object (then without external data).
        shapes: Input name to shape, in place of what the file declares; strings name symbolic dimensions.

    Raises:
        InvalidModel: The file is broken or hostile.
        Unsupported: It uses operators or types that have no way here; all of them are listed.
    """
    try:
        return _load(*read_model(source), shapes, None if isinstance(source, ModelProto) else os.fspath(source))
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError, MemoryError) as error:
        if isinstance(error, DcirError):
            raise
        # Protocol buffers hand out what they find (bytes for text, for one); nothing in a file may crash its reader.
        raise InvalidModel(f"the file is malformed: {show(str(error))}") from error


def _load(model: ModelProto, folder: Path | None, shapes: Shapes | None, file: str | None) -> OnnxModule:
    builder = Builder(model, folder, file)
    program = builder.build()
    names = _Names()
    stored = {p.name for p in model.graph.initializer} | {p.values.name for p in model.graph.sparse_initializer}
    inputs = [_spec(v, names, "in") for v in model.graph.input if v.name not in stored]
    outputs = [_spec(v, _Names(names.symbols), "out") for v in model.graph.output]
    uses = uses_of(program)
    inputs = [replace(s, host=_is_number(s, slot, uses)) for s, slot in zip(inputs, program.inputs, strict=True)]
    module = OnnxModule(program, _with_shapes(inputs, shapes, names), outputs)
    module.dim_names = {symbol: name for name, symbol in names.symbols.items()}
    _attach_state(module, builder)
    return module


def _is_number(spec: ValueSpec, slot: int, uses: Uses) -> bool:
    """Whether an input is there to steer operators. Data may do so, too, but is another in every call."""
    if slot not in uses.numbers or slot in uses.tensors or spec.kind != "tensor" or spec.dtype is None:
        return False
    if slot not in uses.data or spec.shape == ():
        return True
    short = spec.shape is not None and len(spec.shape) == 1 and spec.shape[0] in range(FEW_NUMBERS + 1)
    return short and not spec.dtype.is_floating_point


def _attach_state(module: OnnxModule, builder: Builder) -> None:
    """Parameters, buffers and constants become the program's captures, in slot order."""
    used = builder.host_slots | builder.tensor_slots
    state: list[str] = []
    hosts: list[Host | None] = []
    slots: list[int] = []
    everything: dict[int, tuple[str, Tensor, str]] = {
        slot: ("", tensor, "constant") for slot, tensor in builder.frame.constants.items()
    }
    everything.update({slot: (i.name, i.tensor, i.kind) for slot, i in builder.initials.items()})
    for slot, (original, tensor, kind) in sorted(everything.items()):
        if slot not in used and kind != "parameter":
            continue
        host = None
        small = (tensor.numel() <= HOST_LIMIT and not tensor.is_floating_point()) or tensor.numel() == 1
        if kind == "constant" and not tensor.is_complex() and (small or slot in builder.host_slots):
            host = to_host(tensor)
        name = ""
        if host is None or (slot in builder.tensor_slots and tensor.ndim > 0):
            name = f"{kind[0]}{len(slots)}_{_clean(original)}".rstrip("_")
            module.original_names[name] = original
            if kind == "parameter":
                setattr(module, name, nn.Parameter(tensor))
            else:
                module.register_buffer(name, tensor, persistent=bool(original))
        slots.append(slot)
        state.append(name)
        hosts.append(host)
    module._state, module._hosts = tuple(state), tuple(hosts)
    program = replace(module.program, captures=tuple(slots))
    known = {slot for slot, host in zip(slots, hosts, strict=True) if host is not None}
    known |= {slot for slot, spec in zip(program.inputs, module.input_specs, strict=True) if spec.host}
    module.program = with_parts(marked(program, known, slots), known)


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", name)[:48].strip("_")


class _Names:
    """Gives out our own names: identifiers for values, d0, d1 … for symbolic dimensions."""

    def __init__(self, symbols: dict[str, str] | None = None) -> None:
        self.taken: set[str] = set()
        self.symbols = {} if symbols is None else symbols

    def value(self, original: str, prefix: str) -> str:
        name = _clean(original)
        plain = name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_") and name != "self"
        if not plain or name in self.taken:
            name = f"{prefix}{len(self.taken)}_{name}".rstrip("_")
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def symbol(self, original: str) -> str:
        return self.symbols.setdefault(original, f"d{len(self.symbols)}")


def _spec(value: ValueInfoProto, names: _Names, prefix: str) -> ValueSpec:
    where = f"{prefix}put {show(value.name)}"
    name = names.value(value.name, prefix)
    kind = value.type.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return ValueSpec(name, value.name, None, None, 0, kind.removesuffix("_type"))
    if kind != "tensor_type":
        # An output's type may be left to inference; an input's may not.
        if kind is None and prefix == "out":
            return ValueSpec(name, value.name, None, None)
        raise Unsupported(f"values of kind {kind or 'unknown'} are not supported", where=where)
    tensor = value.type.tensor_type
    text = tensor.elem_type == TensorProto.STRING
    kind = "string" if text else "tensor"
    dtype = torch_dtype(tensor.elem_type, where) if (tensor.elem_type or prefix == "in") and not text else None
    if not tensor.HasField("shape"):
        return ValueSpec(name, value.name, dtype, None, tensor.elem_type, kind)
    if len(tensor.shape.dim) > MAX_RANK:
        raise InvalidModel(f"rank {len(tensor.shape.dim)} is not possible", where=where)
    dims: list[Dim] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            if dim.dim_value < 0:
                raise InvalidModel(f"dimension {dim.dim_value} is negative", where=where)
            dims.append(int(dim.dim_value))
        else:
            dims.append(names.symbol(dim.dim_param) if dim.dim_param else None)
    return ValueSpec(name, value.name, dtype, tuple(dims), tensor.elem_type, kind)


def _with_shapes(
    specs: list[ValueSpec], shapes: Mapping[str, Sequence[int | str]] | None, names: _Names
) -> list[ValueSpec]:
    given = dict(shapes or {})
    changed = []
    for spec in specs:
        shape = given.pop(spec.original, None) or given.pop(spec.name, None)
        if shape is None:
            changed.append(spec)
            continue
        if spec.shape is not None and len(spec.shape) != len(shape):
            message = f"the shape given for {spec.name} has rank {len(shape)}, the file says {len(spec.shape)}"
            raise InvalidInput(message)
        dims: list[Dim] = []
        for position, dim in enumerate(shape):
            fixed = spec.shape[position] if spec.shape is not None else None
            if isinstance(dim, int) and (dim < 0 or (isinstance(fixed, int) and fixed != dim)):
                raise InvalidInput(f"dimension {dim} given for {spec.name} is negative or against the file's {fixed}")
            dims.append(names.symbol(dim) if isinstance(dim, str) else dim)
        changed.append(replace(spec, shape=tuple(dims)))
    if given:
        raise InvalidInput(f"shapes are given for unknown inputs: {', '.join(show(name) for name in given)}")
    return changed
