"""The rule by which results are compared: against float64, at most a few times the error that PyTorch itself makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

FACTOR = 3.0
_UNITS = 4.0


@dataclass
class Comparison:
    """Whether results agree.

    Attributes:
        ok: every result is within its tolerance.
        error, tolerance: of the result that comes nearest to its tolerance, or exceeds it the most.
        details: per result, its error next to PyTorch's own.
    """

    ok: bool = True
    error: float = 0.0
    tolerance: float = 0.0
    details: dict[str, str] = field(default_factory=dict)


def compare(names: Sequence[str], got: Sequence[Any], want: Sequence[Any], exact: Sequence[Any]) -> Comparison:
    """Compare results with PyTorch's, given the same in float64.

    A real result may be off by ``FACTOR`` times PyTorch's own error plus a few units in the last place of the largest
    value; NaN and infinities must be at the same places. Other results must be equal.
    """
    out = Comparison()
    worst = -1.0
    for name, g, w, e in zip(names, got, want, exact, strict=True):
        error, own, tolerance = _distance(g, w, e)
        if error > tolerance:
            out.ok = False
        ratio = error / tolerance if tolerance else (float("inf") if error else 0.0)
        if ratio > worst:
            worst, out.error, out.tolerance = ratio, error, tolerance
        out.details[name] = f"error {error:.3g}, PyTorch's own {own:.3g}, tolerance {tolerance:.3g}"
    return out


def _distance(got: Any, want: Any, exact: Any) -> tuple[float, float, float]:
    """Our error, PyTorch's, and the tolerance; infinite where the results cannot be compared."""
    far = (float("inf"), 0.0, 0.0)
    if not isinstance(want, Tensor):
        return (0.0, 0.0, 0.0) if got == want else far
    if not isinstance(got, Tensor) or got.shape != want.shape or got.dtype != want.dtype:
        return far
    if not (want.is_floating_point() or want.is_complex()):
        return float((got != want).sum()), 0.0, 0.0
    if want.is_complex():
        got, want, exact = (torch.view_as_real(t.resolve_conj()) for t in (got, want, exact))
    g, w, e = got.double(), want.double(), exact.double()
    finite = w.isfinite() & e.isfinite()
    if not torch.equal(g.isnan(), w.isnan()) or not torch.equal(g[w.isinf()], w[w.isinf()]):
        return far
    if not finite.any():
        return 0.0, 0.0, 0.0
    own = float((w - e)[finite].abs().max())
    scale = float(e[finite].abs().max())
    return float((g - e)[finite].abs().max()), own, FACTOR * own + _UNITS * torch.finfo(want.dtype).eps * scale


def in_double(graph: fx.GraphModule, arguments: Sequence[Any]) -> list[Any]:
    """The results of an ATen graph with all real arithmetic in float64."""
    with torch.no_grad():
        return list(_Double(graph).run(*(_widen(a) for a in arguments)))


class _Double(fx.Interpreter):
    """Runs every operator on float64 operands, and takes requests for narrower types as requests for float64."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        call: Callable[..., Any] = super().call_function
        return call(target, fx.node.map_aggregate(args, _widen), fx.node.map_aggregate(kwargs, _widen))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _widen(super().get_attr(target, args, kwargs))


def _widen(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else torch.complex128 if value.is_complex else value
    if not isinstance(value, Tensor):
        return value
    return value.double() if value.is_floating_point() else value.to(torch.complex128) if value.is_complex() else value
