"""Random networks over images of any size: ``python -m tests.fuzz.sized --images --cases 500``.

    x0 (b, 3, h, w) -> v0 = l0(x0) -> v1 = F.max_pool2d(v0, 3, 2, 1, ceil_mode=True) -> v2 = F.interpolate(v1, size=v0.shape[2:]) -> ...

As in ``sized.py``; shapes are batch, channels, height and width as texts over ``h`` and ``w``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from tests.fuzz.sized import Making, SizedCase, binary, unary

_Image = tuple[int, str, str]
"""Channels, height and width."""


@dataclass
class ImageCase(SizedCase):
    """A network over images."""

    arguments: ClassVar[str] = "x0"
    unpacked: ClassVar[str] = "b, _, h, w = x0.shape"
    sizes: ClassVar[tuple[tuple[int, ...], ...]] = (
        (2, 40, 56),
        (3, 33, 47),
        (2, 61, 38),
        (4, 29, 64),
        (3, 48, 48),
        (2, 37, 31),
        (1, 30, 43),
    )

    def call(self, *size: int) -> tuple[torch.Tensor, ...]:
        b, h, w = size
        g = torch.Generator().manual_seed(10000 * b + 100 * h + w)
        return (torch.randn(b, 3, h, w, generator=g),)


class _Making(Making):
    """Of images."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng, ImageCase())
        width = rng.choice([4, 8, 16, 24])
        self.put(f"{self.layer(f'nn.Conv2d(3, {width}, 3, padding=1)')}(x0)", (width, "h", "w"))

    def least(self, text: str) -> int:
        """The least extent of a height or width at the case's sizes."""
        return min(eval(text, {"h": h, "w": w}) for _, h, w in self.case.sizes)

    def room(self, shape: _Image, extent: int) -> bool:
        """Whether height and width are so large at all sizes."""
        return min(self.least(shape[1]), self.least(shape[2])) >= extent

    def other(self, *, channels: int | None = None, but: str = "") -> tuple[str, _Image] | None:
        """Another value."""
        found = [v for v in self.values if v[0] != but and (channels is None or v[1][0] == channels)]
        return self.rng.choice(found) if found else None


def _windows(extent: str, kernel: int, stride: int, padding: int, dilation: int = 1, *, up: bool = False) -> str:
    less = 2 * padding - dilation * (kernel - 1) - 1 + (stride - 1 if up else 0)
    if stride == 1 and less == -1:
        return extent
    found = f"(({extent} + {less}) // {stride} + 1)"
    # The last window begins inside.
    return f"({found} - (({found} - 1) * {stride} >= {extent} + {padding}))" if up else found


