"""One operator, many operator sets: attributes that became operands, and meanings that changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dcir.errors import InvalidModel, Unsupported
from dcir.frontends.onnx import OnnxModule

Make = Callable[..., OnnxModule]
X = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4) - 11
I64 = np.int64


def _one(node: str) -> str:
    return f"g (float[2, 3, 4] x) => (float[A, B, C] y) {{ {node} }}"


SAME: list[tuple[str, int, str, dict[str, Any], Callable[[torch.Tensor], torch.Tensor]]] = [
    ("reshape", 1, "y = Reshape <shape = [0, -1]> (x)", {}, lambda x: x.reshape(2, 12)),
    ("reshape", 5, "y = Reshape (x, s)", {"s": np.array([0, -1])}, lambda x: x.reshape(2, 12)),
    ("reshape", 14, "y = Reshape <allowzero = 0> (x, s)", {"s": np.array([4, 0, -1])}, lambda x: x.reshape(4, 3, 2)),
    ("unsqueeze", 1, "y = Unsqueeze <axes = [0, 2]> (x)", {}, lambda x: x[None, :, None]),
    ("unsqueeze", 13, "y = Unsqueeze (x, a)", {"a": np.array([2, 0])}, lambda x: x[None, :, None]),
    ("unsqueeze", 13, "y = Unsqueeze (x, a)", {"a": np.array([-1])}, lambda x: x[..., None]),
    ("sum", 1, "y = ReduceSum <axes = [1], keepdims = 0> (x)", {}, lambda x: x.sum(1)),
    ("sum", 11, "y = ReduceSum <axes = [-2]> (x)", {}, lambda x: x.sum(1, keepdim=True)),
    ("sum", 13, "y = ReduceSum <keepdims = 0> (x, a)", {"a": np.array([1, -1])}, lambda x: x.sum((1, 2))),
    ("sum", 13, "y = ReduceSum <noop_with_empty_axes = 1> (x)", {}, lambda x: x),
    ("mean", 13, "y = ReduceMean <axes = [0]> (x)", {}, lambda x: x.mean(0, keepdim=True)),
    ("mean", 18, "y = ReduceMean (x, a)", {"a": np.array([0])}, lambda x: x.mean(0, keepdim=True)),
    ("slice", 1, "y = Slice <axes = [2], starts = [1], ends = [1000]> (x)", {}, lambda x: x[:, :, 1:]),
    ("slice", 10, "y = Slice (x, s, e, a, t)",
     {"s": np.array([-1]), "e": np.array([-9]), "a": np.array([2]), "t": np.array([-2])}, lambda x: x[:, :, [3, 1]]),
    ("slice", 13, "y = Slice (x, s, e)", {"s": np.array([0, 1]), "e": np.array([2, -1])}, lambda x: x[:, 1:-1]),
    ("clip", 6, "y = Clip <min = -1.0, max = 2.0> (x)", {}, lambda x: x.clamp(-1, 2)),
    ("clip", 6, "y = Clip <max = 2.0> (x)", {}, lambda x: x.clamp(max=2)),
    ("clip", 11, "y = Clip (x, a, b)", {"a": np.float32(-1), "b": np.float32(2)}, lambda x: x.clamp(-1, 2)),
    ("clip", 13, "y = Clip (x, , b)", {"b": np.float32(2)}, lambda x: x.clamp(max=2)),
    ("softmax", 9, "y = Softmax (x)", {}, lambda x: x.flatten(1).softmax(1).reshape(2, 3, 4)),
    ("softmax", 11, "y = Softmax <axis = 2> (x)", {}, lambda x: x.softmax(2)),
    ("softmax", 13, "y = Softmax (x)", {}, lambda x: x.softmax(-1)),
    ("softmax", 13, "y = Softmax <axis = 1> (x)", {}, lambda x: x.softmax(1)),
    ("log softmax", 11, "y = LogSoftmax <axis = 0> (x)", {}, lambda x: x.flatten().log_softmax(0).reshape(2, 3, 4)),
    ("add", 6, "y = Add <broadcast = 1, axis = 1> (x, b)", {"b": np.ones(3, np.float32)}, lambda x: x + 1),
    ("add", 6, "y = Mul <broadcast = 1, axis = 0> (x, b)", {"b": np.array([2, 3], np.float32)},
     lambda x: x * torch.tensor([2.0, 3.0])[:, None, None]),
    ("add", 7, "y = Add (x, b)", {"b": np.ones((3, 1), np.float32)}, lambda x: x + 1),
    ("pad", 2, "y = Pad <pads = [0, 0, 1, 0, 0, 2], value = 5.0> (x)", {}, lambda x: F.pad(x, (1, 2), value=5)),
    ("pad", 11, "y = Pad (x, p, v)", {"p": np.array([0, 0, 1, 0, 0, 2]), "v": np.float32(5)},
     lambda x: F.pad(x, (1, 2), value=5)),
    ("pad", 13, 'y = Pad <mode = "reflect"> (x, p)', {"p": np.array([0, 0, 1, 0, 0, 2])},
     lambda x: F.pad(x, (1, 2), mode="reflect")),
    ("pad", 18, 'y = Pad <mode = "edge"> (x, p, , a)', {"p": np.array([1, 1]), "a": np.array([-1])},
     lambda x: F.pad(x, (1, 1), mode="replicate")),
    ("crop", 13, "y = Pad (x, p)", {"p": np.array([0, -1, 0, 0, 0, 0])}, lambda x: x[:, 1:]),
    ("upsample", 7, "y = Upsample <scales = [1.0, 1.0, 2.0]> (x)", {}, lambda x: x.repeat_interleave(2, 2)),
    ("upsample", 9, "y = Upsample (x, s)", {"s": np.array([1, 1, 2], np.float32)}, lambda x: x.repeat_interleave(2, 2)),
    ("resize", 10, "y = Resize (x, s)", {"s": np.array([1, 1, 2], np.float32)}, lambda x: x.repeat_interleave(2, 2)),
    ("resize", 13, 'y = Resize <mode = "linear"> (x, , s)', {"s": np.array([1, 1, 2], np.float32)},
     lambda x: F.interpolate(x, scale_factor=2, mode="linear")),
    ("dropout", 1, "y = Dropout (x)", {}, lambda x: x),
    ("dropout", 7, "y, m = Dropout (x)", {}, lambda x: x),
    ("dropout", 13, "y = Dropout (x, r)", {"r": np.float32(0.9)}, lambda x: x),
    ("top k", 1, "y, i = TopK <k = 2> (x)", {}, lambda x: x.flip(2)[..., :2]),
    ("top k", 11, "y, i = TopK <largest = 0> (x, k)", {"k": np.array([2])}, lambda x: x[..., :2]),
    ("squeeze", 1, "z = Unsqueeze <axes = [0]> (x) y = Squeeze (z)", {}, lambda x: x),
    ("squeeze", 11, "z = Unsqueeze <axes = [0]> (x) y = Squeeze <axes = [-4]> (z)", {}, lambda x: x),
    ("tile", 6, "y = Tile (x, r)", {"r": np.array([1, 2, 1])}, lambda x: x.repeat(1, 2, 1)),
    ("gather", 11, "y = Gather <axis = 2> (x, i)", {"i": np.array([-1, 0])}, lambda x: x[..., [3, 0]]),
    ("gather", 1, "y = Gather <axis = 1> (x, i)", {"i": I64(-1)}, lambda x: x[:, -1]),
    ("cast", 1, 'z = Cast <to = "DOUBLE"> (x) y = Cast <to = "FLOAT"> (z)', {}, lambda x: x),
    ("mean of all", 8, "y = Mean (x, b)", {"b": np.zeros(4, np.float32)}, lambda x: x / 2),
    ("max", 6, "y = Max (x, x)", {}, lambda x: x),
    ("pow", 12, "y = Pow (x, e)", {"e": np.array(2, np.int64)}, lambda x: x**2),
    ("argmax", 12, "z = ArgMax <axis = 2, keepdims = 0, select_last_index = 1> (c) y = Cast <to = 1> (z)",
     {"c": np.ones((1, 2, 3), np.float32)}, lambda x: torch.full((1, 2), 2.0)),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(SAME)), ids=[f"{c[0]}-{c[1]}-{i}" for i, c in enumerate(SAME)])
def test_operator_set(module_of: Make, index: int) -> None:
    _, opset, node, constants, expected = SAME[index]
    module = module_of(_one(node), opset, **constants)
    torch.testing.assert_close(module(X), expected(X))


def test_split_in_all_its_forms(module_of: Make) -> None:
    outputs = "g (float[2, 3, 4] x) => (float[A] a, float[B] b) {{ {} }}"
    for opset, node, constants, sizes in (
        (2, "a, b = Split <axis = 1, split = [1, 2]> (x)", {}, (1, 2)),
        (11, "a, b = Split <axis = 1, split = [1, 2]> (x)", {}, (1, 2)),
        (13, "a, b = Split <axis = 1> (x, s)", {"s": np.array([1, 2])}, (1, 2)),
        (18, "a, b = Split <axis = 1, num_outputs = 2> (x)", {}, (2, 1)),
    ):
        a, b = module_of(outputs.format(node), opset, **constants)(X)
        torch.testing.assert_close((a, b), torch.split(X, sizes, 1))


def test_batch_norm_of_old_operator_sets(module_of: Make) -> None:
    parts = {k: np.array([1, 2, 3], np.float32) for k in "sbmv"}
    want = F.batch_norm(X, *(torch.from_numpy(parts[k]) for k in "mvsb"))
    for opset in (7, 9, 14, 15):
        torch.testing.assert_close(module_of(_one("y = BatchNormalization (x, s, b, m, v)"), opset, **parts)(X), want)


def test_batch_norm_in_training_mode(module_of: Make) -> None:
    parts = {k: np.array([1, 2, 3], np.float32) for k in "sbmv"}
    text = """g (float[2, 3, 4] x) => (float[A, B, C] y, float[3] rm, float[3] rv) {
        y, rm, rv = BatchNormalization <training_mode = 1, momentum = 0.9> (x, s, b, m, v)
    }"""
    y, mean, variance = module_of(text, 15, **parts)(X)
    one = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(mean, 0.9 * one + 0.1 * X.mean((0, 2)))
    torch.testing.assert_close(variance, 0.9 * one + 0.1 * X.var((0, 2), correction=0))
    torch.testing.assert_close(y, F.batch_norm(X, None, None, one, one, True), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("opset", [9, 11])
@pytest.mark.parametrize("reverse", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_fused_and_explicit_recurrences_agree(module_of: Make, kind: str, reverse: str, opset: int) -> None:
    generator = np.random.default_rng(0)
    gates, directions = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 2 if reverse == "bidirectional" else 1

    def weight(*shape: int) -> Any:
        return generator.standard_normal(shape).astype(np.float32)

    state = {"w": weight(directions, gates * 5, 4), "r": weight(directions, gates * 5, 5)}
    state["b"] = weight(directions, gates * 10)
    late = ", linear_before_reset = 1" if kind == "GRU" else ""
    call = f'{kind} <hidden_size = 5, direction = "{reverse}"{late}>'
    text = "g (float[3, 2, 4] x) => (float[A, B, C, D] y, float[E, F, G] h) {{ y, h = {} (x, w, r, b{}) }}"
    x = torch.from_numpy(weight(3, 2, 4))
    fused = module_of(text.format(call, ""), opset, **state)(x)
    explicit = module_of(text.format(call, ", n"), opset, n=np.array([3, 3], np.int32), **state)(x)
    torch.testing.assert_close(fused, explicit, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [7, 10, 11, 19, 22])
def test_average_pool_counts(module_of: Make, opset: int) -> None:
    x = torch.rand(1, 1, 5, 5)
    text = "g (float[1, 1, 5, 5] x) => (float[A, B, C, D] y) {{ y = AveragePool <{}> (x) }}"
    fields = "kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2], count_include_pad = {}"
    for include in (0, 1):
        want = F.avg_pool2d(x, 3, 2, 1, count_include_pad=bool(include))
        torch.testing.assert_close(module_of(text.format(fields.format(include)), opset)(x), want)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_auto_pad_of_convolution(module_of: Make, auto: str) -> None:
    x, w = torch.rand(1, 2, 6, 7), torch.rand(3, 2, 4, 3)
    node = f'Conv <auto_pad = "{auto}", strides = [2, 1]> (x, w)'
    text = f"g (float[1, 2, 6, 7] x) => (float[A, B, C, D] y) {{ y = {node} }}"
    pads = {"SAME_UPPER": (1, 1, 1, 1), "SAME_LOWER": (1, 1, 1, 1), "VALID": (0, 0, 0, 0)}[auto]
    want = F.conv2d(F.pad(x, pads), w, stride=(2, 1))
    torch.testing.assert_close(module_of(text, w=w.numpy())(x), want)


def test_operators_before_their_time_are_refused(module_of: Make) -> None:
    with pytest.raises(Unsupported):
        module_of(_one("y = Gelu (x)"), 13)
    with pytest.raises(InvalidModel):
        module_of(_one("y = Clip <min = 1.0> (x)"), 13)
