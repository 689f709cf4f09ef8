"""ONNX files end to end: the bundled light networks and exported ones against stored and eager results, and training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import dcir
from dcir.frontends.onnx import load as load_eager
from tests.harness import example_models

pytestmark = pytest.mark.in_turn(6)

models = example_models()

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@pytest.mark.parametrize("path", sorted(LIGHT.glob("light_*.onnx")), ids=lambda p: p.stem)
def test_light(path: Path) -> None:
    """``dcir.load`` of a bundled network gives the output stored beside it, without a call into torch."""
    net = dcir.load(path)
    spec = net.input_specs[0]
    shape = [d if isinstance(d, int) else 1 for d in spec.shape or ()]
    count = int(np.prod(shape))
    x = torch.from_numpy((np.arange(count).reshape(shape) / count).astype(np.float32))
    with torch.no_grad():
        result = net(x)
    stored = onnx.TensorProto()
    stored.ParseFromString((LIGHT / f"{path.stem}_output_0.pb").read_bytes())
    np.testing.assert_allclose(result.numpy(), onnx.numpy_helper.to_array(stored), rtol=1e-3, atol=1e-7)
    assert net.dcir.explain().fallbacks == []


def exported(module: nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path) -> Path:
    """The module as an ONNX file."""
    path = folder / "model.onnx"
    torch.onnx.export(module, inputs, dynamo=True, verbose=False).save(str(path), external_data=True)
    return path


@pytest.mark.parametrize("name", ["resnet", "bert"])
def test_exported(name: str, tmp_path: Path) -> None:
    """An exported network gives eager's outputs."""
    torch.manual_seed(0)
    if name == "resnet":
        module: nn.Module = models.ResNet50(classes=10).eval()
        inputs: tuple[torch.Tensor, ...] = (torch.randn(1, 3, 64, 64),)
    else:
        module = models.Bert(size=64, layers=2, heads=4, tokens=100).eval()
        inputs = (torch.randint(0, 100, (2, 16)),)
    net = dcir.load(exported(module, inputs, tmp_path))
    with torch.no_grad():
        torch.testing.assert_close(net(*inputs), module(*inputs), rtol=1e-4, atol=1e-5)
    assert net.dcir.explain().fallbacks == []


def test_fine_tuning_follows_eager(tmp_path: Path) -> None:
    """Twenty steps on a loaded network: the losses of the same file trained eagerly."""
    torch.manual_seed(0)
    module = models.SmallConvNet().eval()
    x, y = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    path = exported(module, (x,), tmp_path)

    def losses(net: nn.Module) -> list[float]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        history = []
        for _ in range(20):
            loss = nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        return history

    ours, eager = losses(dcir.load(path)), losses(load_eager(path))
    np.testing.assert_allclose(ours, eager, rtol=2e-3)
    assert ours[-1] < ours[0]
