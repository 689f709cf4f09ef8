"""Architectures for images in plain torch, built like the published ones but narrow: their kinks and small batches are what is hard."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _unit(
    ins: int, outs: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Convolution, batch norm, activation."""
    conv = nn.Conv2d(ins, outs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outs), act())


class _Inverted(nn.Module):
    """MobileNetV2's block: wide, depthwise, narrow, and around it what came in."""

    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        wide = 4 * ins
        depthwise = _unit(wide, wide, 3, stride, wide, nn.ReLU6)
        self.body = nn.Sequential(_unit(ins, wide, 1, act=nn.ReLU6), depthwise, _unit(wide, outs, 1, act=nn.Identity))
        self.around = stride == 1 and ins == outs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.around else self.body(x)


def _group_unit(ins: int, outs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(ins, outs, 3, padding=1, bias=False), nn.GroupNorm(8, outs), nn.ReLU(True))


class PyramidNetwork(nn.Module):
    """A feature pyramid over MobileNetV2: levels are added from the coarsest, each is brought to one size, their sum is the result."""

    def __init__(self, width: int = 8, pyramid: int = 32) -> None:
        super().__init__()
        widths = [width, 2 * width, 3 * width, 4 * width]
        self.stem = _unit(3, width, 3, 2, act=nn.ReLU6)
        pairs = zip([width, *widths], widths, strict=False)
        self.stages = nn.ModuleList(_Inverted(a, b, 2) for a, b in pairs)
        self.stages[0] = nn.Sequential(self.stages[0], _Inverted(width, width, 1))
        self.lateral = nn.ModuleList(nn.Conv2d(w, pyramid, 1) for w in widths)
        self.heads = nn.ModuleList(
            nn.ModuleList(_group_unit(pyramid if k == 0 else 16, 16) for k in range(max(1, level)))
            for level in range(4)
        )
        self.score = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, features = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        total, level = None, None
        for feature, lateral, head in zip(features[::-1], self.lateral[::-1], self.heads[::-1], strict=True):
            here = lateral(feature)
            level = here if level is None else F.interpolate(level, scale_factor=2.0, mode="nearest") + here
            seen = level
            for part in head:
                seen = part(seen)
                if seen.shape[-1] < features[0].shape[-1]:
                    seen = F.interpolate(seen, scale_factor=2.0, mode="bilinear", align_corners=True)
            total = seen if total is None else total + seen
        return F.interpolate(self.score(total), scale_factor=4.0, mode="bilinear", align_corners=False)


class _Basic(nn.Module):
    """ResNet's block of two convolutions."""

    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_unit(ins, outs, 3, stride), _unit(outs, outs, act=nn.Identity))
        self.around = nn.Identity() if (ins, stride) == (outs, 1) else _unit(ins, outs, 1, stride, act=nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.around(x))


