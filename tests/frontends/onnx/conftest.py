"""Shared pieces: comparison of results with ONNX's own, and small models from text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from dcir.errors import Unsupported
from dcir.frontends.onnx import OnnxModule, load
from dcir.frontends.onnx.tensors import read_tensor, to_numpy


def _tensor(value: Any) -> Any:
    if value is None or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, list):
        return [_tensor(v) for v in value]
    if isinstance(value, onnx.TensorProto):
        return read_tensor(value, None)
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        raise Unsupported("string tensors are not supported")
    return read_tensor(onnx.numpy_helper.from_array(array), None)


def _compare(expected: Any, result: Any, code: int, rtol: float, atol: float) -> None:
    if isinstance(expected, list):
        assert isinstance(result, list)
        for e, r in zip(expected, result, strict=True):
            _compare(e, r, code, rtol, atol)
        return
    if expected is None:
        assert result is None
        return
    if isinstance(expected, onnx.TensorProto):
        expected = onnx.numpy_helper.to_array(expected)
    want = np.asarray(expected)
    have = to_numpy(result, code or onnx.helper.np_dtype_to_tensor_dtype(want.dtype))
    assert have.shape == want.shape
    assert have.dtype == want.dtype
    if want.dtype.kind not in "biufc":
        rtol = max(rtol, 2**-6) if want.dtype.name == "bfloat16" else rtol
        have, want = have.astype(np.float32), want.astype(np.float32)
    np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)


@pytest.fixture
def run_case() -> Callable[..., None]:
    """Loads a model, runs it on data sets, and compares with what ONNX stores."""

    def run(model: Any, data_sets: Any, rtol: float, atol: float) -> None:
        module = load(model)
        for inputs, expected in data_sets:
            with torch.no_grad():
                results = module(*[_tensor(v) for v in inputs])
            results = results if isinstance(results, tuple) else (results,)
            assert len(results) == len(expected)
            for want, have, spec in zip(expected, results, module.output_specs, strict=True):
                _compare(want, have, spec.onnx_type, rtol, atol)

    return run


@pytest.fixture
def parse() -> Callable[..., onnx.ModelProto]:
    """A model from ONNX's text form: the graph's text, an opset version, more initializers by name."""

    def make(graph: str, opset: int = 20, **initializers: Any) -> onnx.ModelProto:
        model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {graph}')
        for name, value in initializers.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return model

    return make


@pytest.fixture
def module_of(parse: Callable[..., onnx.ModelProto]) -> Callable[..., OnnxModule]:
    def make(graph: str, opset: int = 20, **initializers: Any) -> OnnxModule:
        return load(parse(graph, opset, **initializers))

    return make
