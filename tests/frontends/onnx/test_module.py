"""The module's surface: names, state, inputs, errors, training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import dcir
from dcir.errors import InvalidInput, InvalidModel, Unsupported
from dcir.frontends.onnx import OnnxModule, load, operators
from dcir.frontends.onnx.tensors import read_tensor

Make = Callable[..., OnnxModule]
LINEAR = "g (float[N, 3] x) => (float[N, 2] y) { y = Gemm <transB = 1> (x, w, b) }"


def _linear(make: Make) -> OnnxModule:
    return make(LINEAR, w=np.ones((2, 3), np.float32), b=np.zeros(2, np.float32))


def test_state_has_own_names(module_of: Make) -> None:
    module = _linear(module_of)
    keys = list(module.state_dict())
    assert all(key.isidentifier() for key in keys)
    assert sorted(module.original_names[key] for key in keys) == ["b", "w"]
    assert all(isinstance(p, torch.nn.Parameter) for p in module.parameters())


def test_specs(module_of: Make) -> None:
    module = _linear(module_of)
    spec = module.input_specs[0]
    assert (spec.name, spec.dtype, spec.shape) == ("x", torch.float32, ("d0", 3))
    assert module.dim_names == {"d0": "N"}
    assert module.output_names == ("y",)


def test_trains(module_of: Make) -> None:
    module = _linear(module_of)
    step = torch.optim.SGD(module.parameters(), 0.1)
    x, target = torch.rand(8, 3), torch.rand(8, 2)
    losses = []
    for _ in range(20):
        step.zero_grad()
        loss = (module(x) - target).pow(2).mean()
        loss.backward()
        step.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2


def test_copies_and_loads_state(module_of: Make) -> None:
    module, other = _linear(module_of), _linear(module_of)
    with torch.no_grad():
        next(module.parameters()).mul_(3)
    other.load_state_dict(module.state_dict())
    x = torch.rand(2, 3)
    torch.testing.assert_close(copy.deepcopy(module)(x), other(x))


def test_keyword_inputs(module_of: Make) -> None:
    module = module_of("g (float[2] a, float[2] b) => (float[2] y) { y = Sub(a, b) }")
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([1.0, 1.0])
    assert module(a, b=b).tolist() == [2.0, 3.0]
    assert module(b=b, a=a).tolist() == [2.0, 3.0]
    with pytest.raises(InvalidInput, match="named inputs"):
        module(a, c=b)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.rand(2, 4), "shape"),
        (torch.rand(3), "shape"),
        (torch.rand(2, 3).double(), "type"),
        ([[1.0, 2.0, 3.0]], "tensor"),
    ],
)
def test_wrong_inputs(module_of: Make, value: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        _linear(module_of)(value)
    assert "x" in str(caught.value)


def test_wrong_number_of_inputs(module_of: Make) -> None:
    with pytest.raises(InvalidInput, match="2 inputs are given, the model takes 1"):
        _linear(module_of)(torch.rand(1, 3), torch.rand(1, 3))


def test_given_shapes(parse: Callable[..., onnx.ModelProto]) -> None:
    model = parse(LINEAR, w=np.ones((2, 3), np.float32), b=np.zeros(2, np.float32))
    module = load(model, shapes={"x": [4, 3]})
    assert module.input_specs[0].shape == (4, 3)
    with pytest.raises(InvalidInput, match="shape"):
        module(torch.rand(2, 3))
    for bad in ({"x": [4, 5]}, {"x": [4]}, {"z": [4, 3]}):
        with pytest.raises(InvalidInput):
            load(model, shapes=bad)


def test_all_unsupported_operators_are_listed(parse: Callable[..., onnx.ModelProto]) -> None:
    model = parse("g (float[2] x) => (float[2] y) { a = Frobnicate(x) b = Relu(a) y = Twist(b) }")
    with pytest.raises(Unsupported) as caught:
        load(model)
    assert "Frobnicate" in str(caught.value) and "Twist" in str(caught.value)


def test_running_statistics_are_not_trained(module_of: Make) -> None:
    ones = np.ones(3, np.float32)
    module = module_of(
        "g (float[N, 3, 4] x) => (float[N, 3, 4] y) { y = BatchNormalization(x, s, b, m, v) }",
        s=ones, b=ones, m=ones, v=ones,
    )  # fmt: skip
    assert sorted(module.original_names[k] for k, _ in module.named_parameters()) == ["b", "s"]
    assert sorted(module.original_names[k] for k, _ in module.named_buffers()) == ["m", "v"]


def test_scalars_are_constants_in_the_graph(module_of: Make) -> None:
    module = module_of("g (float[N] x) => (float[N] y) { y = Mul(x, half) }", half=np.float32(0.5))
    assert not module.state_dict()
    graph = torch.export.export(module, (torch.rand(3),)).graph
    assert [n.args[1] for n in graph.nodes if n.op == "call_function"] == [0.5]


def test_errors_name_the_node(module_of: Make) -> None:
    module = module_of("g (float[A, B] x, float[C, D] z) => (float[A, D] y) { [product] y = MatMul(x, z) }")
    with pytest.raises(InvalidInput) as caught:
        module(torch.rand(2, 3), torch.rand(4, 5))
    assert "MatMul" in str(caught.value) and "float32[2, 3]" in str(caught.value)


def test_table_is_wide() -> None:
    assert len({(domain, name) for domain, name, _ in operators()}) > 180


def test_functions_are_written_out() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 18, "own" : 1]>
    g (float[2] x) => (float[2] y) { y = own.shifted <by = 3.0> (x) }
    <domain: "own", opset_import: ["" : 18]>
    shifted <by> (a) => (b) { c = Constant <value_float: float = @by> () b = Add(a, c) }
    """
    module = load(onnx.parser.parse_model(text))
    assert module(torch.tensor([1.0, 2.0])).tolist() == [4.0, 5.0]


