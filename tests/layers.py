"""Single layers next to eager mode, to see where compiled code loses: ``python -m tests.layers bilinear sort --threads 1``.

Both take turns; the least time and the median of ratios are printed. With one thread at real-time priority (``chrt -f 5``) a busy machine
disturbs little of it. Whole networks are what ``dcir bench`` is for: a layer alone pays the call, and its results leave the cache.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dcir

Case = tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]


class Fn(nn.Module):
    """A function of a tensor, and perhaps of layers."""

    def __init__(self, fn: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.fn = fn
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Any:
        """Whatever the function gives."""
        return self.fn(self, x)


def _fn(fn: Callable[[Tensor], Any]) -> Callable[[], nn.Module]:
    return lambda: Fn(lambda _, x: fn(x))


def _resized(**how: Any) -> Callable[[], nn.Module]:
    return _fn(lambda x: F.interpolate(x, **how))


def _sampled(x: Tensor) -> Tensor:
    grid = F.affine_grid(0.9 * torch.eye(2, 3)[None].expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def _cases() -> dict[str, Case]:
    f32 = torch.float32
    found: dict[str, Case] = {
        "bilinear": (_resized(scale_factor=2, mode="bilinear"), (2, 32, 64, 64), f32),
        "bicubic": (_resized(scale_factor=2, mode="bicubic"), (2, 32, 64, 64), f32),
        "nearest": (_resized(scale_factor=2), (2, 32, 64, 64), f32),
        "grid-sample": (_fn(_sampled), (2, 32, 64, 64), f32),
        "adaptive-pool": (lambda: nn.AdaptiveAvgPool2d(7), (8, 256, 15, 13), f32),
        "pool": (lambda: nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 1, 1)), (4, 64, 56, 56), f32),
        "group-norm": (lambda: nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU()), (4, 64, 56, 56), f32),
        "rms-norm": (lambda: nn.RMSNorm(768), (1024, 768), f32),
        "depthwise-7": (lambda: nn.Conv2d(96, 96, 7, padding=3, groups=96), (2, 96, 56, 56), f32),
        "grouped": (lambda: nn.Conv2d(128, 128, 3, padding=1, groups=32), (4, 128, 28, 28), f32),
        "dilated": (lambda: nn.Conv2d(32, 32, 3, padding=4, dilation=4), (2, 32, 64, 64), f32),
        "transposed": (lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1), (4, 64, 16, 16), f32),
        "conv3d": (lambda: nn.Conv3d(8, 16, 3, padding=1), (2, 8, 12, 24, 24), f32),
        "conv1d": (lambda: nn.Conv1d(1, 32, 80, stride=4), (4, 1, 16000), f32),
        "cumsum": (_fn(lambda x: x.cumsum(-1)), (256, 2048), f32),
        "sort": (_fn(lambda x: x.sort(-1).values), (256, 1024), f32),
        "topk": (_fn(lambda x: x.topk(8, -1).values), (1024, 1000), f32),
        "fft": (_fn(lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2)), (64, 4096), f32),
        "complex": (
            _fn(lambda x: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(x))),
            (512, 512, 2),
            f32,
        ),
        "pow": (_fn(lambda x: x.abs().pow(2.5) + x.abs().pow(0.3)), (512, 1024), f32),
        "functions": (_fn(lambda x: x.erf() + x.tanh() + x.sigmoid().log() + x.sin()), (512, 1024), f32),
        "variance": (_fn(lambda x: x.var(0)), (8192, 128), f32),
        "transpose": (_fn(lambda x: x.t().contiguous() * 1), (2048, 2048), f32),
        "permute": (_fn(lambda x: x.permute(0, 3, 1, 2).contiguous()), (8, 56, 56, 96), f32),
        "index-add": (
            _fn(lambda x: torch.zeros(1000, 64).index_add(0, torch.arange(20000) % 1000, x)),
            (20000, 64),
            f32,
        ),
        "solve": (_fn(lambda x: torch.linalg.solve(x + 64 * torch.eye(64), x)), (16, 64, 64), f32),
        "small-mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), (1, 8), f32),
        "mlp": (lambda: nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)), (256, 512), f32),
        "lstm": (lambda: nn.LSTM(128, 128, batch_first=True), (16, 32, 128), f32),
        "encoder-layer": (lambda: nn.TransformerEncoderLayer(256, 8, 512, batch_first=True), (4, 128, 256), f32),
    }
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        found[f"attention-{name}"] = (
            _fn(lambda x: F.scaled_dot_product_attention(x, x, x)), (2, 8, 256, 64), dtype,
        )  # fmt: skip
        found[f"norm-{name}"] = (lambda: nn.Sequential(nn.LayerNorm(512), nn.Softmax(-1)), (1024, 512), dtype)
        found[f"convolutions-{name}"] = (
            lambda: nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()), (4, 32, 28, 28), dtype,
        )  # fmt: skip
    return found | _images()


def _images() -> dict[str, Case]:
    """Layers between two 1x1 convolutions, in both layouts, as they stand in networks: alone, their layout is the caller's."""
    layers: dict[str, Callable[[], nn.Module]] = {
        "max-5": lambda: nn.MaxPool2d(5, 1, 2),
        "max-13": lambda: nn.MaxPool2d(13, 1, 6),
        "mean-3": lambda: nn.AvgPool2d(3, 1, 1),
        "adaptive-7": lambda: nn.AdaptiveAvgPool2d(7),
        "group-norm": lambda: nn.GroupNorm(8, 64),
        "bilinear": _resized(scale_factor=2, mode="bilinear"),
        "bilinear-1.7": _resized(scale_factor=1.7, mode="bilinear"),
        "nearest": _resized(scale_factor=2),
        "replicated": lambda: nn.ReplicationPad2d(3),
        "mirrored": lambda: nn.ReflectionPad2d(3),
        "scaled": lambda: nn.Conv2d(64, 64, 1, groups=64),
        "depthwise-7": lambda: nn.Conv2d(64, 64, 7, padding=3, groups=64),
        "depthwise-13": lambda: nn.Conv2d(64, 64, 13, padding=6, groups=64),
        "depthwise-31": lambda: nn.Conv2d(64, 64, 31, padding=15, groups=64),
        "multiplied": lambda: nn.Sequential(nn.Conv2d(64, 128, 3, padding=1, groups=64), nn.Conv2d(128, 64, 3, padding=1, groups=64)),
        "strided-groups": lambda: nn.Conv2d(64, 64, 3, 2, 1, groups=16),
        "transposed": lambda: nn.ConvTranspose2d(64, 64, 4, 2, 1),
        "dilated": lambda: nn.Conv2d(64, 64, 3, padding=4, dilation=4),
    }  # fmt: skip

    def between(make: Callable[[], nn.Module], form: torch.memory_format) -> Callable[[], nn.Module]:
        def made() -> nn.Module:
            net = nn.Sequential(nn.Conv2d(64, 64, 1), make(), nn.Conv2d(64, 32, 1))
            return net.to(memory_format=form)  # type: ignore[call-overload, no-any-return]  # its stub has no formats

        return made

    forms = {"last": torch.channels_last, "planes": torch.contiguous_format}
    return {
        f"{form}-{name}": (between(make, forms[form]), (2, 64, 40, 40), torch.float32)
        for name, make in layers.items()
        for form in forms
    }


