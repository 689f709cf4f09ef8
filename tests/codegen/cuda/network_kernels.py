"""The CUDA kernels of whole networks at their full sizes, planned as a call on a GPU has them; nothing of these networks runs.

python -m tests.codegen.cuda.network_kernels [--arch sm_90a] [name ...]     a table: kernels, seconds to compile them, registers
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcir.codegen.cuda.backend import CudaEmitters, LaunchPlan
from dcir.codegen.cuda.launch import Launch
from dcir.codegen.cuda.nvrtc import find_nvrtc
from dcir.cost.cuda import SETTING, TWIN
from dcir.driver.compile import Compilation
from dcir.driver.session import Session
from dcir.driver.targets.of_device import reading_device
from dcir.frontends.torch.capture import dynamo_backend
from dcir.options import Options
from tests.codegen.cuda.resources import most_registers, resources_of
from tests.harness import example_models


class Planned(Exception):
    """All of a network is planned; what follows would run it."""


class Inverted(nn.Module):
    """MobileNetV2's block: wide by 1 x 1, depthwise 3 x 3, narrow by 1 x 1, added where the shape allows it."""

    def __init__(self, ins: int, outs: int, stride: int, wider: int) -> None:
        super().__init__()
        wide = ins * wider
        self.adds = stride == 1 and ins == outs
        parts = [(ins, wide, 1, 1, 1), (wide, wide, 3, stride, wide), (wide, outs, 1, 1, 1)][wider == 1 :]
        layers: list[nn.Module] = []
        for number, (a, b, kernel, step, groups) in enumerate(parts):
            layers += [nn.Conv2d(a, b, kernel, step, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(b)]
            layers += [nn.ReLU6()] * (number + 1 < len(parts))
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def mobilenet() -> nn.Module:
    """MobileNetV2 (Sandler et al., 2018, table 2), without dropout."""
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    ins = 32
    for wider, outs, count, stride in rows:
        for number in range(count):
            layers.append(Inverted(ins, outs, stride if number == 0 else 1, wider))
            ins = outs
    layers += [nn.Conv2d(ins, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1280, 1000))


class DecoderLayer(nn.Module):
    """Attention to what came before with rotated positions, and a gated network, each behind a norm by mean squares."""

    def __init__(self, size: int, heads: int, wide: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(size), nn.RMSNorm(size)
        self.three, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size, bias=False)
        self.gate, self.up = nn.Linear(size, wide, bias=False), nn.Linear(size, wide, bias=False)
        self.down = nn.Linear(wide, size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.three(self.first(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = (a * cos + torch.cat((-a.chunk(2, -1)[1], a.chunk(2, -1)[0]), -1) * sin for a in (q, k))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Token numbers [batch, length] to the loss of the next token, or its scores in evaluation."""

    def __init__(self, size: int = 1024, layers: int = 4, heads: int = 16, tokens: int = 32000) -> None:
        super().__init__()
        self.tokens, self.norm, self.head = nn.Embedding(tokens, size), nn.RMSNorm(size), nn.Linear(size, tokens)
        self.layers = nn.ModuleList(DecoderLayer(size, heads, 2816) for _ in range(layers))
        self.width = size // heads

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        places = torch.arange(tokens.shape[1], dtype=torch.float32)
        turns = places[:, None] * 10000.0 ** (-torch.arange(0, self.width, 2) / self.width)
        turns = torch.cat((turns, turns), 1)
        for layer in self.layers:
            x = layer(x, turns.cos().to(x.dtype), turns.sin().to(x.dtype))
        scores = self.head(self.norm(x))
        if not self.training:
            return scores[:, -1]
        return F.cross_entropy(scores[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def _images(batch: int, size: int = 224) -> Tensor:
    return torch.empty(batch, 3, size, size)


def _words(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, length, dtype=torch.int64)


_Network = tuple[Callable[[], nn.Module], Callable[[], Tensor]]


def networks() -> dict[str, _Network]:
    """Makers of networks, and of inputs at sizes that fill a GPU."""
    models = example_models()
    return {
        "resnet50": (models.ResNet50, functools.partial(_images, 64)),
        "efficientnet": (models.EfficientNet, functools.partial(_images, 64)),
        "mobilenet": (mobilenet, functools.partial(_images, 64)),
        "bert": (models.Bert, functools.partial(_words, 32, 128)),
        "decoder": (Decoder, functools.partial(_words, 8, 1024)),
    }


CASES = [
    (name, train, half) for name in ("resnet50", "efficientnet", "mobilenet", "bert", "decoder")
    for train in (False, True) for half in (False, True)
]  # fmt: skip
"""Network, training or inference, bfloat16 or float32."""


def kernels_of(name: str, *, train: bool, half: bool) -> list[Launch]:
    """Every distinct kernel of a network on a GPU."""
    make, data = networks()[name]
    model, x = make().train(train), data()
    if half:
        model, x = model.bfloat16(), x.bfloat16() if x.is_floating_point() else x
    torch._dynamo.reset()
    with _planning() as (backend, found), torch.set_grad_enabled(train):
        try:
            torch.compile(model, backend=backend, dynamic=False)(x)
        except Planned:
            return list({launch.kernel: launch for launch in found}.values())
        finally:
            torch._dynamo.reset()
    raise AssertionError(f"{name} ran")


@contextmanager
def _planning() -> Iterator[tuple[Any, list[Launch]]]:
    """A backend that plans graphs and runs none, and the launches that it has planned, for an H100."""
    found: list[Launch] = []
    plan_one = CudaEmitters.plan

    class Planning(Compilation):
        def _in_torch(self, gm: Any, done: Any) -> Any:
            super()._in_torch(gm, done)

            def run(args: Sequence[Any]) -> Any:
                raise Planned

            return run

    def planned(self: CudaEmitters, *given: Any) -> Any:
        plan = plan_one(self, *given)
        assert isinstance(plan, LaunchPlan)
        found.extend(plan.launches)
        return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaEmitters, "plan", planned)
        patch.setenv(SETTING, TWIN)
        session = Session(Options.make(target="cuda"), without_code=True)
        yield (
            reading_device(dynamo_backend(lambda gm, context: Planning(session, context).compiled(gm)), session),
            found,
        )


def main() -> None:
    """Print what the kernels of networks take."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=sorted({name for name, _, _ in CASES}))
    parser.add_argument("--arch", default="sm_90a")
    given = parser.parse_args()
    nvrtc = find_nvrtc()
    for name, train, half in CASES:
        if name not in given.names:
            continue
        launches = kernels_of(name, train=train, half=half)
        rows = [(resources_of(x, nvrtc, given.arch), x) for x in launches]
        title = f"{name} {'training' if train else 'inference'} {'bf16' if half else 'f32'}"
        seconds, registers = sum(r.seconds for r, _ in rows), [r.registers for r, _ in rows]
        print(
            f"{title:<32} {len(rows):>4} kernels {seconds:6.1f} s, longest {max(r.seconds for r, _ in rows):.2f};"
            f" registers {sorted(registers)[len(rows) // 2]} to {max(registers)}", flush=True,
        )  # fmt: skip
        for r, x in rows:
            if r.spilled or r.stack or r.registers > most_registers(x):
                print(f"    {x.kernel} block {x.block[0]} grid {x.grid}: {r}", flush=True)


if __name__ == "__main__":
    main()
