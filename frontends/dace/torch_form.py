"""Loop nests over named arrays as PyTorch functions, which PyTorch differentiates and traces like any other.

A load is a slice of its array along the loops it moves with (an index where no slice says it), a statement the torch function of that
name over all points at once, a reduce one over the inner loops, a store an assignment to a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dcir.errors import Unsupported
from dcir.ir.dace.places import Place, place_of
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Operand
from dcir.ir.statements import Access, Cast, Compute, Const, Gather, Index, Load, Narrow, Reduce, Statement, Store
from dcir.ops.torch_types import FROM_NAME

Arrays = dict[str, torch.Tensor]

_SAME = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "tanh",
    "sigmoid",
    "erf",
    "erfc",
    "erfinv",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "floor",
    "ceil",
    "trunc",
    "round",
    "neg",
    "abs",
    "sign",
    "pow",
    "fmin",
    "fmax",
    "fmod",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "add",
    "sub",
    "mul",
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
    "copysign",
    "nextafter",
    "hypot",
    "lgamma",
    "digamma",
    "where",
]
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _SAME},
    "div": torch.true_divide, "max": torch.maximum, "min": torch.minimum, "mod": torch.remainder, "floor_div": torch.floor_divide,
    "idiv_floor": torch.floor_divide, "idiv_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "and": torch.logical_and, "or": torch.logical_or, "xor": torch.logical_xor, "not": torch.logical_not,
    "bitand": torch.bitwise_and, "bitor": torch.bitwise_or, "bitxor": torch.bitwise_xor, "bitnot": torch.bitwise_not,
    "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift, "fma": lambda a, b, c: a * b + c,
}  # fmt: skip
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum, "max": torch.amax, "min": torch.amin, "any": torch.any, "all": torch.all,
}  # fmt: skip


def run_nest(nest: LoopNest, ins: Sequence[Operand], outs: Sequence[Operand], arrays: Arrays) -> None:
    """Compute a nest over arrays, which must have rows without gaps; what it writes takes the place of what was there.

    Raises:
        Unsupported: a statement that torch has no function for.
    """
    values: list[torch.Tensor] = []
    dims, outer = nest.dims, len(nest.outer)
    device = next(iter(arrays.values())).device if arrays else torch.device("cpu")
    for s in nest.body:
        args = [values[a] for a in s.args]
        values.append(_value(s, args, nest, ins, arrays, device))
    for s, value in zip(nest.body, values, strict=True):
        if isinstance(s, Store):
            _store(s, value, dims, outer, outs[s.operand], arrays)


def _value(
    s: Statement, args: Sequence[torch.Tensor], nest: LoopNest, ins: Sequence[Operand], arrays: Mapping[str, torch.Tensor], device: Any
) -> torch.Tensor:  # fmt: skip
    """A statement at all points: a tensor with a dimension for each loop, of extent 1 where it does not move."""
    dims, outer = nest.dims, len(nest.outer)
    ones = (1,) * len(dims)
    dtype = FROM_NAME[s.dtype]
    if isinstance(s, Const):
        return torch.full(ones, s.value, dtype=dtype, device=device)
    if isinstance(s, Index):
        return torch.arange(dims[s.dim], device=device).reshape([n if d == s.dim else 1 for d, n in enumerate(dims)])
    if isinstance(s, Load | Gather):
        return _read(s, args, dims, ins[s.operand], arrays).to(dtype)
    if isinstance(s, Store):
        return args[0]
    if isinstance(s, Cast):
        return args[0].to(dtype)
    if isinstance(s, Narrow):
        return args[0].to(FROM_NAME[s.storage]).to(dtype)
    if isinstance(s, Reduce):
        return _reduced(s, args[0], dims, outer)
    assert isinstance(s, Compute)
    if s.op not in _FUNCTIONS:
        raise Unsupported.collect([(f"the scalar operator {s.op} in a function of torch", "")])
    return _FUNCTIONS[s.op](*args)  # type: ignore[no-any-return]


def _reduced(s: Reduce, value: torch.Tensor, dims: Sequence[int], outer: int) -> torch.Tensor:
    inner = list(range(outer, len(dims)))
    full = value.expand([value.shape[d] if d < outer else n for d, n in enumerate(dims)])
    if not inner:
        return full
    if s.kind == "prod":
        for d in inner:
            full = full.prod(d, keepdim=True)
        return full
    if s.kind not in _REDUCTIONS:
        raise Unsupported.collect([(f"the reduction {s.kind} in a function of torch", "")])
    return _REDUCTIONS[s.kind](full, dim=inner, keepdim=True)  # type: ignore[no-any-return]


def _place(s: Access, dims: Sequence[int], o: Operand, array: torch.Tensor) -> Place | None:
    shape = tuple(array.shape) or (1,)
    steps, step = [], 1
    for n in reversed(shape):
        steps.append(step)
        step *= n
    found = place_of(o.offset, s.strides, dims, shape, steps[::-1])
    if found is None:
        return None
    moved = [[d for d, q in enumerate(along) if q] for along in found.steps]
    once = all(len(m) <= 1 for m in moved) and len({m[0] for m in moved if m}) == sum(map(len, moved))
    return found if once and all(q >= 0 for along in found.steps for q in along) else None


def _slices(place: Place, dims: Sequence[int]) -> tuple[tuple[Any, ...], list[int]]:
    """The index of an array's part, and the loops that its dimensions are."""
    index: list[Any] = []
    loops: list[int] = []
    for start, along in zip(place.starts, place.steps, strict=True):
        d = next((d for d, q in enumerate(along) if q), None)
        if d is None:
            index.append(start)
        else:
            index.append(slice(start, start + along[d] * (dims[d] - 1) + 1, along[d]))
            loops.append(d)
    return tuple(index), loops