def test_graph_without_outputs_is_refused(parse: Callable[..., onnx.ModelProto]) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    del model.graph.output[:]
    with pytest.raises(InvalidModel):
        load(model)


def test_everything_is_made_on_the_device_of_the_input(module_of: Make) -> None:
    module = module_of(
        """g (float[N, 3] x) => (float[N, 3] y, int64[2] s) {
        s = Shape(x)
        ones = ConstantOfShape <value = float[1] {1.0}> (s)
        z = Add(x, ones)
        y = Add(z, w)
    }""",
        w=np.ones(3, np.float32),
    ).to("meta")
    y, s = module(torch.empty(2, 3, device="meta"))
    assert (y.device.type, s.device.type, y.shape) == ("meta", "meta", (2, 3))


@pytest.mark.parametrize("way", ["raw_data", "float_data", "external"])
def test_weights_lie_in_memory_of_torchs_own(way: str, tmp_path: Path) -> None:
    """Memory of NumPy's may be written unseen: weights in it would be compared in every call."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]> g (float[4, 128] x) => (float[4, 256] y) {
        y = Gemm <transB = 1> (x, w, b)
    }""")
    rng = np.random.default_rng(0)
    for name, shape in (("w", (256, 128)), ("b", (256,))):
        values = rng.standard_normal(shape, np.float32)
        proto = onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, shape, values.ravel().tolist())
        model.graph.initializer.append(proto if way == "float_data" else onnx.numpy_helper.from_array(values, name))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=way == "external", size_threshold=0)
    module = load(path)
    fast, x = dcir.optimize(module), torch.rand(4, 128)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-4)
    assert "compared in every call" not in str(fast.dcir.explain())
    assert all(t.untyped_storage().resizable() for t in module.state_dict().values())


@pytest.mark.parametrize(
    "code", ["FLOAT16", "BFLOAT16", "BOOL", "UINT4", "INT4", "FLOAT4E2M1", "UINT32", "FLOAT8E5M2", "COMPLEX64"]
)
def test_tensors_of_all_kinds_lie_in_memory_of_torchs_own(code: str) -> None:
    proto = onnx.helper.make_tensor("t", getattr(onnx.TensorProto, code), [3], [1, 0, 1])
    t = read_tensor(proto, None)
    assert t.untyped_storage().resizable()
    assert t.to(torch.complex64).tolist() == [1, 0, 1]
