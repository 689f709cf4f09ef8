"""The nine networks bundled with the onnx package, against the outputs stored beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from dcir.frontends.onnx import load

FOLDER = Path(onnx.__file__).parent / "backend/test/data/light"
MODELS = sorted(path.stem for path in FOLDER.glob("light_*.onnx"))


@pytest.fixture(autouse=True)
def _clean_dynamo() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def _ramp(shape: list[int]) -> torch.Tensor:
    count = int(np.prod(shape))
    return torch.from_numpy((np.arange(count).reshape(shape) / count).astype(np.float32))


def test_all_nine_are_there() -> None:
    assert len(MODELS) == 9


@pytest.mark.parametrize("name", MODELS)
def test_light(name: str) -> None:
    module = load(FOLDER / f"{name}.onnx")
    shape = [d if isinstance(d, int) else 1 for d in module.input_specs[0].shape or ()]
    with torch.no_grad():
        result = module(_ramp(shape)).numpy()
    stored = onnx.TensorProto()
    stored.ParseFromString((FOLDER / f"{name}_output_0.pb").read_bytes())
    np.testing.assert_allclose(result, onnx.numpy_helper.to_array(stored), rtol=1e-3, atol=1e-7)


def test_constant_fills_are_folded() -> None:
    module = load(FOLDER / "light_squeezenet.onnx")
    assert not [step for step in module.program.steps if step.node.op == "ConstantOfShape"]


def test_one_graph_without_breaks() -> None:
    module = load(FOLDER / "light_squeezenet.onnx")
    x = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        expected = module(x)
        result = torch.compile(module, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(result, expected)
