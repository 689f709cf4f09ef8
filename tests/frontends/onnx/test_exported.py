"""Networks exported by torch: numbers, one graph in every tracer, gradients into every weight."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from dcir.frontends.onnx import load


@pytest.fixture(autouse=True)
def _clean_dynamo() -> Iterator[None]:
    yield
    torch._dynamo.reset()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.conv1, self.conv2 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.Conv2d(8, 8, 3, 1, 1, groups=4)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = F.relu(x + self.conv2(F.silu(self.conv1(x))))
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, s, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, d))
        out: Tensor = x + self.down(F.gelu(self.up(x)))
        return out


class Decoder(nn.Module):
    """Upsampling, transposed convolution, padding, concatenation, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 4, 4, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.mish(self.conv(F.pad(x, (1, 1, 1, 1))))
        z = torch.cat((self.up(F.avg_pool2d(y, 2)), F.interpolate(F.max_pool2d(y, 2), scale_factor=2)), 1)
        return F.leaky_relu(z, 0.1), F.softmax(y.flatten(2), -1)


CASES: dict[str, tuple[type[nn.Module], tuple[Tensor, ...]]] = {
    "residual": (Residual, (torch.rand(2, 3, 32, 32),)),
    "encoder": (Encoder, (torch.arange(14).reshape(2, 7),)),
    "decoder": (Decoder, (torch.rand(1, 3, 8, 8),)),
}


@pytest.fixture(scope="module", params=sorted(CASES))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.manual_seed(0)
    kind, inputs = CASES[request.param]
    module = kind().eval()
    path = tmp_path_factory.mktemp(request.param) / "model.onnx"
    torch.onnx.export(module, inputs, path, dynamo=True, verbose=False, external_data=True)
    with torch.no_grad():
        expected = module(*inputs)
    return module, path, inputs, expected


def test_numbers(exported: Any) -> None:
    _, path, inputs, expected = exported
    with torch.no_grad():
        torch.testing.assert_close(load(path)(*inputs), expected, rtol=1e-4, atol=1e-5)


def test_tracers(exported: Any) -> None:
    _, path, inputs, expected = exported
    module = load(path).requires_grad_(False)
    compiled = torch.compile(module, backend="eager", fullgraph=True)(*inputs)
    torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(make_fx(module)(*inputs)(*inputs), expected, rtol=1e-4, atol=1e-5)
    program = torch.export.export(module, inputs)
    torch.testing.assert_close(program.module()(*inputs), expected, rtol=1e-4, atol=1e-5)


def test_gradients(exported: Any) -> None:
    original, path, inputs, _ = exported
    module = load(path)
    result = module(*inputs)
    parts = result if isinstance(result, tuple) else (result,)
    sum(p.pow(2).sum() for p in parts).backward()
    named = dict(module.named_parameters())
    assert named
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in named.values())
    reference = original(*inputs)
    reference = reference if isinstance(reference, tuple) else (reference,)
    original.zero_grad()
    sum(p.pow(2).sum() for p in reference).backward()
    theirs = {name: p.grad for name, p in original.named_parameters()}
    same = [k for k, p in named.items() if module.original_names[k] in theirs]
    assert same
    for key in same:
        want = theirs[module.original_names[key]]
        assert want is not None
        torch.testing.assert_close(named[key].grad, want, rtol=1e-3, atol=1e-4)


def test_dynamic_shapes(tmp_path: Path) -> None:
    module = Encoder().eval()
    tokens = torch.arange(14).reshape(2, 7)
    dims = {"tokens": {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=64)}}
    path = tmp_path / "model.onnx"
    torch.onnx.export(module, (tokens,), path, dynamo=True, verbose=False, dynamic_shapes=dims)
    loaded = load(path).requires_grad_(False)
    assert loaded.input_specs[0].shape == ("d0", "d1")
    other = torch.arange(15).reshape(3, 5)
    with torch.no_grad():
        torch.testing.assert_close(loaded(other), module(other), rtol=1e-4, atol=1e-5)
    compiled = torch.compile(loaded, backend="eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(tokens), module(tokens), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(compiled(other), module(other), rtol=1e-4, atol=1e-5)
