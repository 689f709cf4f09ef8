"""Random networks over a batch and a length that change: ``python -m tests.fuzz.sized --cases 500 [--files]``.

    x0 (b, n, 12) -> v0 = l0(x0) -> v1 = softmax(v0, 1) -> v2 = v1[:, 1:] * x0[:, :-1] -> ...

One compiled network is called at several sizes, with and without gradients, and each call is held against float64 beside eager PyTorch.
Shapes are tuples of texts over ``b`` and ``n``: equal texts are equal extents at all sizes.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn
from torch.export import Dim

import dcir
from dcir.driver import api
from dcir.errors import Unsupported
from tests.fuzz.check import _Disturbed

Shape = tuple[str, ...]
_Values = list[torch.Tensor | None]

SIZES = ((3, 11), (2, 18), (5, 7), (4, 40), (1, 13), (7, 33))
"""The first is compiled for itself; from the second on one program is to do."""
_SLACK = 64
_ROUNDINGS = 4
_UNARY = (
    "torch.tanh({})",
    "F.gelu({})",
    "F.silu({})",
    "torch.sigmoid({})",
    "{} * 0.5 + 1",
    "torch.exp(-{}.abs())",
    "F.relu({})",
    "{}.cos()",
)
_BINARY = ("{} + {}", "{} * {}", "{} - {}", "torch.maximum({}, {})", "{} / (1 + {}.abs())")


@dataclass
class SizedCase:
    """A network: layers, lines over its arguments, and the values that it returns."""

    arguments: ClassVar[str] = "x0, ids"
    unpacked: ClassVar[str] = "b, n = ids.shape"
    sizes: ClassVar[tuple[tuple[int, ...], ...]] = SIZES

    layers: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def source(self) -> str:
        """As a module."""
        made = "".join(f"        self.l{i} = {text}\n" for i, text in enumerate(self.layers))
        body = "".join(f"        {line}\n" for line in [self.unpacked, *self.lines])
        return (
            f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n{made}\n"
            f"    def forward(self, {self.arguments}):\n{body}        return {', '.join(self.results)}\n"
        )

    def module(self) -> nn.Module:
        """A network with parameters that depend on the case alone."""
        torch.manual_seed(0)
        names: dict[str, Any] = {"nn": nn, "torch": torch, "F": nn.functional}
        exec(self.source(), names)
        made: nn.Module = names["Net"]()
        return made

    def call(self, *size: int) -> tuple[torch.Tensor, ...]:
        """Arguments of a size, of which the first one has a gradient."""
        return _call(*size)


class Making:
    """A case on its way: what values there are, and of which shapes."""

    def __init__(self, rng: random.Random, case: SizedCase) -> None:
        self.rng, self.case = rng, case
        self.values: list[tuple[str, Any]] = []

    def any(self) -> tuple[str, Any]:
        """A value, the last ones more often."""
        return self.rng.choice(self.values[-3:] if self.rng.random() < 0.6 else self.values)

    def put(self, text: str, shape: Any) -> None:
        """A further value."""
        name = f"v{len(self.case.lines)}"
        self.case.lines.append(f"{name} = {text}")
        self.values.append((name, shape))

    def layer(self, text: str) -> str:
        """A layer's name."""
        self.case.layers.append(text)
        return f"self.l{len(self.case.layers) - 1}"


