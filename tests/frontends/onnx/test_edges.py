"""Edges of operators' specifications that ONNX's own cases leave out: wrapping, empty loops, narrow types, cropped windows, NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper, parser
from torch import Tensor, nn

from dcir.driver.api import save
from dcir.errors import Unsupported
from dcir.onnx_backend import Backend

F32 = np.float32
NAN = float("nan")


def results(text: str, *inputs: np.ndarray, opset: int = 18) -> list[np.ndarray]:
    """Of a graph in ONNX's text form, run operator by operator."""
    model = helper.make_model(parser.parse_graph(text), opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return [np.asarray(r) for r in Backend.prepare(model, "CPU", eager=True).run(list(inputs))]


def row(*values: float) -> np.ndarray:
    return np.array(values, F32)


CASES: dict[str, tuple[str, tuple[np.ndarray, ...], np.ndarray, int]] = {
    "bytes wrap": (
        """g (float[2] x) => (uint8[2] y) {
            s = Shape(x)
            a = ConstantOfShape <value = uint8[1] {200}> (s)
            y = Add(a, a)
        }""",
        (row(1, 2),), np.array([144, 144], np.uint8), 18,
    ),
    "the lowest number has no negative": (
        "g () => (int8[1] y) { a = Constant <value = int8[1] {-128}> () y = Neg(a) }", (), np.array([-128], np.int8), 18,
    ),
    "a loop of no rounds has results of a type": (
        """g (int64 m, bool on, int64[2] x) => (int64 v, int64[n, 2] y) {
            zero = Constant <value_int = 0> ()
            v, y = Loop (m, on, zero) <body = b (int64 i, bool c, int64 s) => (bool c2, int64 t, int64[2] z) {
                c2 = Identity(c) t = Add(s, i) z = Add(x, i)
            }>
        }""",
        (np.array(0, np.int64), np.array(True), np.array([1, 2], np.int64)), np.zeros((0, 2), np.int64), 18,
    ),
    "a slice from before the first, backwards": (
        """g (float[3] x) => (float[n] y) {
            a = Constant <value_ints = [-100]> () b = Constant <value_ints = [-200]> ()
            c = Constant <value_ints = [0]> () d = Constant <value_ints = [-1]> ()
            y = Slice(x, a, b, c, d)
        }""",
        (row(5, 6, 7),), row(5), 18,
    ),
    "a pad of a number that no double has": (
        """g (int64[1] x) => (int64[2] y) {
            p = Constant <value_ints = [0, 1]> () v = Constant <value = int64 {9007199254740993}> ()
            y = Pad(x, p, v)
        }""",
        (np.array([3], np.int64),), np.array([3, 9007199254740993], np.int64), 18,
    ),
    "a cubic overshoots a byte": (
        """g (uint8[1, 1, 1, 4] x) => (uint8[1, 1, 1, 8] y) {
            s = Constant <value_floats = [1.0, 1.0, 1.0, 2.0]> ()
            y = Resize <mode = "cubic"> (x, , s)
        }""",
        (np.array([[[[0, 0, 255, 255]]]], np.uint8),), np.array([[[[0, 0, 0, 58, 197, 255, 255, 255]]]], np.uint8), 18,
    ),
    "one pixel of many is the first": (
        """g (float[1, 1, 1, 10] x) => (float[1, 1, 1, 1] y) {
            s = Constant <value_floats = [1.0, 1.0, 1.0, 0.1]> ()
            y = Resize <mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel"> (x, , s)
        }""",
        (np.arange(3, 13, dtype=F32).reshape(1, 1, 1, 10),), row(3).reshape(1, 1, 1, 1), 18,
    ),
    "a size is a product in float32": (
        """g (float[1, 1, 1, 10] x) => (float[1, 1, 1, 7] y) {
            s = Constant <value_floats = [1.0, 1.0, 1.0, 0.7]> ()
            y = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , s)
        }""",
        (np.arange(10, dtype=F32).reshape(1, 1, 1, 10),), row(0, 1, 2, 4, 5, 7, 8).reshape(1, 1, 1, 7), 18,
    ),
    "a deformed kernel on one column": (
        """g (float[1, 1, 3, 1] x, float[1, 1, 1, 1] w, float[1, 2, 3, 1] d) => (float[1, 1, 3, 1] y) {
            y = DeformConv(x, w, d)
        }""",
        (row(1, 2, 4).reshape(1, 1, 3, 1), row(1).reshape(1, 1, 1, 1), row(0, 0.5, 0, 0, 0, 0.25).reshape(1, 2, 3, 1)),
        row(1, 3, 3).reshape(1, 1, 3, 1), 19,
    ),
    "regions without a sample": (
        """g (float[1, 1, 4, 4] x, float[2, 4] r, int64[2] b) => (float[2, 1, 1, 2] y) {
            y = RoiAlign <output_height = 1, output_width = 2> (x, r, b)
        }""",
        (np.ones((1, 1, 4, 4), F32), np.array([[2, 2, 2, 2], [3, 3, 1, 1]], F32), np.zeros(2, np.int64)),
        np.zeros((2, 1, 1, 2), F32), 16,
    ),
    "a region from the half before the first pixel": (
        """g (float[1, 1, 1, 3] x, float[1, 5] r) => (float[1, 1, 1, 4] y) {
            y = MaxRoiPool <pooled_shape = [1, 4]> (x, r)
        }""",
        (row(1, 2, 3).reshape(1, 1, 1, 3), row(0, -1.5, 0, 1, 0).reshape(1, 5)), row(0, 0, 1, 2).reshape(1, 1, 1, 4), 18,
    ),
    "a symmetric window of one number": (
        "g () => (float[1] y) { n = Constant <value_int = 1> () y = HannWindow <periodic = 0> (n) }", (), row(NAN), 18,
    ),
    "the sign of no number": ("g (float[3] x) => (float[3] y) { y = Sign(x) }", (row(-2, NAN, 3),), row(-1, NAN, 1), 18),
    "a norm of one pixel": (
        """g (float[1, 2, 1, 1] x, float[2] s, float[2] b) => (float[1, 2, 1, 1] y) { y = InstanceNormalization(x, s, b) }""",
        (row(3, 4).reshape(1, 2, 1, 1), row(2, 2), row(5, 6)), row(5, 6).reshape(1, 2, 1, 1), 18,
    ),
    "norms of groups with a factor a group": (
        """g (float[1, 4] x, float[2] s, float[2] b) => (float[1, 4] y) {
            y = GroupNormalization <num_groups = 2, epsilon = 0.0> (x, s, b)
        }""",
        (row(1, 3, 5, 9).reshape(1, 4), row(2, 3), row(0, 1)), row(-2, 2, -2, 4).reshape(1, 4), 18,
    ),
    "a power without end": (
        """g (float[3] x) => (float[3] y) {
            a = Constant <value_float = 1.0> () b = Constant <value_float = 0.0> () e = Div(a, b) y = Pow(x, e)
        }""",
        (row(0.5, 1, 2),), row(0, 1, np.inf), 18,
    ),
    "a product of unsigned numbers": (
        "g (uint32[1, 2] x, uint32[2, 1] z) => (uint32[1, 1] y) { y = MatMul(x, z) }",
        (np.array([[2**31, 3]], np.uint32), np.array([[2], [5]], np.uint32)), np.array([[15]], np.uint32), 18,
    ),
    "a quotient by nothing": (
        """g (float[2] x) => (float[1] y) {
            a = Constant <value_floats = [1.0]> () b = Constant <value_floats = [0.0]> () y = Div(a, b)
        }""",
        (row(1, 2),), row(np.inf), 18,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_edge(name: str) -> None:
    text, inputs, want, opset = CASES[name]
    got = results(text, *inputs, opset=opset)[-1]
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert got.shape == want.shape


def quantised(zero: np.ndarray, scale: Any, x: np.ndarray) -> np.ndarray:
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind(x.dtype), x.shape)],
        [helper.make_tensor_value_info("y", kind(zero.dtype), x.shape)],
        [numpy_helper.from_array(scale, "s"), numpy_helper.from_array(zero, "z")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return np.asarray(Backend.prepare(model, "CPU", eager=True).run([x])[0])


def test_a_zero_point_that_no_half_has() -> None:
    got = quantised(np.array(40001, np.uint16), np.array(1, np.float16), np.arange(-3, 3, dtype=np.float16))
    assert got.tolist() == list(range(39998, 40004))


def test_a_type_of_four_bits_inside_of_a_branch() -> None:
    zero = helper.make_tensor("z", TensorProto.UINT4, [], [12])
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [1.0])
    four = helper.make_tensor_value_info("q", TensorProto.UINT4, [1])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("Cast", ["q"], ["r"], to=TensorProto.INT32),
    ]
    branch = helper.make_graph(
        nodes, "b", [], [helper.make_tensor_value_info("r", TensorProto.INT32, [1])], [scale, zero], value_info=[four]
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [1])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    got = Backend.prepare(model, "CPU", eager=True).run([np.array(True), row(48)])
    assert np.asarray(got[0]).tolist() == [15]


class Found(nn.Module):
    """Where numbers are not 0, a result of as many rows as there are."""

    def forward(self, x: Tensor) -> Tensor:
        return x.nonzero()


def test_sizes_that_data_tell_are_refused_as_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="data"):
        save(Found(), (torch.ones(4),), tmp_path / "found.dcir")
