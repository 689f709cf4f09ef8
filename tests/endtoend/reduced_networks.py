"""The networks that dcir is measured with, a few layers of each at small sizes: for what takes long per operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _unit(
    ins: int, outs: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: Callable[[], nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Convolution, norm over the batch, activation."""
    convolution = nn.Conv2d(ins, outs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outs), act())


class Bottleneck(nn.Module):
    """ResNet's block; a wide one has more channels in the middle."""

    def __init__(self, ins: int, outs: int, middle: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _unit(ins, middle), _unit(middle, middle, 3, stride), _unit(middle, outs, act=nn.Identity)
        )
        self.shortcut = _unit(ins, outs, 1, stride, act=nn.Identity) if ins != outs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def residual_network(middle: int) -> nn.Module:
    """ResNet's stem, two blocks and head."""
    return nn.Sequential(
        _unit(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1), Bottleneck(16, 32, middle), Bottleneck(32, 64, 2 * middle, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class SqueezeExcite(nn.Module):
    """Every channel times a number that follows from the means of all."""

    def __init__(self, channels: int, few: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, few, 1), nn.Conv2d(few, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    """The block of MobileNetV2, and with squeeze and excitation that of EfficientNet."""

    def __init__(self, ins: int, outs: int, stride: int, act: Callable[[], nn.Module], excited: bool) -> None:
        super().__init__()
        middle = 4 * ins
        gate = [SqueezeExcite(middle, ins // 4)] if excited else []
        self.body = nn.Sequential(
            _unit(ins, middle, act=act), _unit(middle, middle, 3, stride, middle, act), *gate,
            _unit(middle, outs, act=nn.Identity),
        )  # fmt: skip
        self.residual = stride == 1 and ins == outs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def inverted_network(act: Callable[[], nn.Module], *, excited: bool) -> nn.Module:
    """MobileNetV2 or EfficientNet with two blocks."""
    return nn.Sequential(
        _unit(3, 16, 3, 2, act=act), Inverted(16, 16, 1, act, excited), Inverted(16, 24, 2, act, excited),
        _unit(24, 64, act=act), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class _Perceptron(nn.Sequential):
    def __init__(self, size: int, middle: int) -> None:
        super().__init__(nn.Linear(size, middle), nn.GELU(), nn.Linear(middle, size))


class Mixer(nn.Module):
    """MLP-Mixer: perceptrons over places and over channels."""

    def __init__(self, size: int = 24, places: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, size, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3))
        self.places, self.channels = _Perceptron(places, 12), _Perceptron(size, 48)
        self.head = nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.places(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norms[1](x))
        return self.head(self.norms[2](x).mean(1))


class FullyConvolutional(nn.Module):
    """FCN: convolutions and pools that round up, then transposed convolutions, joined with what was there on the way."""

    def __init__(self, width: int = 8, classes: int = 5) -> None:
        super().__init__()
        w = width
        self.first, self.second = self._stage(3, w, 6), self._stage(w, 2 * w, 1)
        self.far = nn.Conv2d(2 * w, 4 * w, 3)
        self.scores = nn.ModuleList(nn.Conv2d(n, classes, 1) for n in (4 * w, w))
        self.up = nn.ConvTranspose2d(classes, classes, 4, 2, bias=False)
        self.last = nn.ConvTranspose2d(classes, classes, 4, 2, bias=False)

    @staticmethod
    def _stage(ins: int, outs: int, padding: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(ins, outs, 3, padding=padding), nn.ReLU(), nn.MaxPool2d(2, 2, ceil_mode=True))

    def forward(self, x: Tensor) -> Tensor:
        near = self.first(x)
        high = self.up(self.scores[0](F.relu(self.far(self.second(near)))))
        high = high + self.scores[1](near * 0.1)[:, :, 1 : 1 + high.shape[2], 1 : 1 + high.shape[3]]
        return self.last(high)[:, :, 2 : 2 + x.shape[2], 2 : 2 + x.shape[3]]


class WaveNet(nn.Module):
    """Gated convolutions in time with growing distances, whose parts are added up."""

    def __init__(
        self, size: int = 12, many: int = 20, classes: int = 30, distances: tuple[int, ...] = (1, 2, 4)
    ) -> None:
        super().__init__()
        self.embed, self.distances = nn.Embedding(classes, size), distances
        self.gates = nn.ModuleList(nn.Conv1d(size, 2 * size, 2, dilation=d) for d in distances)
        self.rests = nn.ModuleList(nn.Conv1d(size, size, 1) for _ in distances)
        self.skips = nn.ModuleList(nn.Conv1d(size, many, 1) for _ in distances)
        self.head = nn.Conv1d(many, classes, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x, total = self.embed(tokens).transpose(1, 2), torch.zeros(())
        for d, gate, rest, skip in zip(self.distances, self.gates, self.rests, self.skips, strict=True):
            a, b = gate(F.pad(x, (d, 0))).chunk(2, 1)
            h = torch.tanh(a) * torch.sigmoid(b)
            total, x = total + skip(h), x + rest(h)
        return self.head(F.relu(total))


class Attending(nn.Module):
    """A layer of a transformer, with its norms before (ViT) or after (BERT)."""

    def __init__(self, size: int, heads: int, *, before: bool) -> None:
        super().__init__()
        self.heads, self.before = heads, before
        self.three, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.first, self.second, self.mlp = nn.LayerNorm(size), nn.LayerNorm(size), _Perceptron(size, 2 * size)

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            x = x + self._mixed(self.first(x))
            return x + self.mlp(self.second(x))
        x = self.first(x + self._mixed(x))
        return self.second(x + self.mlp(x))

    def _mixed(self, x: Tensor) -> Tensor:
        q, k, v = self.three(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Bert(nn.Module):
    """Embeddings of words, places and kinds, a layer, and scores of the first word."""

    def __init__(self, size: int = 24, words: int = 40) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, size) for n in (words, 16, 2))
        self.norm, self.layer = nn.LayerNorm(size), Attending(size, 2, before=False)
        self.pool, self.head = nn.Linear(size, size), nn.Linear(size, 2)
        self.register_buffer("numbers", torch.arange(16), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(self.numbers[: tokens.shape[1]]) + self.kinds.weight[0]
        return self.head(torch.tanh(self.pool(self.layer(self.norm(x))[:, 0])))


class VisionTransformer(nn.Module):
    """Patches, a token of its own in front of them, and a layer."""

    def __init__(self, size: int = 24, places: int = 16) -> None:
        super().__init__()
        self.patch, self.first = nn.Conv2d(3, size, 4, 4), nn.Parameter(torch.zeros(1, 1, size))
        self.places = nn.Parameter(0.1 * torch.randn(1, places + 1, size))
        self.layer, self.norm, self.head = Attending(size, 3, before=True), nn.LayerNorm(size), nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layer(x))[:, 0])


class Recommender(nn.Module):
    """DLRM: rows of tables and a perceptron of what is no category, and the products of all pairs of them."""

    def __init__(self, rows: tuple[int, ...] = (20, 3, 11), size: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, size) for n in rows)
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, size), nn.ReLU())
        count = len(rows) + 1
        self.top = nn.Sequential(nn.Linear(size + count * (count - 1) // 2, 12), nn.ReLU(), nn.Linear(12, 1))
        i, j = torch.tril_indices(count, count, -1)
        self.register_buffer("pairs", i * count + j, persistent=False)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = torch.stack([x, *(table(sparse[:, n]) for n, table in enumerate(self.tables))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([x, products], 1)).squeeze(1)


class _Split(nn.Module):
    """YOLOv4's stage: half of the channels go around a residual block."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        half = outs // 2
        self.down = _unit(ins, outs, 3, 2, act=nn.Mish)
        self.around, self.into = _unit(outs, half, act=nn.Mish), _unit(outs, half, act=nn.Mish)
        self.block = nn.Sequential(_unit(half, half, act=nn.Mish), _unit(half, half, 3, act=nn.Mish))
        self.out = _unit(2 * half, outs, act=nn.Mish)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        h = self.into(x)
        return self.out(torch.cat([h + self.block(h), self.around(x)], 1))


def _leaky() -> nn.Module:
    return nn.LeakyReLU(0.1)


class Detector(nn.Module):
    """YOLOv4: two stages, pools of several sizes, and a way back up; scores at two scales."""

    def __init__(self, width: int = 8, scores: int = 9) -> None:
        super().__init__()
        w = width
        self.first, self.second = _Split(3, w), _Split(w, 2 * w)
        self.after, self.up = _unit(6 * w, 2 * w, act=_leaky), _unit(2 * w, w, act=_leaky)
        self.join = _unit(2 * w, w, 3, act=_leaky)
        self.near, self.far = nn.Conv2d(w, scores, 1), nn.Conv2d(2 * w, scores, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        near = self.first(x)
        far = self.second(near)
        far = self.after(torch.cat([F.max_pool2d(far, 5, 1, 2), F.max_pool2d(far, 3, 1, 1), far], 1))
        up = F.interpolate(self.up(far), scale_factor=2.0, mode="nearest")
        return self.near(self.join(torch.cat([near, up], 1))), self.far(far)


class _RootMeanSquare(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Llama(nn.Module):
    """A layer of Llama with fewer keys than queries: all tokens of a text, or one more after those of ``past``."""

    def __init__(self, size: int = 24, heads: int = 4, keys: int = 2, words: int = 40) -> None:
        super().__init__()
        self.heads, self.keys, self.each = heads, keys, size // heads
        self.embed, self.norms = nn.Embedding(words, size), nn.ModuleList(_RootMeanSquare(size) for _ in range(3))
        self.q, self.o = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
        self.k, self.v = (nn.Linear(size, keys * self.each, bias=False) for _ in range(2))
        self.gate, self.grow = nn.Linear(size, 40, bias=False), nn.Linear(size, 40, bias=False)
        self.shrink, self.head = nn.Linear(40, size, bias=False), nn.Linear(size, words, bias=False)
        angles = torch.outer(torch.arange(16.0), 100.0 ** (-torch.arange(0, self.each, 2) / self.each)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor, past: Tensor | None = None) -> Any:
        b, s = tokens.shape
        start = 0 if past is None else past.shape[3]
        turn = self.cos[start : start + s], self.sin[start : start + s]
        x = self.embed(tokens)
        y = self.norms[0](x)
        q = _turned(self.q(y).view(b, s, self.heads, self.each).transpose(1, 2), *turn)
        k = _turned(self.k(y).view(b, s, self.keys, self.each).transpose(1, 2), *turn)
        v = self.v(y).view(b, s, self.keys, self.each).transpose(1, 2)
        new = torch.stack([k, v])
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        group, t = self.heads // self.keys, k.shape[2]
        scores = q.reshape(b, self.keys, group * s, self.each) @ k.transpose(2, 3) / math.sqrt(self.each)
        if past is None:
            later = torch.ones(s, s, dtype=torch.bool).triu(1)
            scores = scores.view(b, self.keys, group, s, t).masked_fill(later, -math.inf).flatten(2, 3)
        mixed = (scores.softmax(-1) @ v).view(b, self.heads, s, self.each).transpose(1, 2).reshape(b, s, -1)
        x = x + self.o(mixed)
        y = self.norms[1](x)
        x = x + self.shrink(F.silu(self.gate(y)) * self.grow(y))
        scores = self.head(self.norms[2](x))
        return scores if past is None else (scores, new)


def _images(size: int, batch: int = 4) -> dict[str, Tensor]:
    return {"x": torch.randn(batch, 3, size, size)}


def _sequence(size: int) -> dict[str, Tensor]:
    return {"input": torch.randn(4, 3, size, size)}


def _tokens(words: int, length: int = 6) -> dict[str, Tensor]:
    return {"tokens": torch.randint(0, words, (2, length))}


REDUCED: dict[str, Callable[[], tuple[nn.Module, dict[str, Tensor]]]] = {
    "resnet": lambda: (residual_network(8), _sequence(32)),
    "wide-resnet": lambda: (residual_network(16), _sequence(32)),
    "mobilenet": lambda: (inverted_network(nn.ReLU6, excited=False), _sequence(24)),
    "efficientnet": lambda: (inverted_network(nn.SiLU, excited=True), _sequence(24)),
    "mlp-mixer": lambda: (Mixer(), _images(16)),
    "fcn": lambda: (FullyConvolutional(), _images(15, 2)),
    "wavenet": lambda: (WaveNet(), _tokens(30, 24)),
    "bert": lambda: (Bert(), _tokens(40)),
    "dlrm": lambda: (
        Recommender(),
        {"dense": torch.rand(12, 5), "sparse": torch.stack([torch.randint(0, n, (12,)) for n in (20, 3, 11)], 1)},
    ),
    "yolo": lambda: (Detector(), _images(16)),
    "vit": lambda: (VisionTransformer(), _images(16)),
    "llama-prefill": lambda: (Llama(), _tokens(40)),
    "llama-decode": lambda: (Llama(), {"tokens": torch.randint(0, 40, (2, 1)), "past": torch.randn(2, 2, 2, 5, 6)}),
}
"""A module and the arguments of its call, by the network's name."""