class _Making(Making):
    """Of batches and lengths."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng, SizedCase())
        # Of unrelated arguments every size would be one of its own.
        self.put("x0 + (ids % 7)[..., None] / 7", ("b", "n", "12"))

    def any(self, rank: int | None = None) -> tuple[str, Shape]:
        """A value, the last ones more often."""
        found = [v for v in self.values if rank is None or len(v[1]) == rank]
        return self.rng.choice(found[-3:] if self.rng.random() < 0.6 else found)


def _constant(shape: Shape, at: int = -1) -> int:
    return int(shape[at]) if shape[at].isdigit() else 0


def unary(m: Making) -> None:
    """A function of a value."""
    x, s = m.any()
    m.put(m.rng.choice(_UNARY).format(x), s)


def binary(m: Making) -> None:
    """A function of two of one shape."""
    x, s = m.any()
    y = m.rng.choice([v for v, t in m.values if t == s])
    m.put(m.rng.choice(_BINARY).format(x, y), s)


def _reduced_again(m: _Making) -> None:
    """A value beside its own reduction."""
    x, s = m.any()
    d = m.rng.randrange(len(s))
    m.put(f"{x} - {x}.{m.rng.choice(['mean', 'sum', 'amax'])}({d}, keepdim=True)", s)


def _reduce(m: _Making) -> None:
    x, s = m.any()
    if len(s) > 1:
        d = m.rng.randrange(len(s))
        m.put(f"{x}.{m.rng.choice(['mean', 'sum', 'amax', 'logsumexp'])}({d})", s[:d] + s[d + 1 :])


def _softmax(m: _Making) -> None:
    x, s = m.any()
    m.put(f"{x}.softmax({m.rng.randrange(len(s))})", s)


def _linear(m: _Making) -> None:
    x, s = m.any()
    if k := _constant(s):
        width = m.rng.choice([4, 12, 16, 33, 64])
        m.put(f"{m.layer(f'nn.Linear({k}, {width})')}({x})", (*s[:-1], str(width)))


def _norm(m: _Making) -> None:
    x, s = m.any()
    if k := _constant(s):
        kind = m.rng.choice(["LayerNorm", "RMSNorm"])
        m.put(f"{m.layer(f'nn.{kind}({k})')}({x})", s)


def _embedding(m: _Making) -> None:
    width = m.rng.choice([8, 12, 32])
    m.put(f"{m.layer(f'nn.Embedding(50, {width})')}(ids)", ("b", "n", str(width)))


def _positions(m: _Making) -> None:
    x, s = m.any(3)
    if s[1] == "n" and (k := _constant(s)):
        m.put(f"{x} + {m.layer(f'nn.Embedding(100, {k})')}(torch.arange(n))", s)


def _attention(m: _Making) -> None:
    x, s = m.any(3)
    if k := _constant(s):
        if k % 4:
            return
        qkv = m.layer(f"nn.Linear({k}, {3 * k})")
        how = m.rng.choice(["", ", is_causal=True", ", attn_mask=(ids > 10)[:, None, None, :]"])
        if "ids" in how and s[:2] != ("b", "n"):
            return
        parts = f"(t.unflatten(2, (4, {k // 4})).transpose(1, 2) for t in {qkv}({x}).chunk(3, -1))"
        m.put(f"F.scaled_dot_product_attention(*{parts}{how}).transpose(1, 2).flatten(2)", s)


def _scores(m: _Making) -> None:
    """Products of two operands that both move."""
    x, s = m.any(3)
    m.put(f"torch.softmax({x} @ {x}.transpose(1, 2), -1) @ {x}", s)


def _transpose(m: _Making) -> None:
    x, s = m.any()
    if len(s) > 1:
        a, b = m.rng.sample(range(len(s)), 2)
        made = list(s)
        made[a], made[b] = s[b], s[a]
        m.put(f"{x}.transpose({a}, {b})", tuple(made))


def _cut(m: _Making) -> None:
    """Neighbours along the length."""
    x, s = m.any(3)
    if s[1] == "n":
        m.put(f"{x}[:, 1:] - {x}[:, :-1]", (s[0], "(n - 1)", s[2]))


def _last(m: _Making) -> None:
    x, s = m.any(3)
    m.put(f"{x}[:, -1]", (s[0], s[2]))


def _joined(m: _Making) -> None:
    x, s = m.any()
    y = m.rng.choice([v for v, t in m.values if t == s])
    d = m.rng.randrange(len(s))
    total = str(2 * int(s[d])) if s[d].isdigit() else f"(2 * {s[d]})"
    m.put(f"torch.cat([{x}, {y} * 2], {d})", (*s[:d], total, *s[d + 1 :]))


def _flat(m: _Making) -> None:
    """Rows of a batch in one."""
    x, s = m.any(3)
    if k := _constant(s):
        m.put(f"{x}.reshape(-1, {k})", (f"({s[0]} * {s[1]})", s[2]))


def _masked(m: _Making) -> None:
    x, s = m.any(3)
    if s[:2] == ("b", "n"):
        m.put(m.rng.choice([f"{x}.masked_fill((ids % 3 == 0)[..., None], -1.5)",
                            f"torch.where(torch.arange(n)[None, :, None] % 2 == 0, {x}, -{x})"]), s)  # fmt: skip


def _repeated(m: _Making) -> None:
    x, s = m.any(2)
    m.put(f"{x}[:, None].expand(-1, 3, -1) * torch.arange(1.0, 4.0, dtype={x}.dtype)[:, None]", (s[0], "3", s[1]))


def _moved(m: _Making) -> None:
    x, s = m.any()
    d = m.rng.randrange(len(s))
    m.put(f"{x}.flip({d})", s)


_STEPS: tuple[tuple[int, Callable[[_Making], None]], ...] = (
    (4, unary), (3, binary), (2, _reduced_again), (2, _reduce), (2, _softmax), (5, _linear), (3, _norm), (2, _embedding),
    (1, _positions), (2, _attention), (1, _scores), (2, _transpose), (1, _cut), (1, _last), (1, _joined), (1, _flat), (1, _masked),
    (1, _repeated), (1, _moved),
)  # fmt: skip


def sized_case(seed: int) -> SizedCase:
    """Case number ``seed``."""
    m = _Making(random.Random(seed))
    weights, steps = zip(*_STEPS, strict=True)
    for _ in range(m.rng.randint(2, 9)):
        (step,) = m.rng.choices(steps, weights)
        try:
            step(m)
        except IndexError:  # no value of such a rank
            continue
    m.case.results = [m.values[-1][0], *({m.any()[0]} if m.rng.random() < 0.4 else ())]
    return m.case


def check_sized(case: SizedCase, *, train: bool) -> tuple[int, int, str]:
    """Hold a case against float64 at all sizes; how many programs for all sizes were made, how many others, and why the last of these.

    Raises:
        AssertionError: something is wrong.
    """
    net = case.module().train(train)
    eager, wide = copy.deepcopy(net), copy.deepcopy(net).double()
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = dcir.optimize(net)
        for size in case.sizes:
            x, *rest = case.call(*size)
            runs = [_run(f, m, (x.to(t), *rest), train) for f, m, t in (
                (fast, net, torch.float32), (eager, eager, torch.float32), (wide, wide, torch.float64))]  # fmt: skip

            def otherwise(args: tuple[torch.Tensor, ...] = (x, *rest)) -> list[_Values]:
                found = []
                for seed in range(_ROUNDINGS):
                    with _Disturbed(seed):
                        found.append(_run(eager, eager, args, train))
                return found

            _all_close(f"sizes {size}", *runs, otherwise, len(case.results))
    graphs = fast.dcir.explain().graphs
    moving = [g for g in graphs if g.bounds]
    why = next((g.remark for g in graphs if "each combination" in g.remark), "")
    return len(moving), len(graphs) - len(moving), why


def check_saved(case: SizedCase, folder: str) -> str:
    """Hold a case's compiled file for sizes within bounds against float64 at all sizes; the reason if there is none.

    Raises:
        AssertionError: something is wrong.
    """
    net = case.module().eval()
    wide, path = copy.deepcopy(net).double(), os.path.join(folder, "model.dcir")
    bounds = {0: Dim("b", min=1, max=7), 1: Dim("n", min=7, max=40)}
    try:
        api.save(net, _call(3, 11), path, dynamic={"x0": bounds, "ids": bounds})
    except Unsupported as e:
        return str(e)
    fast = dcir.load(path)
    with torch.no_grad():
        for b, n in (*SIZES, (7, 40), (1, 40), (1, 7), (7, 7)):
            x, ids = _call(b, n)
            runs = [_run(f, net, (x.to(t), ids), False) for f, t in (
                (fast, torch.float32), (net, torch.float32), (wide, torch.float64))]  # fmt: skip
            for i, (got, want, exact) in enumerate(zip(*runs, strict=True)):
                _close(f"result {i} of a file at b={b}, n={n}", got, [want], exact)
    return ""


def _call(b: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(100 * b + n)
    return torch.randn(b, n, 12, generator=g), torch.randint(0, 50, (b, n), generator=g)


def _run(call: Callable[..., Any], net: nn.Module, args: tuple[torch.Tensor, ...], train: bool) -> _Values:
    net.zero_grad()
    x = args[0].detach().requires_grad_(train)
    with torch.set_grad_enabled(train):
        found = call(x, *args[1:])
    results = list(found) if isinstance(found, tuple) else [found]
    if not train:
        return [r.detach() for r in results]
    g = torch.Generator().manual_seed(1)
    # Weights in an order, such as linspace, cancel in sums of rows, whose rounding is then all that is left.
    sum((r * torch.randn(r.shape, generator=g).to(r.dtype)).sum() for r in results if r.requires_grad).backward()
    return [
        *(r.detach() for r in results),
        x.grad,
        *(None if p.grad is None else p.grad.clone() for p in net.parameters()),
    ]


def _all_close(
    where: str, got: _Values, want: _Values, exact: _Values, otherwise: Callable[[], list[_Values]], results: int
) -> None:
    """Hold results and gradients against float64; what is over the limit once more against eager that rounds otherwise.

    It may be right by luck: of a sum of terms that cancel, or of one number. A gradient that is zero by cancellation holds the rounding
    of summands as large as the other gradients are.
    """
    unit = max((float(t.abs().max()) for t in exact[results:] if t is not None and t.numel()), default=0.0)
    others: list[_Values] = []
    for i, (g, w, e) in enumerate(zip(got, want, exact, strict=True)):
        what = f"{'gradient' if i >= results else 'result'} {i} at {where}"
        try:
            _close(what, g, [w], e)
        except AssertionError:
            others = others or otherwise()
            _close(what, g, [w, *(o[i] for o in others)], e, unit if i >= results else 0.0)


def _close(what: str, got: torch.Tensor | None, own: _Values, exact: torch.Tensor | None, unit: float = 0.0) -> None:
    want = own[0]
    assert (got is None) == (want is None), what
    if got is None or want is None or exact is None:
        return
    assert got.shape == want.shape, f"{what}: {tuple(got.shape)}, not {tuple(want.shape)}"
    if not want.numel():
        return
    scale, eps = exact.abs().max().item(), torch.finfo(want.dtype).eps
    ours, *others = ((t.double() - exact).abs().max().item() for t in (got, *own) if t is not None)
    limit = 5 * max(others) + _SLACK * eps * max(scale, 1e-6) + (eps * unit if scale < eps * unit else 0)
    assert ours <= limit, f"{what}: error {ours:.2g}, eager's {max(others):.2g}, scale {scale:.2g}"


def main() -> int:
    """Run the cases; the exit code says whether any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--files", action="store_true", help="write compiled files for sizes within bounds, and run those"
    )
    parser.add_argument("--images", action="store_true", help="networks over images (``images.py``)")
    parser.add_argument("--list", action="store_true", help="print every case")
    given = parser.parse_args()
    from tests.fuzz.images import image_case  # which is made of what is above

    os.environ.setdefault("DCIR_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"dcir-fuzz-{os.getuid()}"))
    count = {"one program": 0, "several": 0, "nothing compiled": 0, "wrong": 0}
    for seed in range(given.seed, given.seed + given.cases):
        case = image_case(seed) if given.images else sized_case(seed)
        try:
            if given.files:
                with tempfile.TemporaryDirectory() as folder:
                    why = check_saved(case, folder)
                moving, others = int(not why), int(bool(why))
            else:
                moving, others, why = check_sized(case, train=seed % 2 == 1)
        except Exception as e:
            count["wrong"] += 1
            print(f"--- case {seed}: {type(e).__name__}: {str(e)[:400]}\n{case.source()}", flush=True)
            continue
        found = "nothing compiled" if not moving and not others else "one program" if not why else "several"
        count[found] += 1
        if given.list:
            print(seed, found, moving, others, why[:200], flush=True)
    print(", ".join(f"{number} {what}" for what, number in count.items()))
    return 1 if count["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