class ResidualUNet(nn.Module):
    """A U-Net over ResNet: levels are brought to twice their size and joined with what the encoder had there."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        w = width
        self.stem, self.pool = _unit(3, w, 7, 2), nn.MaxPool2d(3, 2, 1)
        self.stages = nn.ModuleList([
            nn.Sequential(_Basic(w, w, 1), _Basic(w, w, 1)), _Basic(w, 2 * w, 2), _Basic(2 * w, 4 * w, 2)
        ])  # fmt: skip
        joined = [(6 * w, 2 * w), (3 * w, w), (2 * w, w), (w, 8)]
        self.decoder = nn.ModuleList(nn.Sequential(_unit(a, b), _unit(b, b)) for a, b in joined)
        self.head = nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        x = self.pool(features[0])
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        for part, skip in zip(self.decoder, [*features[-2::-1], None], strict=True):
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = part(x if skip is None else torch.cat([x, skip], 1))
        return self.head(x)


class _Dense(nn.Module):
    """DenseNet's layer: norm before convolution, and the result beside what came in."""

    def __init__(self, ins: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(ins), nn.ReLU(), nn.Conv2d(ins, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def dense_network(growth: int = 8, layers: tuple[int, ...] = (2, 3, 3)) -> nn.Module:
    """DenseNet: blocks in which every layer sees all before it, and between them half the channels at half the size."""
    parts: list[nn.Module] = [_unit(3, 2 * growth, 7, 2), nn.MaxPool2d(3, 2, 1)]
    width = 2 * growth
    for number, count in enumerate(layers):
        for _ in range(count):
            parts.append(_Dense(width, growth))
            width += growth
        if number < len(layers) - 1:
            parts += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    return nn.Sequential(
        *parts, nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    )


class _Inception(nn.Module):
    """GoogLeNet's block: four views of the same image beside each other."""

    def __init__(self, ins: int, width: int) -> None:
        super().__init__()
        self.views = nn.ModuleList([
            _unit(ins, width, 1), nn.Sequential(_unit(ins, width, 1), _unit(width, 2 * width)),
            nn.Sequential(_unit(ins, width // 2, 1), _unit(width // 2, width)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), _unit(ins, width, 1)),
        ])  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([view(x) for view in self.views], 1)


class InceptionNetwork(nn.Module):
    """GoogLeNet: blocks of four views between max pools, and a second head half way."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        w = width
        self.stem = nn.Sequential(
            _unit(3, 2 * w, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True), _unit(2 * w, 2 * w, 1), _unit(2 * w, 4 * w),
            nn.MaxPool2d(3, 2, ceil_mode=True), _Inception(4 * w, w), nn.MaxPool2d(3, 2, ceil_mode=True),
        )  # fmt: skip
        self.rest = nn.Sequential(
            _Inception(5 * w, 2 * w),
            _Inception(10 * w, 2 * w),
            nn.MaxPool2d(2, 2, ceil_mode=True),
            _Inception(10 * w, 2 * w),
        )
        self.head, self.second = nn.Linear(10 * w, 10), nn.Linear(5 * w, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        half = self.stem(x)
        return self.head(self.rest(half).mean((2, 3))), self.second(half.mean((2, 3)))


class _NormedLinear(nn.Module):
    """A product and a batch norm over all tokens of all images."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.product, self.norm = nn.Linear(ins, outs, bias=False), nn.BatchNorm1d(outs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.product(x)
        return self.norm(x.flatten(0, 1)).reshape_as(x)


class _TokenMixer(nn.Module):
    """LeViT's block: attention with a bias per pair of places, then a perceptron; ``step`` 2 asks at every other place."""

    def __init__(self, ins: int, outs: int, side: int, heads: int = 2, size: int = 8, step: int = 1) -> None:
        super().__init__()
        self.heads, self.size, self.side, self.step = heads, size, side, step
        places = side * side
        self.query = _NormedLinear(ins, heads * size)
        self.key, self.value = _NormedLinear(ins, heads * size), _NormedLinear(ins, heads * 2 * size)
        self.out = _NormedLinear(heads * 2 * size, outs)
        self.bias = nn.Parameter(0.1 * torch.randn(heads, (side // step) ** 2, places))
        self.mlp = nn.Sequential(_NormedLinear(outs, 2 * outs), nn.Hardswish(), _NormedLinear(2 * outs, outs))

    def forward(self, x: Tensor) -> Tensor:
        n, _, c = x.shape
        asked = x
        if self.step > 1:
            asked = x.view(n, self.side, self.side, c)[:, :: self.step, :: self.step].reshape(n, -1, c)

        def heads(t: Tensor) -> Tensor:
            return t.unflatten(2, (self.heads, -1)).transpose(1, 2)

        scores = heads(self.query(asked)) @ heads(self.key(x)).transpose(2, 3) * self.size**-0.5 + self.bias
        mixed = (scores.softmax(-1) @ heads(self.value(x))).transpose(1, 2).flatten(2)
        mixed = self.out(F.hardswish(mixed))
        x = mixed if self.step > 1 else x + mixed
        return x + self.mlp(x)


class TokenNetwork(nn.Module):
    """LeViT: convolutions to a sixteenth of the size, then tokens that are halved along both sides once; a norm over the batch."""

    def __init__(self, width: int = 16, side: int = 4) -> None:
        super().__init__()
        widths = [3, 8, 8, 16, width]
        pairs = itertools.pairwise(widths)
        self.stem = nn.Sequential(*(_unit(a, b, 3, 2, act=nn.Hardswish) for a, b in pairs))
        self.blocks = nn.Sequential(
            _TokenMixer(width, width, side), _TokenMixer(width, width, side), _TokenMixer(width, 2 * width, side, step=2),
            _TokenMixer(2 * width, 2 * width, side // 2),
        )  # fmt: skip
        self.norm, self.head = nn.BatchNorm1d(2 * width), nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.blocks(self.stem(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(tokens.mean(1)))


def _images(size: int, batch: int = 2) -> dict[str, Any]:
    return {"x": torch.randn(batch, 3, size, size)}


# Not smaller batches: a norm over the few values of the last level turns rounding into a thousandth of every gradient before it. Not
# larger images: of more activations a few lie at their kink (follows_eager.py), and what is off by less than a hundredth is not seen.
PLAIN_IMAGES: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "pyramid": lambda: (PyramidNetwork(), _images(64)),
    "residual-unet": lambda: (ResidualUNet(), _images(32)),
    "dense": lambda: (dense_network(), {"input": torch.randn(4, 3, 64, 64)}),
    "inception": lambda: (InceptionNetwork(), _images(64, batch=4)),
    "tokens": lambda: (TokenNetwork(), _images(64, batch=4)),
}
