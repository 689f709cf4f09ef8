"""dcir as a backend of ONNX's own interface (`onnx.backend.base`): prepare a model once, run it on arrays.

import dcir.onnx_backend as backend
(y,) = backend.prepare("model.onnx").run([x])
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto, NodeProto
from onnx.backend.base import Backend as _Interface
from onnx.backend.base import BackendRep, namedtupledict
from torch import Tensor

from dcir.driver.optimize import optimize
from dcir.errors import InvalidInput, InvalidModel, Unsupported
from dcir.frontends.onnx import OnnxModule, load
from dcir.frontends.onnx.tensors import from_numpy, to_numpy

Source = str | os.PathLike[str] | ModelProto


class PreparedModel(BackendRep):
    """A model that is ready to run.

    Attributes:
        module: the model as a module of torch; `module.dcir.explain()` says what was compiled, unless it runs eagerly.
    """

    def __init__(self, module: OnnxModule) -> None:
        self.module = module

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """The outputs, in order and by the file's names.

        Args:
            inputs: arrays in the order of the graph's inputs, or by name, or the one array of a model with one input.
                Sequences are lists of arrays, an absent optional is None, strings are arrays of objects.
            kwargs: none; they are refused.

        Raises:
            InvalidInput: the inputs do not fit the model.
        """
        if kwargs:
            raise InvalidInput("run takes no options", where=", ".join(kwargs), hint="give them to prepare")
        given = [_from(value) for value in self._ordered(inputs)]
        with torch.no_grad():
            results = self.module(*given)
        specs = self.module.output_specs
        results = (results,) if len(specs) == 1 else results
        arrays = [_to(value, spec.onnx_type) for value, spec in zip(results, specs, strict=True)]
        return namedtupledict("Outputs", [spec.original for spec in specs])(*arrays)

    def _ordered(self, inputs: Any) -> Sequence[Any]:
        specs = self.module.input_specs
        if isinstance(inputs, Mapping):
            names = [name for spec in specs for name in (spec.original, spec.name) if name in inputs][: len(specs)]
            unknown = [str(name) for name in inputs if name not in names]
            if len(names) != len(specs) or unknown:
                wanted = ", ".join(spec.original for spec in specs)
                raise InvalidInput(f"the inputs are not those of the model: {', '.join(map(str, inputs))}", hint=wanted)
            return [inputs[name] for name in names]
        values = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        if len(values) != len(specs):
            raise InvalidInput(f"{len(values)} inputs are given, the model takes {len(specs)}")
        return values


class Backend(_Interface):
    """The interface by which ONNX's tools and tests drive a runtime."""

    @classmethod
    def is_compatible(cls, model: Source, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether `prepare` takes the model."""
        try:
            load(model)
        except Unsupported:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: Source, device: str = "CPU", *, eager: bool = False, **kwargs: Any) -> PreparedModel:
        """Read a model.

        Args:
            model: path of a file, or the model as an object (then without external data).
            device: "CPU".
            eager: run operator by operator through torch, and compile nothing.
            kwargs: options as in ``dcir.optimize``.

        Raises:
            InvalidModel: the model is broken or hostile.
            Unsupported: operators, types or a device that have no way here.
            OptionError: an unknown option.
        """
        if not cls.supports_device(device):
            raise Unsupported(f"there is no code for device {device!r}", hint='device="CPU"')
        if eager and kwargs:
            raise InvalidInput("options are for what is compiled", where=", ".join(kwargs), hint="eager=False")
        module = load(model)
        return PreparedModel(module if eager else optimize(module, **kwargs))

    @classmethod
    def run_model(cls, model: Source, inputs: Any, device: str = "CPU", **kwargs: Any) -> Any:
        """`prepare` and `run` in one."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> Any:
        """The outputs of one operator.

        Args:
            node: the operator.
            inputs: its operands, in order; those it leaves out are not given.
            device: "CPU".
            outputs_info: not needed; types and shapes follow from the inputs.
            kwargs: `opset_version` of the node's domain, or else it is the newest one; and what `prepare` takes.
        """
        model = _model_of(node, inputs, kwargs.pop("opset_version", None))
        return cls.run_model(model, inputs, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is code for a device ("CPU", "CPU:0", …)."""
        return device.partition(":")[0] == "CPU"


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device


def _model_of(node: NodeProto, inputs: Any, opset_version: int | None) -> ModelProto:
    """A model of one node, whose graph has the operands' types and shapes."""
    names = [name for name in dict.fromkeys(node.input) if name]
    values = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    if len(values) != len(names):
        raise InvalidInput(f"{len(values)} inputs are given, the node takes {len(names)}", where=node.op_type)
    made = [onnx.helper.make_value_info(name, _type_of(value)) for name, value in zip(names, values, strict=True)]
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    try:
        newest = onnx.defs.get_schema(node.op_type, domain=node.domain).since_version
    except onnx.defs.SchemaError as error:
        raise InvalidModel(f"there is no operator {node.op_type!r}", where=node.name or None) from error
    version = opset_version or (newest if node.domain not in ("", "ai.onnx") else onnx.defs.onnx_opset_version())
    graph = onnx.helper.make_graph([node], "node", made, results)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(node.domain, version)])


def _type_of(value: Any) -> onnx.TypeProto:
    if isinstance(value, list):
        if not value:
            raise InvalidInput("an empty sequence says nothing about the type of its elements", hint="use run_model")
        return onnx.helper.make_sequence_type_proto(_type_of(value[0]))
    array = np.asarray(value)
    text = array.dtype.kind in "OUS"
    code = onnx.TensorProto.STRING if text else onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_type_proto(code, array.shape)


def _from(value: Any) -> Any:
    if value is None or isinstance(value, Tensor):
        return value
    if isinstance(value, list):
        return [_from(part) for part in value]
    return from_numpy(np.asarray(value))


def _to(value: Any, code: int) -> Any:
    if isinstance(value, list):
        return [_to(part, code) for part in value]
    return to_numpy(value, code) if isinstance(value, Tensor) else value
