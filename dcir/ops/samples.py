"""Makers of sample arguments shared by the operator pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from dcir.ops.registry import Sample


def generator(seed: int = 0) -> torch.Generator:
    """A seeded generator, so that every run tests the same numbers."""
    return torch.Generator().manual_seed(seed)


def rand(
    *shape: int, dtype: torch.dtype = torch.float32, low: float = -2.0, high: float = 2.0, seed: int = 0
) -> torch.Tensor:
    """Uniform numbers in [low, high)."""
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator(seed)) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(int(low), max(int(high), int(low) + 1), shape, generator=generator(seed)).to(dtype)
    return (torch.rand(shape, generator=generator(seed), dtype=torch.float64) * (high - low) + low).to(dtype)


def specials(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values where functions differ: zeros, infinities, NaN, tiny, huge."""
    inf = float("inf")
    return torch.tensor(
        [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-8, -1e-8, 30.0, -30.0, inf, -inf, float("nan"), 3.5], dtype=dtype
    )


def unary(
    *, low: float = -2.0, high: float = 2.0, ints: bool = False, special: bool = True
) -> Callable[[], Iterable[Sample]]:
    """Samples of an operator on one tensor: shapes, layouts, types, special values."""

    def make() -> Iterable[Sample]:
        yield Sample((rand(3, 37, low=low, high=high),))
        yield Sample((rand(2, 5, 7, low=low, high=high).permute(2, 0, 1),), name="permuted")
        yield Sample((rand(4, 6, low=low, high=high)[:, ::2],), name="strided")
        yield Sample((rand(low=low, high=high),), name="scalar")
        yield Sample((rand(0, 4),), name="empty")
        yield Sample((rand(130, low=low, high=high, dtype=torch.float64),), name="double")
        yield Sample((rand(33, low=low, high=high, dtype=torch.bfloat16),), name="bf16")
        yield Sample((rand(33, low=low, high=high, dtype=torch.float16),), name="f16")
        if special:
            yield Sample((specials(),), name="special values")
        if ints:
            yield Sample((rand(3, 9, dtype=torch.int64, low=-5, high=6),), name="int64")

    return make


def binary(
    *, low: float = -2.0, high: float = 2.0, ints: bool = True, scalar: bool = True
) -> Callable[[], Iterable[Sample]]:
    """Samples of an operator on two tensors: broadcasting, mixed types, numbers."""

    def make() -> Iterable[Sample]:
        a = rand(3, 37, low=low, high=high)
        yield Sample((a, rand(3, 37, low=low, high=high, seed=1)))
        yield Sample((a, rand(37, low=low, high=high, seed=1)), name="broadcast row")
        yield Sample((a, rand(3, 1, low=low, high=high, seed=1)), name="broadcast column")
        yield Sample((a, rand(low=low, high=high, seed=1)), name="broadcast scalar tensor")
        yield Sample((a.t(), rand(37, 3, low=low, high=high, seed=1)), name="transposed")
        yield Sample((a.bfloat16(), rand(3, 37, low=low, high=high, seed=1).bfloat16()), name="bf16")
        yield Sample((a, rand(3, 37, low=low, high=high, seed=1).double()), name="float and double")
        if ints:
            yield Sample((a, rand(3, 37, dtype=torch.int64, low=1, high=6)), name="float and int")
            yield Sample(
                (rand(9, dtype=torch.int64, low=-5, high=6), rand(9, dtype=torch.int64, low=1, high=6)), name="int64"
            )
        if scalar:
            yield Sample((a, 1.5), name="number")

    return make
