"""Operators on host values: shape arithmetic in plain Python, so that tracers see numbers instead of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from dcir.errors import InvalidModel
from dcir.frontends.onnx.ops.reduce import axes_of
from dcir.frontends.onnx.ops.shape import check_slice, flat_axis, new_shape, permutation, shape_range
from dcir.frontends.onnx.registry import Node, host_op
from dcir.frontends.onnx.tensors import NARROW_TYPES
from dcir.frontends.onnx.values import (
    TEXT,
    WIDE_UNSIGNED,
    Host,
    axes_of_list,
    axis_of,
    cast_host,
    host_scalar,
    host_vector,
    ints,
    rounded,
    scalar,
    torch_dtype,
)

MAX_HOST = 1024
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _at(value: Host, index: tuple[int, ...]) -> Any:
    """The element at `index`, read with broadcasting."""
    offset = len(index) - len(value.shape)
    flat = 0
    for i, stride in enumerate(_strides(value.shape)):
        flat += 0 if value.shape[i] == 1 else index[offset + i] * stride
    return value.values[flat]


def _indices(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    result: list[tuple[int, ...]] = [()]
    for d in shape:
        result = [(*index, i) for index in result for i in range(d)]
    return result


def _broadcast(*values: Host) -> tuple[int, ...] | None:
    rank = max(len(v.shape) for v in values)
    shape = [1] * rank
    for v in values:
        for i, d in enumerate(v.shape):
            at = rank - len(v.shape) + i
            if d != 1 and shape[at] not in (1, d):
                return None
            shape[at] = d if d != 1 else shape[at]
    return tuple(shape)


def _elementwise(function: Callable[..., Any], dtype: torch.dtype | None = None) -> Callable[..., Any]:
    def call(node: Node, *operands: Host) -> Any:
        if node.version < 7 and node.get("broadcast"):
            return NotImplemented
        shape = _broadcast(*operands)
        if shape is None or (math.prod(shape) > MAX_HOST and operands[0].dtype is not TEXT):
            return NotImplemented
        if len(shape) <= 1 and all(v.shape == shape for v in operands):
            values = tuple(function(*parts) for parts in zip(*(v.values for v in operands), strict=True))
        else:
            values = tuple(function(*(_at(v, index) for v in operands)) for index in _indices(shape))
        kind = dtype or operands[-1].dtype
        return Host(tuple(_wrapped(v, kind) for v in values), shape, kind)

    return call


def _wrapped(value: Any, dtype: Any) -> Any:
    """A whole number as its element type holds it; of a symbolic one nothing is asked."""
    if type(value) is not int or not (dtype in _INTEGERS or dtype in WIDE_UNSIGNED):
        return value
    info = torch.iinfo(dtype)
    return value if info.min <= value <= info.max else (value - info.min) % (info.max - info.min + 1) + info.min


def _rounding(function: Callable[..., Any]) -> Callable[..., Any]:
    """Numbers of the element type, as the operator on tensors has them after each step."""
    elementwise = _elementwise(function)

    def call(node: Node, *operands: Host) -> Any:
        result = elementwise(node, *operands)
        if result is NotImplemented or result.dtype is TEXT or not result.dtype.is_floating_point:
            return result
        return result._replace(values=tuple(rounded(v, result.dtype) for v in result.values))

    return call


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        if b == 0:
            return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
        return a / b
    if b == 0:
        raise InvalidModel("a shape computation divides by zero")
    # ONNX truncates towards zero, Python rounds down. Each sign is asked for alone: symbolic answers cannot be compared.
    if b < 0:
        a, b = -a, -b
    return a // b if a >= 0 else -((-a) // b)


def _modulo(node: Node, a: Host, b: Host) -> Any:
    def one(x: Any, y: Any) -> Any:
        if y == 0:
            raise InvalidModel("a shape computation divides by zero")
        return x - _divide(x, y) * y if node["fmod"] else x % y

    return NotImplemented if a.dtype not in _INTEGERS else _elementwise(one)(node, a, b)


def _first_nan(values: tuple[Any, ...]) -> float | None:
    return next((v for v in values if isinstance(v, float) and math.isnan(v)), None)


def _power(node: Node, a: Host, b: Host) -> Any:
    # Powers of file-given numbers can be astronomically long; only small exponents stay here.
    if any(not isinstance(v, (int, float)) or not 0 <= v <= 8 for v in b.values):
        return NotImplemented
    if a.dtype not in _INTEGERS:
        return NotImplemented
    whole = all(v == int(v) for v in b.values)
    if not whole and any(type(v) is not int for v in a.values):
        return NotImplemented
    # A power has the type of its base, whatever the exponent's.
    return _elementwise(lambda x, y: x ** int(y) if whole else int(x**y), a.dtype)(node, a, b)


host_op("Add")(_rounding(lambda a, b: a + b))
host_op("Sub")(_rounding(lambda a, b: a - b))
host_op("Mul")(_rounding(lambda a, b: a * b))
host_op("Div")(_rounding(_divide))
host_op("Mod")(_modulo)
host_op("Pow")(_power)
host_op("Max")(_elementwise(lambda *v: _first_nan(v) or max(v)))
host_op("Min")(_elementwise(lambda *v: _first_nan(v) or min(v)))
host_op("Neg")(_elementwise(lambda a: -a))
host_op("Abs")(_elementwise(lambda a: abs(a)))
host_op("Sqrt")(_rounding(lambda a: math.sqrt(a) if not a < 0 else math.nan))
host_op("Floor")(_elementwise(lambda a: float(math.floor(a)) if isinstance(a, float) and math.isfinite(a) else a))
host_op("Ceil")(_elementwise(lambda a: float(math.ceil(a)) if isinstance(a, float) and math.isfinite(a) else a))
host_op("StringConcat")(_elementwise(lambda a, b: a + b))
host_op("Equal")(_elementwise(lambda a, b: a == b, torch.bool))
host_op("Greater")(_elementwise(lambda a, b: a > b, torch.bool))
host_op("Less")(_elementwise(lambda a, b: a < b, torch.bool))
host_op("GreaterOrEqual")(_elementwise(lambda a, b: a >= b, torch.bool))
host_op("LessOrEqual")(_elementwise(lambda a, b: a <= b, torch.bool))
host_op("And")(_elementwise(lambda a, b: a and b, torch.bool))
host_op("Or")(_elementwise(lambda a, b: a or b, torch.bool))
host_op("Not")(_elementwise(lambda a: not a, torch.bool))
host_op("Where")(_elementwise(lambda c, a, b: a if c else b))


@host_op("Identity")
def identity(node: Node, x: Host) -> Host:
    return x


@host_op("Shape")
def shape(node: Node, x: Host) -> Host:
    return host_vector(x.shape[shape_range(node, len(x.shape))])


@host_op("Size")
def size(node: Node, x: Host) -> Host:
    return host_scalar(len(x.values))


@host_op("Cast")
def cast(node: Node, x: Host) -> Any:
    return cast_host(x, torch_dtype(node["to"])) if node["to"] not in NARROW_TYPES else NotImplemented


@host_op("CastLike")
def cast_like(node: Node, x: Host, target: Host) -> Any:
    return cast_host(x, target.dtype) if 1 not in node.narrow else NotImplemented


host_op("Relu")(_elementwise(lambda a: max(a, 0.0) if isinstance(a, float) else max(a, 0)))


@host_op("Reshape")
def reshape(node: Node, x: Host, target: Host | None = None) -> Any:
    if target is None:
        return NotImplemented
    wanted = new_shape(node, x.shape, ints(target))
    if any(isinstance(d, int) and d < -1 for d in wanted) or wanted.count(-1) > 1:
        raise InvalidModel(f"operand or attribute 'shape' is {wanted}", hint="sizes from 0, one of them -1 at most")
    if wanted.count(-1) == 1:
        rest = math.prod([d for d in wanted if d != -1])
        wanted[wanted.index(-1)] = len(x.values) // rest if rest else 0
    if math.prod(wanted) != len(x.values):
        hint = f"sizes whose product is {len(x.values)}"
        raise InvalidModel(f"shape {list(x.shape)} cannot become {wanted} (operand or attribute 'shape')", hint=hint)
    return Host(x.values, tuple(wanted), x.dtype, None)


@host_op("Flatten")
def flatten(node: Node, x: Host) -> Any:
    axis = flat_axis(node, len(x.shape))
    return Host(x.values, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), x.dtype)


@host_op("Squeeze")
def squeeze(node: Node, x: Host, axes: Host | None = None) -> Host:
    dims = node.get("axes") if axes is None else ints(axes)
    gone = {i for i, d in enumerate(x.shape) if d == 1} if dims is None else set(axes_of_list(dims, len(x.shape)))
    if any(x.shape[d] != 1 for d in gone):
        raise InvalidModel(
            f"axes {sorted(gone)} of shape {list(x.shape)} cannot be squeezed", hint="attribute or operand 'axes'"
        )
    return Host(x.values, tuple(d for i, d in enumerate(x.shape) if i not in gone), x.dtype)


@host_op("Unsqueeze")
def unsqueeze(node: Node, x: Host, axes: Host | None = None) -> Host:
    dims = list(node["axes"]) if axes is None else ints(axes)
    new = list(x.shape)
    for axis in sorted(axes_of_list(dims, len(x.shape) + len(dims))):
        new.insert(axis, 1)
    return Host(x.values, tuple(new), x.dtype)


@host_op("Transpose")
def transpose(node: Node, x: Host) -> Host:
    perm = permutation(node, len(x.shape))
    new = tuple(x.shape[p] for p in perm)
    source = [tuple(index[perm.index(i)] for i in range(len(perm))) for index in _indices(new)]
    return Host(tuple(_at(x, index) for index in source), new, x.dtype)


@host_op("Concat")
def concat(node: Node, *operands: Host) -> Any:
    if (
        any(len(v.shape) != 1 for v in operands)
        or node.get("axis", 1) not in (0, -1)
        or sum(len(v.values) for v in operands) > MAX_HOST
    ):
        return NotImplemented
    return host_vector([x for v in operands for x in v.values])._replace(dtype=operands[0].dtype)


@host_op("Gather")
def gather(node: Node, x: Host, index: Host) -> Any:
    axis = axis_of(node["axis"], len(x.shape))
    if len(x.shape) != 1 and len(index.shape) != 0:
        return NotImplemented
    length = x.shape[axis]
    picks = []
    for i in index.values:
        if not -length <= i < length:
            raise InvalidModel(f"index {i} is out of range for {length} elements")
        picks.append(i + length if i < 0 else i)
    if len(x.shape) == 1:
        return Host(tuple(x.values[i] for i in picks), index.shape, x.dtype)
    new = x.shape[:axis] + x.shape[axis + 1 :]
    source = [(*at[:axis], picks[0], *at[axis:]) for at in _indices(new)]
    return Host(tuple(_at(x, at) for at in source), new, x.dtype)


@host_op("Slice")
def slice_(node: Node, x: Host, *operands: Host | None) -> Any:
    if len(x.shape) == 0:
        return NotImplemented
    given = [ints(v) if v is not None else None for v in operands] + [None] * 4
    starts, ends = (given[0], given[1]) if operands else (list(node["starts"]), list(node["ends"]))
    axes = given[2] if operands else node.get("axes")
    axes = list(range(len(starts or ()))) if axes is None else axes
    steps = [1] * len(axes) if given[3] is None else given[3]
    check_slice(starts or (), ends or (), axes, steps)
    chosen = [list(range(d)) for d in x.shape]
    for start, end, dim, step in zip(starts or (), ends or (), axes_of_list(axes, len(x.shape)), steps, strict=True):
        if step < 0 and start < -x.shape[dim]:
            start = -x.shape[dim]  # ONNX begins at the first element then, Python before it
        chosen[dim] = chosen[dim][slice(start, end if step > 0 or end >= -x.shape[dim] else None, step)]
    new = tuple(len(c) for c in chosen)
    picks = [tuple(c[i] for c, i in zip(chosen, at, strict=True)) for at in _indices(new)]
    return Host(tuple(_at(x, at) for at in picks) if 0 not in new else (), new, x.dtype)


@host_op("Split")
def split(node: Node, x: Host, lengths: Host | None = None) -> Any:
    if len(x.shape) != 1:
        return NotImplemented
    sizes = ints(lengths) if lengths is not None else node.get("split")
    if sizes is None:
        count = node.get("num_outputs", node.outputs)
        part = -(-len(x.values) // count)
        sizes = [part] * (count - 1) + [len(x.values) - part * (count - 1)]
    if sum(sizes) != len(x.values) or any(n < 0 for n in sizes) or len(sizes) < node.outputs:
        message = f"lengths {list(sizes)} (attribute or operand 'split') do not divide {len(x.values)} numbers"
        raise InvalidModel(message, hint=f"{node.outputs} numbers from 0 whose sum is {len(x.values)}")
    parts, at = [], 0
    for length in sizes:
        parts.append(host_vector(x.values[at : at + length])._replace(dtype=x.dtype))
        at += length
    return tuple(parts)


@host_op("Range")
def range_(node: Node, start: Host, limit: Host, delta: Host) -> Any:
    numbers = (scalar(start), scalar(limit), scalar(delta))
    if start.dtype not in _INTEGERS or any(type(v) is not int for v in numbers) or numbers[2] == 0:
        return NotImplemented
    counted = range(*numbers)
    if len(counted) > 64:
        return NotImplemented
    return host_vector(tuple(counted))._replace(dtype=start.dtype)


@host_op("ConstantOfShape")
def constant_of_shape(node: Node, target: Host) -> Any:
    dims = ints(target)
    fill = node.get("value")
    if fill is None or fill.dtype not in _INTEGERS or any(type(d) is not int for d in dims) or math.prod(dims) > 64:
        return NotImplemented
    return Host((scalar(fill),) * math.prod(dims), tuple(dims), fill.dtype)


@host_op("Expand")
def expand(node: Node, x: Host, target: Host) -> Any:
    dims = ints(target)
    if any(type(d) is not int for d in dims) or math.prod(dims) > 64:
        return NotImplemented
    new = _broadcast(x, Host((), tuple(dims), x.dtype))
    if new is None:
        return NotImplemented
    return Host(tuple(_at(x, index) for index in _indices(new)), new, x.dtype)


@host_op("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def reduce(node: Node, x: Host, axes: Host | None = None) -> Any:
    dims = axes_of(node, len(x.shape), axes)
    if len(x.shape) > 1 or dims is None or len(x.values) == 0:
        return NotImplemented
    if len(dims) == 0:
        return x
    function: dict[str, Callable[..., Any]] = {
        "ReduceProd": math.prod, "ReduceSum": sum, "ReduceMax": max, "ReduceMin": min,
    }  # fmt: skip
    value = _wrapped(function[node.op](x.values), x.dtype)
    if x.dtype.is_floating_point:
        value = rounded(value, x.dtype)
    return Host((value,), (1,) * len(x.shape) if node["keepdims"] else (), x.dtype)