def timed(case: Case, *, train: bool, rounds: int = 9) -> tuple[float, float, float]:
    """Least milliseconds compiled and eager, and the median of eager over compiled."""
    make, shape, dtype = case
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = make().to(dtype).train(train)
    fast = dcir.optimize(copy.deepcopy(eager))
    x = torch.randn(shape).to(dtype).requires_grad_(train)

    def step(module: Callable[..., Any]) -> None:
        with torch.set_grad_enabled(train):
            out = module(x)
        if train:
            x.grad = None
            (out[0] if isinstance(out, tuple) else out).float().sum().backward()

    for _ in range(2):
        step(fast)
        step(eager)
    began = time.perf_counter()
    step(eager)
    calls = max(1, int(0.02 / (time.perf_counter() - began)))
    took: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for module, times in zip((fast, eager), took, strict=True):
            began = time.perf_counter()
            for _ in range(calls):
                step(module)
            times.append((time.perf_counter() - began) / calls * 1e3)
    return min(took[0]), min(took[1]), statistics.median(b / a for a, b in zip(*took, strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the layers that are named, or all."""
    cases = _cases()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *cases], default=[])
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    for name in given.names or cases:
        for mode in ("infer", "train"):
            compiled, eager, ratio = timed(cases[name], train=mode == "train")
            print(
                f"{name:22s} {mode:6s} dcir {compiled:9.3f} ms  eager {eager:9.3f} ms  eager / dcir {ratio:5.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
