"""Calls for sanitizers whose kernels take addresses from data or divide sums among jobs: odd sizes, nothing, both ends, outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dcir.codegen.compile import compile_network
from dcir.driver.assemble import assemble
from dcir.errors import IndexOutOfRange
from dcir.transforms.base import Pass
from dcir.transforms.pipelines import pipeline
from dcir.transforms.tier2_fusion.fuse_segments import FuseSegments
from dcir.transforms.tier2_fusion.group_scatters import GroupScatters
from tests.harness import check_close, double
from tests.on_host import on_host
from tests.transforms.imported import imported

ATEN = torch.ops.aten
LISTED: tuple[Pass, ...] = (GroupScatters(min_points=1, min_columns=1, stored=True), FuseSegments())
THREADS = 3


@dataclass(frozen=True)
class Case:
    """A function and its arguments; whole numbers among them are indices, which have to be below ``extents``.

    Attributes:
        fn, args: the call.
        extents: per index argument, how many values it may take.
        wrap: whether negative indices count from the end.
        passes: what the network is rewritten by.
        static: how many arguments from the last on are parameters.
        shows: field and value of a spec that the network has then: that it is the kernel which is meant.
    """

    fn: Callable[..., Any]
    args: tuple[torch.Tensor, ...]
    extents: tuple[int, ...] = ()
    wrap: bool = False
    passes: tuple[Pass, ...] = ()
    static: int = 0
    shows: tuple[str, Any] | None = None

    def check(self, what: str) -> list[torch.Tensor]:
        """Results as near to float64 as eager's; an index outside is an error whichever thread meets it. Gives the results."""
        done = imported(self.fn, *self.args)
        done.network.static |= set(done.network.inputs[len(self.args) - self.static :])
        for p in self.passes:
            p.apply(done.network)
        if self.shows is not None:
            field, value = self.shows
            assert any(getattr(op.spec, field, None) == value for op in done.network.ops()), what
        run = assemble(done, compile_network(on_host(done.network, THREADS)))
        got = run([_alone(a) for a in self.args])
        for g, w, e in zip(got, _flat(self.fn(*self.args)), _flat(self.fn(*double(self.args))), strict=True):
            check_close(g, w, e, factor=8.0, what=what)
        indices = [n for n, a in enumerate(self.args) if a.dtype == torch.int64]
        for n, extent in zip(indices, self.extents, strict=True):
            if not self.args[n].numel():
                continue
            for bad in (extent, -extent - 1 if self.wrap else -1, 2**62, -(2**62)):
                # One wrong number at each end, so that several threads find one at once.
                wrong = [_alone(a) for a in self.args]
                wrong[n].view(-1)[0] = wrong[n].view(-1)[-1] = bad
                with pytest.raises(IndexOutOfRange):
                    run(wrong)
        return got


def _alone(t: torch.Tensor) -> torch.Tensor:
    """The same tensor in a storage that ends where it does."""
    return t.detach().clone(memory_format=torch.preserve_format)


def _flat(out: Any) -> Sequence[torch.Tensor]:
    return list(out) if isinstance(out, tuple | list) else [out]


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed))


def places(*shape: int, below: int, negative: bool = False, seed: int = 3) -> torch.Tensor:
    """Random indices, the first and the last place among them."""
    low = -below if negative else 0
    index = torch.randint(low, below, shape, generator=torch.Generator().manual_seed(seed))
    flat = index.view(-1)
    if flat.numel() > 1:
        flat[1], flat[-1] = low, below - 1
    return index


