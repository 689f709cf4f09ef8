"""Element types that generated code only moves and converts, or that only torch can read: no model is refused for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dcir
from dcir.driver import api
from dcir.errors import Unsupported

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
FLOAT8 = (
    torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
)  # fmt: skip
COMPLEX = (torch.complex64, torch.complex128)


def _sample(dtype: torch.dtype, rows: int = 4) -> Tensor:
    """Numbers over the whole range of the type."""
    generator = torch.Generator().manual_seed(0)
    if dtype.is_complex:
        return torch.randn(rows, 6, dtype=dtype, generator=generator)
    bits = torch.randint(0, 256, (rows, 6 * dtype.itemsize), generator=generator).to(torch.uint8)
    return bits.view(dtype)


def _bits(value: Tensor) -> Tensor:
    plain = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    return plain.contiguous().view(torch.uint8)


def _same(got: Any, want: Any) -> None:
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for g, w in pairs:
        assert (g.shape, g.dtype, g.stride()) == (w.shape, w.dtype, w.stride())
        assert torch.equal(_bits(g), _bits(w))


def _compiled(function: Callable[..., Any], *inputs: Tensor, **options: Any) -> Any:
    fast = dcir.optimize(function, **options)
    with torch.no_grad():
        _same(fast(*inputs), function(*inputs))
    assert not fast.dcir.explain().breaks
    assert len(fast.dcir.explain().graphs) == 1
    return fast.dcir.explain()


MOVES: dict[str, Callable[[Tensor], Any]] = {
    "views": lambda x: (x.t(), x[:, 1:4], x),
    "a copy in another order": lambda x: x.t().reshape(-1),
    "parts joined": lambda x: torch.cat([x[:, 2:], x[:1, :4], x.flip(0)[:, :4]]),
    "repeated": lambda x: x.repeat(2, 3),
    "picked": lambda x: x[torch.tensor([2, 0, 2])],
    "chosen": lambda x: torch.where(torch.arange(6) % 2 == 0, x, x[:1]),
    "nothing": lambda x: torch.cat([x[:0], x[:0]]),
}


@pytest.mark.parametrize("dtype", [*UNSIGNED, *FLOAT8, *COMPLEX], ids=str)
def test_elements_are_moved(dtype: torch.dtype) -> None:
    def moved(x: Tensor) -> tuple[Any, ...]:
        results = [move(x) for move in MOVES.values()]
        return tuple(t for r in results for t in (r if isinstance(r, tuple) else (r,)))

    _compiled(moved, _sample(dtype))


def test_unsigned_integers_move_and_convert_in_generated_code() -> None:
    def converted(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        wide = a.to(torch.int64) * b.to(torch.int64) + c.t().reshape(4, 6).to(torch.int64)
        results = [wide.to(dtype) for dtype in (*UNSIGNED, torch.int8, torch.float32)]
        return *results, a.to(torch.bool), b.to(torch.float64), c.to(torch.float32), b.to(torch.uint16)

    inputs = (_sample(torch.uint16), _sample(torch.uint32), _sample(torch.uint64, 6)[:, :4])
    for level in (0, 4):
        report = _compiled(converted, *inputs, level=level)
        assert not report.fallbacks
        assert report.graphs[0].operators


def test_floats_become_unsigned_in_torch() -> None:
    x = torch.tensor([0.0, 1.5, 254.9, 65535.0])
    report = _compiled(lambda x: (x.to(torch.uint16), x.to(torch.uint64)), x)
    assert [name for name, _ in report.fallbacks] == ["aten._to_copy.default"] * 2


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_is_computed_in_torch_and_listed(dtype: torch.dtype) -> None:
    def quantized(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(y.to(torch.float32)) + (x * 2).to(dtype).to(torch.float32)

    report = _compiled(
        quantized, torch.rand(4, 6) + 0.5, _sample(dtype).to(torch.float32).nan_to_num(1.0).abs().to(dtype)
    )
    assert {name for name, _ in report.fallbacks} == {"aten._to_copy.default"}
    assert sum(g.operators for g in report.graphs) > len(report.fallbacks)
    with pytest.raises(Unsupported, match=r"aten\._to_copy"):
        dcir.optimize(quantized, strict=True)(torch.rand(4, 6), torch.rand(4, 6).to(dtype))


def test_strict_refuses_copies_that_torch_makes() -> None:
    with pytest.raises(Unsupported, match=r"aten\.clone"):
        dcir.optimize(lambda x: x.t().reshape(-1), strict=True)(_sample(torch.float8_e5m2))


def test_a_gradient_passes_float8() -> None:
    layer = nn.Linear(6, 5)
    fast = dcir.optimize(nn.Sequential(layer, _Rounded()))
    x = torch.randn(4, 6)
    grads = []
    for model in (fast, nn.Sequential(layer, _Rounded())):
        layer.zero_grad()
        model(x).square().sum().backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    torch.testing.assert_close(grads[0], grads[1])


class _Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float8_e4m3fn).to(torch.float32)


def test_passes_are_checked_with_such_types() -> None:
    def mixed(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        return x.to(torch.float32).sin(), y.to(torch.int64) + 1, x.t().reshape(-1), z.t().reshape(-1)

    inputs = (_sample(torch.float8_e4m3fnuz)[:, :4], _sample(torch.uint32), _sample(torch.complex64))
    dcir.optimize(mixed, verify="passes")(*inputs)


class _Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.randn(6, 6).to(torch.float8_e5m2))
        self.register_buffer("places", torch.arange(6).to(torch.uint16))
        self.register_buffer("turns", torch.randn(6, dtype=torch.complex64))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        product = x @ self.low.to(torch.float32)  # type: ignore[operator]
        return product, y.t().reshape(-1), self.turns * self.places.to(torch.int64)  # type: ignore[operator]


@pytest.mark.parametrize("dtype", [torch.uint64, torch.float8_e8m0fnu], ids=str)
def test_a_file_holds_them(tmp_path: Path, dtype: torch.dtype) -> None:
    model, inputs = _Weights(), (torch.randn(3, 6), _sample(dtype))
    api.save(model, inputs, tmp_path / "net.dcir")
    got, want = dcir.load(tmp_path / "net.dcir")(*inputs), model(*inputs)
    torch.testing.assert_close(got[0], want[0])
    assert torch.equal(_bits(got[1]), _bits(want[1]))
    torch.testing.assert_close(got[2], want[2])
