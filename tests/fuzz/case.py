"""A random network as data: its inputs and the lines of a forward method, which print as the program that reproduces it."""

from __future__ import annotations

import linecache
import math
import zlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Input:
    """One argument: a window of a storage, which other arguments may share.

    Attributes:
        shape, strides, offset: the window, in elements.
        storage: number of the storage.
        grad: whether its gradient is wanted.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    storage: int = 0
    grad: bool = False

    @property
    def extent(self) -> int:
        """Elements its storage needs."""
        if 0 in self.shape:
            return self.offset + 1
        return self.offset + 1 + sum((d - 1) * s for d, s in zip(self.shape, self.strides, strict=True))


@dataclass(frozen=True)
class Case:
    """A network, its arguments and the way it is called.

    Attributes:
        inputs: named x0, x1, … in the lines.
        layers: constructors of the submodules l0, l1, ….
        lines: statements; those that make a value name it v0, v1, ….
        outputs: names of what is returned.
        train: mode of the module.
        loss: how results become a scalar: "weighted", "sum", or "" where no gradient is asked for.
        seed: of the numbers in inputs, parameters and buffers.
    """

    inputs: tuple[Input, ...]
    layers: tuple[str, ...]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    train: bool = True
    loss: str = "weighted"
    seed: int = 0

    def source(self) -> str:
        """The module as Python text."""
        made = "".join(f"        self.l{i} = {layer}\n" for i, layer in enumerate(self.layers))
        names = ", ".join(f"x{i}" for i in range(len(self.inputs)))
        body = "".join(f"        {line}\n" for line in self.lines)
        return (
            f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n{made}\n"
            f"    def forward(self, {names}):\n{body}        return ({', '.join(self.outputs)},)\n"
        )

    def module(self) -> nn.Module:
        """The network, with numbers in its parameters and buffers that follow from the seed."""
        text = self.source()
        name = f"<case {zlib.crc32(text.encode()):08x}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        space: dict[str, Any] = dict(NAMES)
        exec(compile(text, name, "exec"), space)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            net: nn.Module = space["Net"]()
            for part in net.modules():
                _unsettle(part)
        return net.train(self.train)

    def arguments(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Arguments with their storages shared as the case says."""
        sizes: dict[int, int] = {}
        for i in self.inputs:
            sizes[i.storage] = max(sizes.get(i.storage, 0), i.extent)
        generator = torch.Generator().manual_seed(self.seed)
        storages = {s: torch.randn(n, generator=generator).to(dtype) for s, n in sorted(sizes.items())}
        return [
            torch.as_strided(storages[i.storage], i.shape, i.strides, i.offset).detach().requires_grad_(i.grad)
            for i in self.inputs
        ]


def _unsettle(part: nn.Module) -> None:
    """Numbers instead of the zeros and ones that norms start with."""
    if isinstance(part, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm):
        with torch.no_grad():
            for name, t in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]:
                if t.is_floating_point():
                    t.copy_(torch.rand(t.shape) + 0.5 if name == "running_var" else torch.randn(t.shape) * 0.5 + 0.25)


class Table(nn.Module):
    """Integers below ``high``, fixed by the seed: indices, targets."""

    def __init__(self, high: int, *shape: int) -> None:
        super().__init__()
        self.register_buffer("integers", torch.randint(high, shape))

    def forward(self) -> Any:
        """The integers."""
        return self.integers


class Number(nn.Module):
    """A parameter of any shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.randn(shape) / math.sqrt(max(shape[-1] if shape else 1, 1)))

    def forward(self) -> Tensor:
        """The parameter."""
        return self.value


NAMES: dict[str, Any] = {
    "torch": torch,
    "nn": nn,
    "F": nn.functional,
    "math": math,
    "Table": Table,
    "Number": Number,
}