def add(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.index_add(0, i, y)


def put(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.index_put((i,), y, accumulate=True)


def fold(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Every element with an index of its own, without the element that was there."""
    return x.scatter_reduce(0, i, y, "amax", include_self=False)


def messages(x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x).index_add(0, target, x[source].tanh())
    return total / torch.zeros(len(x)).to(x).index_add(0, target, torch.ones(len(target)).to(x)).clamp(min=1)[:, None]


def look_ups(gradient: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return ATEN.embedding_dense_backward.default(gradient, i, 301, 5, False)


def bags(weight: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor, scale: torch.Tensor) -> Any:
    """Sums and means of looked-up rows, bag by bag, with their gradients."""
    out, *parts = ATEN._embedding_bag.default(weight, index, offsets, False, 0, False, scale)
    mean, *more = ATEN._embedding_bag.default(weight, index, offsets, False, 1, False, None, False, 5)
    rows = len(weight)
    return (
        out,
        mean,
        ATEN._embedding_bag_backward.default(out, index, offsets, *parts, rows, False, 0, False, scale),
        ATEN._embedding_bag_backward.default(mean, index, offsets, *more, rows, False, 1, False, None, 5),
        ATEN._embedding_bag_per_sample_weights_backward.default(out, weight, index, offsets, parts[0], 0),
    )


def star(n: int, below: int) -> torch.Tensor:
    """Nearly all points at two places."""
    index = places(n, below=below)
    index[2 : n // 2], index[n // 2 : n - 9] = below // 3, below - 1
    return index


INDEXED = {
    "numbers": Case(add, (rand(301), places(20011, below=301), rand(20011)), (301,)),
    "numbers, listed": Case(add, (rand(301), places(20011, below=301), rand(20011)), (301,), passes=LISTED),
    "more places than numbers": Case(add, (rand(30011), places(9001, below=30011), rand(9001)), (30011,)),
    "rows of three": Case(add, (rand(301, 3), places(9001, below=301), rand(9001, 3)), (301,)),
    "rows of 33 in bf16, listed": Case(
        add, (rand(301, 33).bfloat16(), places(1501, below=301), rand(1501, 33).bfloat16()), (301,), passes=LISTED),
    "from the end": Case(put, (rand(301, 7), places(4001, below=301, negative=True), rand(4001, 7)), (301,), wrap=True),
    "from the end, listed": Case(
        put, (rand(301, 7), places(4001, below=301, negative=True), rand(4001, 7)), (301,), wrap=True, passes=LISTED),
    "two elements of own": Case(fold, (rand(301, 2), places(7001, 2, below=301), rand(7001, 2)), (301,)),
    "one place": Case(add, (rand(1, 5), places(4001, below=1), rand(4001, 5)), (1,), passes=LISTED),
    "no points": Case(add, (rand(301, 5), places(0, below=301), rand(0, 5)), (301,), passes=LISTED),
    "look-ups": Case(look_ups, (rand(17, 61, 19), places(17, 61, below=301)), (301,), passes=LISTED),
    "bags": Case(
        bags, (rand(301, 33), places(1501, below=301), torch.tensor([0, 0, 7, 7, 701, 1501, 1501]), rand(1501)), (301, 1502),
        passes=pipeline(2)),
    "messages": Case(
        messages, (rand(301, 33), places(1501, below=301), places(1501, below=301, seed=4)), (301, 301), wrap=True, passes=LISTED),
    "messages to two": Case(
        messages, (rand(301, 73), places(3001, below=301), star(3001, 301)), (301, 301), wrap=True, passes=LISTED),
}  # fmt: skip


def grouped(x: torch.Tensor, gradient: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A grouped convolution in channels-last, forward and backward."""
    groups = x.shape[1] // w.shape[1]
    y = F.conv2d(x, w, padding=1, groups=groups)
    dx, dw, _ = ATEN.convolution_backward.default(
        gradient, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups, [True, True, False]
    )
    return y, dx, dw


def kept_half(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Weights of a half type, widened as they are read."""
    return F.gelu(F.linear(x, w.to(x.dtype)))


def shared(do: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Any:
    """Attention to keys that three heads share, forward and backward, some hidden."""
    keys, values = (t[:, :, None].expand(2, 2, 3, *t.shape[2:]).reshape(2, 6, *t.shape[2:]) for t in (k, v))
    o, lse = ATEN._scaled_dot_product_flash_attention_for_cpu.default(q, keys, values, attn_mask=mask)
    dq, dk, dv = ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default(
        do, q, keys, values, o, lse, 0.0, False, attn_mask=mask
    )
    return o, dq, *(g.view(2, 2, 3, *k.shape[2:]).sum(2) for g in (dk, dv))


def causal(do: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    keys, values = (t[:, :, None].expand(2, 2, 3, *t.shape[2:]).reshape(2, 6, *t.shape[2:]) for t in (k, v))
    o, lse = ATEN._scaled_dot_product_flash_attention_for_cpu.default(q, keys, values, 0.0, True)
    dq, dk, dv = ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default(
        do, q, keys, values, o, lse, 0.0, True
    )
    return o, dq, *(g.view(2, 2, 3, *k.shape[2:]).sum(2) for g in (dk, dv))


def last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def hidden(queries: int, keys: int) -> torch.Tensor:
    """A mask that lets every query see the first key, and some of the others."""
    mask = torch.where(rand(2, 1, queries, keys) > 0, 0.0, -torch.inf)
    mask[..., 0] = 0
    return mask


ALL = pipeline(4)
DENSE = {
    **{f"groups of {c}": Case(
        grouped, (last(rand(2, 6 * c, 9, 13)), last(rand(2, 6 * c, 9, 13, seed=1)), rand(6 * c, c, 3, 3)),
        passes=ALL, static=1, shows=("groups", 6)) for c in (2, 5)},
    **{f"weights kept in {name}, {m} rows": Case(
        kept_half, (rand(m, 131), rand(77, 131).to(dtype)), passes=ALL, static=1, shows=("stored", name))
        for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)) for m in (1, 43)},
    "heads that share keys, masked": Case(
        shared, (rand(2, 6, 37, 16, seed=4), rand(2, 6, 37, 16), rand(2, 2, 41, 16), rand(2, 2, 41, 16, seed=1), hidden(37, 41)),
        passes=ALL, shows=("group", 3)),
    "heads that share keys, in order": Case(
        causal, (rand(2, 6, 37, 16, seed=4), rand(2, 6, 37, 16), rand(2, 2, 37, 16), rand(2, 2, 37, 16, seed=1)),
        passes=ALL, shows=("group", 3)),
}  # fmt: skip
CASES = INDEXED | DENSE
