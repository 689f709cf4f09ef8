"""ResNet-50, EfficientNet-B0, BERT-base and a small convolutional network in plain PyTorch, with random weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """A residual block of ResNet-50: 1x1, 3x3 and 1x1 convolutions around a shortcut (He et al. 2016, figure 5)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    """Images [batch, 3, height, width] to class scores [batch, classes]."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
        )
        blocks, channels = [], 64
        for stage, depth in enumerate((3, 4, 6, 3)):
            width = 64 << stage
            for number in range(depth):
                blocks.append(Bottleneck(channels, width, 2 if stage and number == 0 else 1))
                channels = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(self.stem(images))
        return self.head(features.mean((2, 3)))


class SqueezeExcite(nn.Module):
    """Every channel times a number between 0 and 1 that follows from the means of all channels (Hu et al. 2018)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.excite(F.silu(self.squeeze(means))))


def _convolution(channels: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps the size (but for the stride), and its batch norm."""
    convolution = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out))


class MBConv(nn.Module):
    """A block of EfficientNet: 1x1 to more channels, depthwise convolution, squeeze and excitation, 1x1 back."""

    def __init__(self, channels: int, out: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = channels * expansion
        expand = [] if expansion == 1 else [_convolution(channels, inner), nn.SiLU()]
        depthwise = [_convolution(inner, inner, kernel, stride, groups=inner), nn.SiLU()]
        self.layers = nn.Sequential(
            *expand, *depthwise, SqueezeExcite(inner, max(1, channels // 4)), _convolution(inner, out)
        )
        self.residual = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


# Stages 2 to 8 of table 1 of Tan and Le 2019: expansion, kernel, stride, channels, layers.
EFFICIENTNET_B0 = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1),
)  # fmt: skip


class EfficientNet(nn.Module):
    """Images [batch, 3, height, width] to class scores; the defaults are EfficientNet-B0 without dropout and stochastic depth."""

    def __init__(
        self, stages: Sequence[tuple[int, int, int, int, int]] = EFFICIENTNET_B0, head: int = 1280, classes: int = 1000
    ) -> None:
        super().__init__()
        channels = 32
        blocks: list[nn.Module] = [_convolution(3, channels, 3, stride=2), nn.SiLU()]
        for expansion, kernel, stride, out, layers in stages:
            for number in range(layers):
                blocks.append(MBConv(channels, out, expansion, kernel, stride if number == 0 else 1))
                channels = out
        self.features = nn.Sequential(*blocks, _convolution(channels, head), nn.SiLU())
        self.head = nn.Linear(head, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean((2, 3)))


class EncoderLayer(nn.Module):
    """A layer of BERT: self-attention and a feed-forward network, each with its residual and norm."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.attention_out = nn.Linear(size, size)
        self.attention_norm = nn.LayerNorm(size, eps=1e-12)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.norm = nn.LayerNorm(size, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.attention_norm(x + self.attention_out(seen))
        return self.norm(x + self.down(F.gelu(self.up(x))))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Bert(nn.Module):
    """Token numbers [batch, length] to hidden states [batch, length, size]; the defaults are BERT-base."""

    def __init__(self, size: int = 768, layers: int = 12, heads: int = 12, tokens: int = 30522) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, size), nn.Embedding(512, size)
        self.norm = nn.LayerNorm(size, eps=1e-12)
        self.layers = nn.Sequential(*(EncoderLayer(size, heads) for _ in range(layers)))

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.layers(self.norm(self.tokens(tokens) + self.positions(places)))


class SmallConvNet(nn.Module):
    """Images [batch, 3, 32, 32] to scores of ten classes; small enough to be exported in a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv2, self.norm2 = nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64)
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(images))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.head(x.mean((2, 3))).softmax(-1)