def _read(
    s: Load | Gather, args: Sequence[torch.Tensor], dims: Sequence[int], o: Operand, arrays: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    array = arrays[o.data]
    if not args and (place := _place(s, dims, o, array)) is not None:
        index, loops = _slices(place, dims)
        part = array.reshape(array.shape or (1,))[index]
        part = part.permute(sorted(range(len(loops)), key=loops.__getitem__))
        return part.reshape([n if d in loops else 1 for d, n in enumerate(dims)])
    at = _addresses(s.strides, o.offset, dims, array.device)
    indices = args[: len(s.indices)]
    guard = args[len(s.indices) :]
    inside = guard[0] if guard else None
    if isinstance(s, Gather):
        for x, extent, step in zip(indices, s.extents, s.steps, strict=True):
            good = (x >= 0) & (x < extent)
            inside = good if inside is None else inside & good
            at = at + x * step
    flat = array.reshape(-1)
    if inside is None:
        return flat[at]
    found = flat[torch.where(inside, at, 0).clamp(0, flat.numel() - 1)]
    return torch.where(inside, found, guard[1].to(found.dtype) if guard else found.new_zeros(()))


def _addresses(strides: Sequence[int], offset: int, dims: Sequence[int], device: Any) -> torch.Tensor:
    at = torch.full((1,) * len(dims), offset, dtype=torch.int64, device=device)
    for d, (n, step) in enumerate(zip(dims, strides, strict=True)):
        if step:
            at = at + step * torch.arange(n, device=device).reshape([n if k == d else 1 for k in range(len(dims))])
    return at


def _store(s: Store, value: torch.Tensor, dims: Sequence[int], outer: int, o: Operand, arrays: Arrays) -> None:
    array = arrays[o.data]
    value = value.to(array.dtype)
    place = _place(s, dims, o, array)
    kept = [d for d, step in enumerate(s.strides) if step and dims[d] > 1]
    value = value.expand([n if d in kept else value.shape[d] for d, n in enumerate(dims)])
    value = value[tuple(slice(None) if d in kept else 0 for d in range(len(dims)))]
    if place is None:
        at = _addresses(s.strides, o.offset, dims, array.device).reshape(value.shape)
        arrays[o.data] = array.reshape(-1).index_put((at,), value).reshape(array.shape)
        return
    index, loops = _slices(place, dims)
    value = value.permute([kept.index(d) for d in loops])
    if all(
        (isinstance(i, slice) and i == slice(0, n, 1)) or (i == 0 and n == 1)
        for i, n in zip(index, array.shape or (1,), strict=True)
    ):
        arrays[o.data] = value.reshape(array.shape)
        return
    changed = array.clone().reshape(array.shape or (1,))
    changed[index] = value
    arrays[o.data] = changed.reshape(array.shape)