def _convolution(m: _Making) -> None:
    x, (c, h, w) = m.any()
    k, s, d = m.rng.choice([1, 1, 3, 3, 3, 5, 2, 7]), m.rng.choice([1, 1, 1, 2, 2, 3]), m.rng.choice([1, 1, 1, 2])
    p = m.rng.choice([0, d * (k - 1) // 2, d * (k - 1) // 2])
    if not m.room((c, h, w), d * (k - 1) + 2 * s):
        return
    groups = m.rng.choice([1, 1, c, 2 if c % 2 == 0 else 1])
    out = c if groups == c else m.rng.choice([4, 8, 16, 20, 32])
    text = f"nn.Conv2d({c}, {out}, {k}, {s}, {p}, {d}, {groups}, bias={m.rng.random() < 0.5})"
    m.put(f"{m.layer(text)}({x})", (out, _windows(h, k, s, p, d), _windows(w, k, s, p, d)))


def _transposed(m: _Making) -> None:
    x, (c, h, w) = m.any()
    if m.least(h) > 70 or m.least(w) > 70:
        return
    k, s, p = m.rng.choice([(2, 2, 0), (4, 2, 1), (3, 1, 1), (3, 2, 1)])
    out = m.rng.choice([4, 8, 16])
    m.put(f"{m.layer(f'nn.ConvTranspose2d({c}, {out}, {k}, {s}, {p})')}({x})",
          (out, *((n if s == 1 else f"(({n} - 1) * {s} + {k - 2 * p})") for n in (h, w))))  # fmt: skip


def _norm(m: _Making) -> None:
    x, s = m.any()
    kind = m.rng.choice(["BatchNorm2d({})", "BatchNorm2d({})", "GroupNorm(2, {})", "InstanceNorm2d({}, affine=True)"])
    if s[0] % 2 == 0 and m.room(s, 2):
        m.put(f"{m.layer('nn.' + kind.format(s[0]))}({x})", s)


def _channels_norm(m: _Making) -> None:
    x, s = m.any()
    m.put(f"{m.layer(f'nn.LayerNorm({s[0]})')}({x}.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)", s)


def _pool(m: _Making) -> None:
    x, (c, h, w) = m.any()
    k, s = m.rng.choice([(2, 2), (3, 2), (3, 1), (3, 3), (5, 2)])
    p, up = m.rng.choice([0, k // 2]), m.rng.random() < 0.5
    if not m.room((c, h, w), k + 2 * s):
        return
    kind = m.rng.choice(["max_pool2d", "avg_pool2d"])
    more = f", count_include_pad={m.rng.random() < 0.5}" if kind == "avg_pool2d" else ""
    m.put(f"F.{kind}({x}, {k}, {s}, {p}, ceil_mode={up}{more})",
          (c, *(_windows(n, k, s, p, up=up) for n in (h, w))))  # fmt: skip


def _adaptive(m: _Making) -> None:
    """Windows of other sizes, spread over the image again."""
    x, (c, h, w) = m.any()
    out, kind = m.rng.choice([1, 2, 3, 6, (2, 3), 7]), m.rng.choice(["avg", "avg", "max"])
    y = f"F.adaptive_{kind}_pool2d({x}, {out})"
    how = m.rng.choice(["mode='nearest'", "mode='bilinear'", "mode='bilinear', align_corners=True"])
    m.put(f"F.interpolate({y}, size={x}.shape[2:], {how})", (c, h, w))


def _larger(m: _Making) -> None:
    x, (c, h, w) = m.any()
    if m.least(h) > 70 or m.least(w) > 70:
        return
    how = m.rng.choice(
        ["mode='nearest'", "mode='bilinear', align_corners=False", "mode='nearest-exact'", "mode='bicubic'"]
    )
    m.put(f"F.interpolate({x}, scale_factor=2, {how})", (c, f"(2 * {h})", f"(2 * {w})"))


def _resized(m: _Making) -> None:
    """A value as large as another one, beside it."""
    x, (c, _, _) = m.any()
    if (other := m.other(but=x)) is None:
        return
    y, (d, h, w) = other
    how = m.rng.choice(
        ["mode='nearest'", "mode='bilinear', align_corners=False", "mode='bilinear', align_corners=True"]
    )
    m.put(f"torch.cat([F.interpolate({x}, size={y}.shape[2:], {how}), {y}], 1)", (c + d, h, w))


def _fitted(m: _Making) -> None:
    """A value padded or cut to another one's size, as across a U-Net."""
    x, (c, _, _) = m.any()
    if (other := m.other(but=x)) is None:
        return
    y, (d, h, w) = other
    sides = ", ".join(f"({y}.size({i}) - {x}.size({i})) // 2, {y}.size({i}) - {x}.size({i}) - ({y}.size({i}) - {x}.size({i})) // 2"
                      for i in (3, 2))  # fmt: skip
    m.put(f"torch.cat([F.pad({x}, [{sides}]), {y}], 1)", (c + d, h, w))


def _cropped(m: _Making) -> None:
    """A larger value's middle, as in a U-Net without padding."""
    x, (c, h, w) = m.any()
    found = [v for v in m.values if v[1][0] == c and all(
        all(eval(a, {"h": i, "w": j}) >= eval(b, {"h": i, "w": j}) for _, i, j in m.case.sizes)
        for a, b in zip(v[1][1:], (h, w), strict=True))]  # fmt: skip
    y = m.rng.choice(found)[0]
    low = [f"({y}.size({i}) - {x}.size({i})) // 2" for i in (2, 3)]
    m.put(f"{x} + {y}[:, :, {low[0]}:{low[0]} + {x}.size(2), {low[1]}:{low[1]} + {x}.size(3)]", (c, h, w))


def _to_a_multiple(m: _Making) -> None:
    """Padded to a multiple, halved and doubled, and cut again."""
    x, (c, h, w) = m.any()
    by, more = m.rng.choice([2, 4, 8]), "(-{}.size({})) % {}"
    y = f"F.pad({x}, [0, {more.format(x, 3, by)}, 0, {more.format(x, 2, by)}])"
    y = m.rng.choice([f"F.interpolate(F.avg_pool2d({y}, 2), scale_factor=2)",
                      f"F.pixel_shuffle(F.pixel_unshuffle({y}, 2).sin(), 2)"])  # fmt: skip
    m.put(f"{y}[:, :, :{x}.size(2), :{x}.size(3)]", (c, h, w))


def _attended(m: _Making) -> None:
    """What channels have in common, back at all places."""
    x, s = m.any()
    how = m.rng.choice([".mean((2, 3))", ".amax((2, 3))", ".flatten(2).logsumexp(2)"])
    m.put(f"{x} * torch.sigmoid({m.layer(f'nn.Linear({s[0]}, {s[0]})')}({x}{how}))[:, :, None, None]", s)


def _tokens(m: _Making) -> None:
    """Attention of all places to all."""
    x, (c, h, w) = m.any()
    if c % 4 or m.least(h) * m.least(w) > 900:
        return
    y = f"{m.layer(f'nn.Linear({c}, {3 * c})')}({x}.flatten(2).transpose(1, 2))"
    y = f"F.scaled_dot_product_attention(*(t.unflatten(2, (2, {c // 2})).transpose(1, 2) for t in {y}.chunk(3, -1)))"
    m.put(f"{x} + {y}.transpose(1, 2).flatten(2).transpose(1, 2).reshape({x}.shape)", (c, h, w))


def _softmax(m: _Making) -> None:
    x, s = m.any()
    m.put(m.rng.choice([f"{x}.softmax(1)", f"{x}.softmax(3)", f"{x}.flatten(2).softmax(2).reshape({x}.shape)"]), s)


def _places(m: _Making) -> None:
    """Coordinates."""
    x, s = m.any()
    m.put(m.rng.choice([f"{x} + torch.arange({x}.size(3), dtype={x}.dtype) / {x}.size(3)",
                        f"{x} * torch.arange({x}.size(2), dtype={x}.dtype)[:, None].cos()",
                        f"{x} + torch.linspace(-1, 1, {x}.size(3), dtype={x}.dtype)"]), s)  # fmt: skip


def _sliced(m: _Making) -> None:
    x, (c, h, w) = m.any()
    if m.room((c, h, w), 4):
        made = [(f"{x}[:, :, 1:, :-1]", f"({h} - 1)", f"({w} - 1)"), (f"{x}[:, :, ::2, 1::2]", f"(({h} + 1) // 2)", f"({w} // 2)"),
                (f"{x}.flip(3)", h, w), (f"{x}.roll((1, -2), (2, 3))", h, w), (f"{x}.transpose(2, 3)", w, h),
                (f"F.pad({x}, (1, 2, 0, 1), mode='reflect')", f"({h} + 1)", f"({w} + 3)"),
                (f"F.pad({x}, (1, 1, 1, 1), mode='replicate')", f"({h} + 2)", f"({w} + 2)")]  # fmt: skip
        text, h, w = m.rng.choice(made)
        m.put(text, (c, h, w))


def _unshuffled(m: _Making) -> None:
    x, (c, h, w) = m.any()
    if c % 4 == 0:
        m.put(f"F.pixel_shuffle({x}, 2)", (c // 4, f"(2 * {h})", f"(2 * {w})"))


_STEPS: tuple[tuple[int, Callable[[_Making], None]], ...] = (
    (7, _convolution), (2, _transposed), (3, _norm), (1, _channels_norm), (3, unary), (2, binary), (4, _pool), (2, _adaptive),
    (2, _larger), (3, _resized), (3, _fitted), (1, _cropped), (1, _to_a_multiple), (1, _attended), (1, _tokens), (1, _softmax),
    (1, _places), (2, _sliced), (1, _unshuffled),
)  # fmt: skip


def image_case(seed: int) -> ImageCase:
    """Case number ``seed``."""
    m = _Making(random.Random(seed))
    weights, steps = zip(*_STEPS, strict=True)
    for _ in range(m.rng.randint(2, 8)):
        (step,) = m.rng.choices(steps, weights)
        step(m)
    last = m.values[-1][0]
    m.case.results = [m.rng.choice([last, last, f"{last}.mean((2, 3))"])]
    return m.case
