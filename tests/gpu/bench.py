"""Times on the device: memory-bound functions as a part of the bandwidth, then training steps, beside eager and inductor."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gpu.cases import Case, compiled, device_milliseconds, milliseconds, work
from tests.harness import example_models

_ROWS, _WIDTH = 16384, 4096


def _functions() -> dict[str, tuple[Callable[..., Any], Callable[[], list[Tensor]], int]]:
    """Functions with their inputs, and the bytes that they have to read and write."""
    n = _ROWS * _WIDTH

    def wide(count: int = 1, dtype: torch.dtype = torch.float32) -> Callable[[], list[Tensor]]:
        return lambda: [torch.randn(_ROWS, _WIDTH, device="cuda", dtype=dtype) for _ in range(count)]

    def normed(dtype: torch.dtype) -> Callable[[], list[Tensor]]:
        return lambda: [
            torch.randn(_ROWS, _WIDTH, device="cuda", dtype=dtype), *torch.randn(2, _WIDTH, device="cuda", dtype=dtype)
        ]  # fmt: skip

    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, (_WIDTH,), w, b)

    def images() -> list[Tensor]:
        return [torch.randn(64, 256, 56, 56, device="cuda"), *torch.randn(2, 256, device="cuda")]

    def batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x, None, None, w, b, training=True))

    def of(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], list[Tensor]]:
        return lambda: [torch.randn(*shape, device="cuda", dtype=dtype)]

    image = 64 * 256 * 56 * 56
    return {
        "add gelu": (lambda a, b: F.gelu(a + b), wide(2), 12 * n),
        "add gelu bf16": (lambda a, b: F.gelu(a + b), wide(2, torch.bfloat16), 6 * n),
        "softmax": (lambda x: x.softmax(-1), wide(), 8 * n),
        "softmax bf16": (lambda x: x.softmax(-1), wide(1, torch.bfloat16), 4 * n),
        "layer norm": (norm, normed(torch.float32), 8 * n),
        "layer norm bf16": (norm, normed(torch.bfloat16), 4 * n),
        "row sums": (lambda x: x.sum(-1), wide(), 4 * n),
        "column sums": (lambda x: x.sum(0), wide(), 4 * n),
        "row sums bf16": (lambda x: x.sum(-1), wide(1, torch.bfloat16), 2 * n),
        "column sums bf16": (lambda x: x.sum(0), wide(1, torch.bfloat16), 2 * n),
        # Short rows, several at once a thread; rows of 49, which no vector divides; few long rows, and few columns, in parts.
        "short row sums": (lambda x: x.sum(-1), of(1 << 20, 64), 4 * (64 << 20)),
        "short row softmax": (lambda x: x.softmax(-1), of(1 << 20, 64), 8 * (64 << 20)),
        "pooled 7 x 7": (lambda x: x.mean(-1), of(1 << 20, 49), 4 * (49 << 20)),
        "long row sums": (lambda x: x.sum(-1), of(300, 1 << 18), 4 * (300 << 18)),
        "few column sums": (lambda x: x.sum(0), of(1 << 20, 96), 4 * (96 << 20)),
        "channel sums": (lambda x: x.sum((0, 2, 3)), of(64, 512, 28, 28), 4 * 64 * 512 * 784),
        "all sums": (lambda x: x.square().sum(), wide(), 4 * n),
        "transposed": (lambda x: x.t().contiguous(), wide(), 8 * n),
        "batch norm relu": (batch_norm, images, 12 * image),
        "max pool": (lambda x, w, b: F.max_pool2d(x, 3, 2, 1), images, 5 * image),
    }


def function(name: str) -> dict[str, Any]:
    """Eager and dcir on one function."""
    fn, make, nbytes = _functions()[name]
    inputs = make()
    with torch.no_grad():
        want = fn(*inputs)
        fast, _ = compiled(fn)
        torch.testing.assert_close(fast(*inputs), want, rtol=2e-2, atol=2e-2)
        figures: dict[str, Any] = {"dcir GB/s": nbytes / device_milliseconds(lambda: fast(*inputs)) * 1e-6}
        figures["eager"] = nbytes / device_milliseconds(lambda: fn(*inputs)) * 1e-6
        # With what the host takes, where it is the longer.
        figures["dcir call us"] = milliseconds(lambda: fast(*inputs)) * 1e3
        figures["eager call us"] = milliseconds(lambda: fn(*inputs)) * 1e3
    torch._dynamo.reset()
    return figures


def function_by_inductor(name: str) -> dict[str, Any]:
    """The same through inductor."""
    fn, make, nbytes = _functions()[name]
    inputs = make()
    with torch.no_grad():
        other = torch.compile(fn, dynamic=False)
        figures = {"inductor GB/s": nbytes / device_milliseconds(lambda: other(*inputs)) * 1e-6}
        figures["inductor call us"] = milliseconds(lambda: other(*inputs)) * 1e3
    torch._dynamo.reset()
    return figures


def _step(call: Callable[..., Tensor], model: nn.Module, x: Tensor) -> Callable[[], None]:
    def run() -> None:
        model.zero_grad(set_to_none=True)
        call(x).float().square().mean().backward()

    return run


def network(make: Callable[[], nn.Module], data: Callable[[], Tensor], *, half: bool) -> dict[str, Any]:
    """Forward and backward of a network: eager and dcir. Ours run last, since a fault of theirs would end all."""
    torch.manual_seed(0)
    model, x = make().cuda().train(), data()
    if half:
        model, x = model.bfloat16(), x.bfloat16() if x.is_floating_point() else x
    figures: dict[str, Any] = {"eager ms": milliseconds(_step(model, model, x), repeats=9)}
    twin = copy.deepcopy(model)
    fast, records = compiled(twin)
    torch.cuda.reset_peak_memory_stats()
    figures["dcir ms"] = milliseconds(_step(fast, twin, x), repeats=9)
    figures["ratio"] = figures["eager ms"] / figures["dcir ms"]
    graphs = records()
    figures["calls"] = sum(g.calls for g in graphs)
    figures["compile s"] = sum(sum(g.seconds.values()) for g in graphs)
    figures["peak GB"] = torch.cuda.max_memory_allocated() * 1e-9
    torch._dynamo.reset()
    return figures


def inductor(make: Callable[[], nn.Module], data: Callable[[], Tensor], *, half: bool) -> dict[str, Any]:
    """The same through inductor, which takes long to compile."""
    torch.manual_seed(0)
    model, x = make().cuda().train(), data()
    if half:
        model, x = model.bfloat16(), x.bfloat16() if x.is_floating_point() else x
    figures = {"inductor ms": milliseconds(_step(torch.compile(model, dynamic=False), model, x), repeats=9)}
    torch._dynamo.reset()
    return figures


class Perceptron(nn.Module):
    """Layers with norms, as wide as memory bandwidth matters."""

    def __init__(self, size: int = 2048, layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.gelu(layer(norm(x)))
        return x


def cases() -> Iterable[Case]:
    """Functions, then networks by size; inductor's last, which take long to compile."""
    for name in _functions():
        yield name, functools.partial(function, name)
    models = example_models()
    tokens = functools.partial(torch.randint, 0, 30522, (32, 128), device="cuda")
    images = functools.partial(torch.randn, 64, 3, 224, 224, device="cuda")
    flat = functools.partial(torch.randn, 8192, 2048, device="cuda")
    rows: list[tuple[str, Any, Any]] = [
        ("perceptron", Perceptron, flat), ("bert", models.Bert, tokens), ("resnet50", models.ResNet50, images),
    ]  # fmt: skip
    for name, make, data in rows:
        for half in (False, True):
            yield f"{name} {'bf16' if half else 'f32'}", functools.partial(network, make, data, half=half)
    for name in _functions():
        yield f"{name} inductor", functools.partial(function_by_inductor, name)
    for name, make, data in rows:
        yield f"{name} bf16 inductor", functools.partial(inductor, make, data, half=True)


if __name__ == "__main__":
    work(cases)
