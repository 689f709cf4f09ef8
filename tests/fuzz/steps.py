"""The steps a random network is made of: each writes one or a few lines over values that fit it."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.fuzz.pick import Nothing, Pick, Value

STEPS: list[Callable[[Pick], object]] = []


def step(weight: int = 1) -> Callable[[Callable[[Pick], object]], Callable[[Pick], object]]:
    """Register a step, as often as its weight."""

    def register(fn: Callable[[Pick], object]) -> Callable[[Pick], object]:
        STEPS.extend([fn] * weight)
        return fn

    return register


_UNARY = (
    "torch.relu({})", "torch.tanh({})", "torch.sigmoid({})", "F.gelu({})", "F.gelu({}, approximate='tanh')", "F.silu({})",
    "F.mish({})", "F.elu({})", "F.leaky_relu({}, 0.1)", "F.softplus({})", "F.hardswish({})", "torch.exp(torch.tanh({}))",
    "torch.sqrt({}.abs() + 0.1)", "1 / (1 + {} * {})", "torch.log1p({}.abs())", "torch.sin({})", "{}.clamp(-0.8, 1.1)",
    "-{}", "{} * 0.5 + 1", "torch.erf({})", "F.logsigmoid({})", "torch.rsqrt({} * {} + 0.5)", "{} ** 2", "F.hardsigmoid({})",
    "torch.where({} > 0.1, {}, 0.25)", "{}.masked_fill({} > 0.5, -1.0)", "{}.double().float()", "{}.abs().pow(1.5)",
)  # fmt: skip


@step(3)
def unary(p: Pick) -> None:
    """A function of each element."""
    x, text = p.value(), p.of(_UNARY)
    p.add(text.format(*[x] * text.count("{}")))


_BINARY = (
    "{} + {}", "{} * {}", "{} - {}", "torch.maximum({}, {})", "{} / (1.5 + torch.tanh({}))", "torch.where({0} > {1}, {0}, {1} * 2)",
    "torch.lerp({}, {}, 0.3)", "torch.atan2({}, {}.abs() + 0.5)", "torch.hypot({}, 1 + {}.abs())",
    "torch.addcmul({0}, {0}, {1}, value=0.5)",
)  # fmt: skip


@step(3)
def binary(p: Pick) -> None:
    """Two values whose shapes broadcast."""
    x = p.value()
    y = p.value(lambda v: all(a == b or 1 in (a, b) for a, b in zip(x.shape[::-1], v.shape[::-1], strict=False)))
    a, b = (x, y) if p.flag() else (y, x)
    p.add(p.of(_BINARY).format(a, b))


@step()
def parameter(p: Pick) -> None:
    """A value and a parameter that broadcasts over it."""
    x = p.value(lambda v: v.rank > 0)
    keep = p.int(1, x.rank)
    shape = [d if p.flag(0.7) else 1 for d in x.shape[-keep:]]
    p.add(p.of(("{} * {}()", "{} + {}()")).format(x, p.layer(f"Number({', '.join(map(str, shape))})")))


@step(2)
def linear(p: Pick) -> None:
    """A linear layer."""
    x = p.value(lambda v: v.rank > 0)
    p.add(f"{p.layer(f'nn.Linear({x.shape[-1]}, {p.size()}, bias={p.flag()})')}({x})")


@step(2)
def product(p: Pick) -> None:
    """A product of two values, or of a value with itself."""
    x = p.value(lambda v: v.rank >= 2)
    fits = [v for v in p.values if v.rank == 2 and x.shape[-1] in v.shape]
    if fits and p.flag():
        y = p.of(fits)
        p.add(f"{x} @ {y}" if y.shape[0] == x.shape[-1] else f"{x} @ {y}.T")
    else:
        p.add(p.of((f"{x} @ {x}.transpose(-1, -2)", f"{x}.mT @ {x}", f"torch.einsum('...ij,...kj->...ki', {x}, {x})")))


def _spatial(v: Value) -> bool:
    return 3 <= v.rank <= 5


def _image(p: Pick) -> Value:
    """A value with channels and one to three spatial dimensions; if need be, one is made."""
    if any(_spatial(v) for v in p.values):
        return p.value(_spatial)
    x = p.value(lambda v: v.rank > 0)
    return p.add(f"{x}.unsqueeze(0)") if x.rank == 2 else p.add(f"{x}.reshape(1, 1, -1)")


@step(5)
def convolution(p: Pick) -> None:
    """A convolution with every option."""
    x = _image(p)
    n, channels = x.rank - 2, x.shape[1]
    groups = p.of([1, *[g for g in range(2, channels + 1) if channels % g == 0]])
    out = groups * p.int(1, max(1, 18 // groups))
    padding = [p.int(0, 2) for _ in range(n)]
    dilation = [p.int(1, 2) for _ in range(n)]
    kernel = [
        p.int(1, min(4, (d + 2 * q - 1) // e + 1)) for d, q, e in zip(x.shape[2:], padding, dilation, strict=True)
    ]
    stride = [p.int(1, 3) for _ in range(n)]
    if n == 3:  # PyTorch 2.13 ends in a segmentation fault where one tap of a channels-last image is dilated
        dilation = [d if k > 1 else 1 for d, k in zip(dilation, kernel, strict=True)]
    options = f"stride={tuple(stride)}, dilation={tuple(dilation)}, groups={groups}, bias={p.flag()}"
    mode = ""
    if all(q < d for q, d in zip(padding, x.shape[2:], strict=True)):
        mode = p.of(("", "", "", ", padding_mode='circular'", ", padding_mode='reflect'"))
    name = f"nn.Conv{n}d({channels}, {out}, {tuple(kernel)}, padding={tuple(padding)}, {options}{mode})"
    p.add(f"{p.layer(name)}({x})")


@step(2)
def transposed_convolution(p: Pick) -> None:
    """A transposed convolution."""
    x = _image(p)
    n, channels = x.rank - 2, x.shape[1]
    groups = p.of([1, *[g for g in range(2, channels + 1) if channels % g == 0]])
    out = groups * p.int(1, max(1, 8 // groups))
    stride = [p.int(1, 3) for _ in range(n)]
    dilation = [p.int(1, 2) for _ in range(n)]
    kernel = [p.int(1, 3) for _ in range(n)]
    padding = [p.int(0, min(1, d * (k - 1) // 2)) for d, k in zip(dilation, kernel, strict=True)]
    extra = [p.int(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True)]
    options = f"stride={tuple(stride)}, padding={tuple(padding)}, output_padding={tuple(extra)}, groups={groups}"
    name = f"nn.ConvTranspose{n}d({channels}, {out}, {tuple(kernel)}, {options}, dilation={tuple(dilation)}, bias={p.flag()})"
    p.add(f"{p.layer(name)}({x})")


@step(2)
def pooling(p: Pick) -> None:
    """Maximum, average and adaptive pooling."""
    x = _image(p)
    n = x.rank - 2
    if p.flag(0.3):
        p.add(f"F.adaptive_{p.of(('avg', 'max'))}_pool{n}d({x}, {tuple(p.int(1, min(4, d)) for d in x.shape[2:])})")
        return
    kernel = [p.int(1, min(3, d)) for d in x.shape[2:]]
    padding = [p.int(0, k // 2) for k in kernel]
    kind = p.of(("max", "avg"))
    more = f", count_include_pad={p.flag()}" if kind == "avg" else ""
    stride = tuple(p.int(1, 3) for _ in range(n))
    p.add(f"F.{kind}_pool{n}d({x}, {tuple(kernel)}, {stride}, padding={tuple(padding)}, ceil_mode={p.flag(0.3)}{more})")


@step(3)
def norm(p: Pick) -> None:
    """Batch, layer, group, instance and root-mean-square norms over at least four elements."""
    kind = p.of(("batch", "layer", "group", "instance", "rms"))
    if kind in ("layer", "rms"):
        x = p.value(lambda v: v.rank > 0 and v.shape[-1] >= 4)
        last = x.shape[-p.int(1, x.rank) :]
        name = f"nn.LayerNorm({last}, elementwise_affine={p.flag(0.7)})" if kind == "layer" else f"nn.RMSNorm({last})"
    elif kind == "batch":
        x = p.value(lambda v: 2 <= v.rank <= 5 and v.meta.numel() >= 4 * v.shape[1])
        name = f"nn.BatchNorm{max(1, x.rank - 2)}d({x.shape[1]}, affine={p.flag(0.8)})"
    else:
        x = p.value(lambda v: _spatial(v) and math.prod(v.shape[2:]) >= 4)
        channels = x.shape[1]
        groups = p.of([g for g in range(1, channels + 1) if channels % g == 0])
        if kind == "group":  # torch 2.13 crashes in its backward in channels-last if the operand needs no gradient
            x = p.add(f"{x} * {p.layer('Number(1)')}()")
        name = (
            f"nn.GroupNorm({groups}, {channels})"
            if kind == "group"
            else f"nn.InstanceNorm{x.rank - 2}d({channels}, affine=True)"
        )
    p.add(f"{p.layer(name)}({x})")


@step(2)
def attention(p: Pick) -> None:
    """Scaled dot products over heads cut from the last dimension."""
    x = p.value(lambda v: v.rank == 3 and v.shape[-1] <= 64)
    b, t, e = x.shape
    heads = p.of([h for h in (1, 2, 3, 4) if e % h == 0])
    if p.flag(0.3):
        name = f"nn.MultiheadAttention({e}, {heads}, batch_first=True)"
        p.add(f"{p.layer(name)}({x}, {x}, {x}, need_weights={p.flag(0.3)})[0]")
        return
    q = p.add(f"{x}.reshape({b}, {t}, {heads}, {e // heads}).transpose(1, 2)")
    mask = p.of(("", ", is_causal=True", f", attn_mask={p.layer(f'Number({t}, {t})')}()"))
    y = p.add(f"F.scaled_dot_product_attention({q}, {q} * 0.5, {q}{mask})")
    p.add(f"{y}.transpose(1, 2).reshape({b}, {t}, {e})")


_REDUCTIONS = ("sum", "mean", "amax", "amin", "logsumexp")


@step(2)
def reduction(p: Pick) -> None:
    """A reduction over some dimensions."""
    x = p.value(lambda v: v.rank > 0)
    axes = tuple(sorted({p.axis(x) for _ in range(p.int(1, 2))}))
    kind = p.of((*_REDUCTIONS, "var", "norm", "max"))
    keep = p.flag(0.4)
    if kind == "var":
        if math.prod(x.shape[a] for a in axes) < 3:
            raise Nothing
        p.add(f"{x}.var({axes}, unbiased={p.flag()}, keepdim={keep})")
    elif kind == "norm":
        p.add(f"torch.linalg.vector_norm({x} + 2, dim={axes}, keepdim={keep})")
    elif kind == "max":
        p.add(f"{x}.max({axes[0]}, keepdim={keep})[0]")
    else:
        p.add(f"{x}.{kind}({axes}, keepdim={keep})")


@step(2)
def softmax(p: Pick) -> None:
    """Softmax and its logarithm along any dimension."""
    x = p.value(lambda v: v.rank > 0)
    p.add(f"F.{p.of(('softmax', 'log_softmax'))}({x}, {p.axis(x)})")


@step(2)
def reshaped(p: Pick) -> None:
    """The same elements in another shape."""
    x = p.value()
    n = x.meta.numel()
    shape = []
    for _ in range(p.int(0, 3)):
        d = p.of([d for d in range(1, 34) if n % d == 0])
        shape.append(d)
        n //= d
    p.add(f"{x}.reshape({(*shape, n)})")


_VIEWS = (
    "{}.permute({perm})", "{}.transpose({a}, {b})", "{}.flip({a})", "{}.roll({n}, {a})", "{}.unsqueeze({a})",
    "{}.squeeze()", "{}.tile((2,))",
    "{}.narrow({a}, {start}, {length})", "{}.select({a}, {start})", "{}.split({length}, {a})[-1]", "{}.chunk(2, {a})[0]",
    "{}.movedim({a}, {b})", "{}.contiguous()", "{}.unfold({a}, {length}, 2)", "torch.diagonal({}, 0, {a}, {c})",
    "{}.flatten({low}, {high})",
    "{}.repeat_interleave(2, {a})", "{}.unsqueeze({a}).expand({expanded})", "{}.cumsum({a})", "{}.T if {}.dim() == 2 else {}.mT",
)  # fmt: skip


@step(4)
def view(p: Pick) -> None:
    """Another window on a value, or a copy of its elements in another order."""
    text = p.of(_VIEWS)
    x = p.value(lambda v: v.rank >= (2 if "{c}" in text or ".T" in text else 1))
    a = p.axis(x)
    start = p.int(0, x.shape[a] - 1)
    b = p.axis(x)
    perm = list(range(x.rank))
    for i in range(x.rank - 1):
        j = p.int(i, x.rank - 1)
        perm[i], perm[j] = perm[j], perm[i]
    expanded = [*x.shape[:a], p.int(1, 3), *x.shape[a:]]
    slots = {
        "perm": tuple(perm), "a": a, "b": b, "c": p.of([i for i in range(x.rank) if i != a] or [0]), "n": p.int(1, 3), "start": start,
        "length": p.int(1, x.shape[a] - start), "low": min(a, b), "high": max(a, b), "expanded": tuple(expanded),
    }  # fmt: skip
    p.add(text.format(*[x] * text.count("{}"), **slots))


@step(2)
def sliced(p: Pick) -> None:
    """A slice with a step along one or two dimensions."""
    x = p.value(lambda v: v.rank > 0)
    parts = []
    for d in x.shape:
        start = p.int(0, d - 1)
        parts.append(f"{start}:{p.int(start + 1, d)}:{p.int(1, 3)}" if p.flag(0.6) else ":")
    p.add(f"{x}[{', '.join(parts)}]")


@step(2)
def joined(p: Pick) -> None:
    """Concatenation and stacking of values that fit, or of a value and its like."""
    x = p.value(lambda v: v.rank > 0)
    axis = p.axis(x)
    fits = [
        v
        for v in p.values
        if v.rank == x.rank and all(a == b or i == axis for i, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)))
    ]
    others = [str(p.of(fits)) for _ in range(p.int(1, 2))]
    if p.flag(0.25):
        p.add(f"torch.stack([{x}, {x} * 2], {axis})")
    else:
        p.add(f"torch.cat([{', '.join([str(x), *others])}], {axis})")


@step(2)
def padded(p: Pick) -> None:
    """Padding, also negative, and by reflection or repetition."""
    x = p.value(lambda v: v.rank > 0)
    if _spatial(x) and min(x.shape[2:]) >= 3 and p.flag():
        pads = [p.int(0, 2) for _ in range(2 * (x.rank - 2))]
        p.add(f"F.pad({x}, {tuple(pads)}, mode={p.of(('reflect', 'replicate', 'circular'))!r})")
        return
    pads = [p.int(-1, 2) for _ in range(2 * p.int(1, min(2, x.rank)))]
    if any(x.shape[-1 - i // 2] + min(pads[i], 0) + min(pads[i + 1], 0) < 1 for i in range(0, len(pads), 2)):
        raise Nothing
    p.add(f"F.pad({x}, {tuple(pads)}, value={p.of((0.0, 1.5))})")


@step(2)
def gathered(p: Pick) -> None:
    """Reads through indices."""
    x = p.value(lambda v: v.rank > 0)
    a = p.axis(x)
    kind = p.of(("select", "gather", "index", "embedding", "take"))
    n = p.int(1, 6)
    if kind == "select":
        p.add(f"{x}.index_select({a}, {_table(p, x.shape[a], n)}())")
    elif kind == "gather":
        shape = [n if i == a else p.int(1, d) for i, d in enumerate(x.shape)]
        p.add(f"{x}.gather({a}, {_table(p, x.shape[a], *shape)}())")
    elif kind == "index":
        p.add(f"{x}[{', '.join([':'] * a + [_table(p, x.shape[a], n, 2) + '()'])}]")
    elif kind == "embedding" and x.rank == 2:
        p.add(f"F.embedding({_table(p, x.shape[0], n, 3)}(), {x})")
    else:
        p.add(f"torch.take_along_dim({x}, {_table(p, x.shape[a], *x.shape)}(), {a})")


def _table(p: Pick, high: int, *shape: int) -> str:
    return p.layer(f"Table({', '.join(map(str, (high, *shape)))})")


@step()
def scattered(p: Pick) -> None:
    """Writes through indices that add up, or that are all different."""
    x = p.value(lambda v: v.rank > 0)
    a = p.axis(x)
    if p.flag():
        p.add(f"torch.zeros_like({x}).scatter_add({a}, {_table(p, x.shape[a], *x.shape)}(), {x})")
    else:
        p.add(f"{x}.index_add({a}, {_table(p, x.shape[a], x.shape[a])}(), {x} * 0.5)")


@step()
def resized(p: Pick) -> None:
    """Interpolation."""
    x = _image(p)
    mode = p.of(("nearest", "linear" if x.rank == 3 else "bilinear" if x.rank == 4 else "trilinear"))
    more = "" if mode == "nearest" else f", align_corners={p.flag()}"
    p.add(f"F.interpolate({x}, size={tuple(p.int(1, 7) for _ in x.shape[2:])}, mode={mode!r}{more})")


@step()
def loss(p: Pick) -> None:
    """A loss function."""
    x = p.value(lambda v: v.rank == 2 and v.shape[1] > 1)
    how = p.of(("mean", "sum", "none"))
    if p.flag():
        table = _table(p, x.shape[1], x.shape[0])
        p.add(f"F.cross_entropy({x}, {table}(), reduction={how!r}, label_smoothing={p.of((0.0, 0.1))})")
    else:
        p.add(f"F.{p.of(('mse_loss', 'smooth_l1_loss'))}({x}, torch.tanh({x}) + 0.3, reduction={how!r})")


_WRITES = (
    "{}.mul_(0.5)", "{}.add_(1)", "{}.relu_()", "{}.clamp_(-1, 1)", "{}[{part}].mul_(2)", "{}[{part}].fill_(0.5)",
    "{}[{part}].copy_({}[{part}] * {}[{part}])", "{}.transpose(0, -1).sub_(0.25)", "{}.masked_fill_({} > 1, 0.5)", "{}.sigmoid_()",
    "{}.flatten()[::2].tanh_()", "{}.unsqueeze(0).neg_()", "{}.index_fill_(0, {table}(), 0.1)",
)  # fmt: skip


@step(2)
def written(p: Pick) -> None:
    """A write in place: to a fresh copy, through a view of it, or to an argument."""
    x = p.value(lambda v: v.rank > 0)
    text = p.of(_WRITES)
    target = x if x.name in p.writable and p.flag(0.7) else p.add(p.of(("{} + 0", "{}.clone()", "{} * 1.5")).format(x))
    start = p.int(0, x.shape[0] - 1)
    slots = {"part": f"{start}:{p.int(start + 1, x.shape[0])}"}
    if "{table}" in text:
        slots["table"] = _table(p, x.shape[0], 2)
    p.statement(text.format(*[target] * text.count("{}"), **slots))


@step()
def sorted_values(p: Pick) -> None:
    """Sorting and the largest few."""
    x = p.value(lambda v: v.rank > 0)
    a = p.axis(x)
    p.add(
        p.of((f"{x}.sort({a})[0]", f"{x}.topk({p.int(1, x.shape[a])}, {a})[0]", f"{x}.sort({a}, descending=True)[0]"))
    )


@step()
def recurrent(p: Pick) -> None:
    """A recurrent layer over a short sequence."""
    x = p.value(lambda v: v.rank == 3 and v.shape[1] <= 6 and v.shape[2] <= 33)
    kind = p.of(("GRU", "LSTM", "RNN"))
    p.add(f"{p.layer(f'nn.{kind}({x.shape[2]}, {p.int(1, 5)}, batch_first=True)')}({x})[0]")
