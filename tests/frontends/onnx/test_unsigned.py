"""Unsigned integers over their whole range, against NumPy: torch computes on none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from dcir.onnx_backend import run_node

TYPES = (np.uint16, np.uint32, np.uint64)
Array = Any

BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Div": lambda a, b: a // b,
    "Mod": lambda a, b: a % b, "Max": np.maximum, "Min": np.minimum, "Equal": np.equal, "Greater": np.greater,
    "Less": np.less, "GreaterOrEqual": np.greater_equal, "LessOrEqual": np.less_equal, "BitwiseAnd": np.bitwise_and,
}  # fmt: skip


def _numbers(dtype: type, seed: int) -> Array:
    rng, high = np.random.default_rng(seed), np.iinfo(dtype).max
    drawn = rng.integers(0, high, 57, dtype=dtype, endpoint=True) >> rng.integers(0, 15, 57).astype(dtype)
    ends = rng.permutation(np.array([1, high, high - 1, high // 2, high // 2 + 1, 3], dtype))
    return np.maximum(np.concatenate([ends, drawn]), dtype(1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", BINARY)
def test_two_operands(name: str, dtype: type) -> None:
    a, b = _numbers(dtype, 0), _numbers(dtype, 1)
    for x, y in ((a, b), (a, a[::-1].copy()), (a, b[:1])):
        (have,) = run_node(onnx.helper.make_node(name, ["x", "y"], ["z"]), [x, y], eager=True)
        want = BINARY[name](x, y)
        assert have.dtype == want.dtype
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("name", ["Div", "Max", "Greater", "Mod"])
def test_two_operands_compiled(name: str) -> None:
    a, b = _numbers(np.uint64, 2), _numbers(np.uint64, 3)
    (have,) = run_node(onnx.helper.make_node(name, ["x", "y"], ["z"]), [a, b])
    np.testing.assert_array_equal(have, BINARY[name](a, b))


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_extremes_and_order(dtype: type) -> None:
    a = _numbers(dtype, 4)
    node = onnx.helper.make_node

    def run(name: str, *more: Array, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"x{i}" for i in range(1 + len(more))]
        made = [f"y{i}" for i in range(outputs)]
        return run_node(node(name, names, made, **attributes), [a, *more], eager=True)[0]

    assert run("ReduceMax", keepdims=0) == a.max()
    assert run("ReduceMin", keepdims=0) == a.min()
    assert run("ArgMax", axis=0, keepdims=0) == a.argmax()
    np.testing.assert_array_equal(run("TopK", np.array([5]), outputs=2), np.sort(a)[::-1][:5])
    high = int(np.iinfo(dtype).max)
    low, most = dtype(high // 4), dtype(high - high // 4)
    np.testing.assert_array_equal(run("Clip", low, most), np.clip(a, low, most))
    np.testing.assert_array_equal(run("Abs"), a)
    np.testing.assert_array_equal(run("Sign"), np.ones_like(a))


def test_a_constant_beyond_int64() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]> g (uint64[2] x) => (uint64[2] y, bool[2] z) {
        c = Constant <value = uint64[1] {18446744073709551615}> ()
        y = Div(c, x)
        z = Less(x, c)
    }""")
    from dcir.onnx_backend import run_model

    y, z = run_model(model, [np.array([2, 2**64 - 1], np.uint64)], eager=True)
    assert y.tolist() == [2**63 - 1, 1]
    assert z.tolist() == [True, False]
