"""Loop, Scan, If and recurrent networks of files as operators with bodies: compiled as one graph, forward and backward, and in files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor

import dcir
from dcir.driver import api
from dcir.errors import NotCompiledWarning, RecompileWarning
from dcir.frontends.onnx import OnnxModule, load

pytestmark = pytest.mark.in_turn(3)

Make = Callable[..., OnnxModule]
GO = "go = Constant <value = bool {1}> ()"


@pytest.fixture(autouse=True)
def _clean_dynamo() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def _loop(carried: str, body: str, outer: str = "", trips: int = 7) -> str:
    return f"n = Constant <value_int = {trips}> () {GO} {outer} {carried} <body = b {body}>"


def _products(trips: int) -> str:
    """Rounds that use their number, hand a matrix on, and keep something of each."""
    return "g (float[4,4] x) => (float[4,4] y, float[k,4,4] all) {" + _loop(
        "y, all = Loop (n, go, x)",
        "(int64 i, bool on, float[4,4] v) => (bool o, float[4,4] w, float[4,4] s) {"
        "o = Identity(on) f = Cast <to = 1> (i) p = MatMul(v, x) q = Add(p, f) w = Tanh(q) s = Identity(w) }",
        trips=trips,
    ) + "}"  # fmt: skip


CASES: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "numbers of rounds": (_products(7), ((4, 4),)),
    "rows by their number": (
        "g (float[9,4] x, float[4] z) => (float[4] y, float[k,4] all) {" + _loop(
            "y, all = Loop (n, go, z)",
            "(int64 i, bool on, float[4] v) => (bool o, float[4] w, float[4] s) {"
            "o = Identity(on) p = Gather <axis = 0> (x, i) q = Mul(v, p) w = Tanh(q) s = Exp(w) }",
        ) + "}", ((9, 4), (4,)),
    ),
    "nothing handed on": (
        "g (float[9,4] x) => (float[k,4] all) {" + _loop(
            "all = Loop (n, go)",
            "(int64 i, bool on) => (bool o, float[4] s) { o = Identity(on) p = Gather <axis = 0> (x, i) s = Exp(p) }",
        ) + "}", ((9, 4),),
    ),
    "a whole number handed on": (
        "g (float[4] x) => (float[4] y) {" + _loop(
            "y, j = Loop (n, go, x, z)",
            "(int64 i, bool on, float[4] v, int64 c) => (bool o, float[4] w, int64 d) {"
            "o = Identity(on) d = Add(c, one) f = Cast <to = 1> (d) q = Div(v, f) w = Tanh(q) }",
            "z = Constant <value_int = 0> () one = Constant <value_int = 1> ()",
        ) + "}", ((4,),),
    ),
    "views of one tensor": (
        "g (float[4,8] x) => (float[4] y) {" + _loop(
            "y = Loop (n, go, first)",
            "(int64 i, bool on, float[4] v) => (bool o, float[4] w) {"
            "o = Identity(on) p = MatMul(a, v) q = MatMul(b, p) r = Add(q, first) w = Tanh(r) }",
            "a, b = Split <axis = 1, num_outputs = 2> (x) one = Constant <value_ints = [1]> ()"
            "first = ReduceSum <keepdims = 0> (a, one)",
        ) + "}", ((4, 8),),
    ),
    "a loop and a branch in a loop": (
        "g (float[4,4] x) => (float[4,4] y) {" + _loop(
            "y = Loop (n, go, x)",
            "(int64 i, bool on, float[4,4] v) => (bool o, float[4,4] w) {"
            "o = Identity(on) a = Loop (n, go, v) < body = bb (int64 j, bool onn, float[4,4] vv) => (bool oo, float[4,4] ww) {"
            "oo = Identity(onn) t = MatMul(vv, x) f = Cast <to = 1> (i) t2 = Add(t, f) ww = Tanh(t2) } >"
            "zero = Constant <value_float = 0.0> () s = ReduceSum <keepdims = 0> (a) c = Greater(s, zero)"
            "w = If (c) < then_branch = tb () => (float[4,4] p) { p = Sin(a) }, else_branch = eb () => (float[4,4] q) { q = Cos(a) } > }",
            trips=4,
        ) + "}", ((4, 4),),
    ),
    "shapes as numbers": (
        "g (float[2,3] x) => (float[2,3] y) {" + _loop(
            "y = Loop (n, go, x)",
            "(int64 i, bool on, float[2,3] v) => (bool o, float[2,3] w) {"
            "o = Identity(on) sizes = Shape(v) f = Cast <to = 1> (sizes) s = ReduceSum <keepdims = 0> (f) q = Div(v, s)"
            "r = Reshape(q, sizes) w = Tanh(r) }",
        ) + "}", ((2, 3),),
    ),
    "what is handed on changes places": (
        "g (float[3] x, float[3] z) => (float[3] y, float[3] q) {" + _loop(
            "y, q = Loop (n, go, x, z)",
            "(int64 i, bool on, float[3] v, float[3] u) => (bool o, float[3] w, float[3] t) {"
            "o = Identity(on) w = Identity(u) t = Add(v, x) }",
        ) + "}", ((3,), (3,)),
    ),
    "both directions of a scan": (
        "g (float[3] h0, float[8,3] xs, float[3,8] zs) => (float[3] h, float[8,3] ys, float[3,8] ts) {"
        "h, ys, ts = Scan <num_scan_inputs = 2, scan_input_directions = [0, 1], scan_input_axes = [0, 1], scan_output_axes = [0, 1],"
        "scan_output_directions = [1, 0], body = b (float[3] s, float[3] x, float[3] z) => (float[3] t, float[3] y, float[3] u) {"
        "a = Mul(s, x) t = Tanh(a) y = Add(t, z) u = Sub(t, z) }> (h0, xs, zs) }", ((3,), (8, 3), (3, 8)),
    ),
}  # fmt: skip

WHILE = "g (float[4,4] x) => (float[4,4] y) {" + _loop(
    "last = Loop (n, go, x)",
    "(int64 i, bool on, float[4,4] v) => (bool go_on, float[4,4] next) {"
    "square = MatMul(v, v) next = Add(square, x) s = ReduceSum <keepdims = 0> (next) go_on = Less(s, bound) }",
    "bound = Constant <value_float = 1000.0> ()", trips=20,
) + "y = Tanh(last) }"  # fmt: skip

GROWING = "g (float[1,4] x) => (float[n,4] y) {" + _loop(
    "y = Loop (n, go, x)",
    "(int64 i, bool on, float[m,4] v) => (bool o, float[p,4] w) { o = Identity(on) t = Tanh(v) w = Concat <axis = 0> (t, x) }",
) + "}"  # fmt: skip


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _compiled(module: OnnxModule, inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Any]:
    """The results, and what is explained; nothing may be left out of the one graph."""
    fast = dcir.optimize(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCompiledWarning)
        results = _tuple(fast(*inputs))
    report = fast.dcir.explain()
    assert not report.fallbacks
    assert not report.breaks
    return results, report


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("gradients", [False, True])
def test_control_flow_is_one_graph(module_of: Make, name: str, gradients: bool) -> None:
    text, shapes = CASES[name]
    module = module_of(text)
    inputs = tuple(torch.rand(s).requires_grad_(gradients) for s in shapes)
    want = _tuple(module(*inputs))
    have, report = _compiled(module, inputs)
    assert len(report.graphs) == 1
    torch.testing.assert_close(have, want)
    if gradients:
        sums = [sum((r * r).sum() for r in results) for results in (have, want)]
        torch.testing.assert_close(*(torch.autograd.grad(s, inputs) for s in sums))


def test_the_number_of_rounds_changes_no_graph(module_of: Make) -> None:
    few, many = (_compiled(module_of(_products(n)), (torch.rand(4, 4),))[1] for n in (5, 200))
    assert few.graphs[0].operators == many.graphs[0].operators


def test_a_count_that_is_data(module_of: Make) -> None:
    text = "g (float[3] x) => (float[3] y) {" + _loop(
        "y = Loop (m, go, x)",
        "(int64 i, bool on, float[3] v) => (bool o, float[3] w) { o = Identity(on) w = Tanh(v) }",
        "s = ReduceSum <keepdims = 0> (x) m = Cast <to = 7> (s)",
    ) + "}"  # fmt: skip
    module = module_of(text)
    for x in (torch.tensor([1.0, 2.0, 3.5]), torch.tensor([0.1, 0.1, 0.1])):
        (have,), report = _compiled(module, (x,))
        assert len(report.graphs) == 1
        torch.testing.assert_close(have, module(x))


@pytest.mark.parametrize("factor", [0.1, 1.0, 100.0])
def test_a_loop_that_data_ends_is_one_graph(module_of: Make, factor: float) -> None:
    module, x = module_of(WHILE), torch.eye(4) * factor
    (have,), report = _compiled(module, (x,))
    assert len(report.graphs) == 1
    torch.testing.assert_close(have, module(x))


def test_a_loop_that_data_ends_has_gradients(module_of: Make) -> None:
    """Round by round: torch has none for the operator."""
    module = module_of(WHILE)
    x, fast = torch.eye(4).requires_grad_(), dcir.optimize(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCompiledWarning)
        have, want = fast(x), module(x)
    torch.testing.assert_close(have, want)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (have, want)))


@pytest.mark.parametrize("lies", [False, True])
def test_what_grows_is_unrolled(module_of: Make, lies: bool) -> None:
    """Whatever the file says of it."""
    module = module_of(GROWING.replace("float[p,4]", "float[m,4]") if lies else GROWING)
    x = torch.rand(1, 4)
    (have,), report = _compiled(module, (x,))
    torch.testing.assert_close(have, module(x))
    assert have.shape == (8, 4)
    assert report.graphs[0].operators >= 7


@pytest.mark.parametrize("declared", ["m", "4"])
def test_a_growing_loop_that_data_ends_is_right(module_of: Make, declared: str) -> None:
    text = "g (float[1,4] x) => (float[n,4] y) {" + _loop(
        "y = Loop (n, go, x)",
        f"(int64 i, bool on, float[{declared},4] v) => (bool o, float[{declared},4] w) {{"
        "t = Tanh(v) w = Concat <axis = 0> (t, x) s = ReduceSum <keepdims = 0> (w) o = Less(s, bound) }",
        "bound = Constant <value_float = 4.0> ()",
    ) + "}"  # fmt: skip
    module, x = module_of(text), torch.full((1, 4), 0.25)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCompiledWarning)
        torch.testing.assert_close(dcir.optimize(module)(x), module(x))


@pytest.mark.parametrize("name", [*CASES, "while"])
def test_files_hold_control_flow(module_of: Make, tmp_path: Path, name: str) -> None:
    text, shapes = (WHILE, ((4, 4),)) if name == "while" else CASES[name]
    module, inputs = module_of(text), tuple(torch.rand(s) for s in shapes)
    api.save(module, inputs, tmp_path / "net.dcir")
    have: Any = dcir.load(tmp_path / "net.dcir")(*inputs)
    torch.testing.assert_close(_tuple(have), _tuple(module(*inputs)))


def test_any_number_of_rounds_is_one_program(module_of: Make) -> None:
    text = "g (float[n,4] x, float[4] z) => (float[4] y, float[k,4] all) {" + _loop(
        "y, all = Loop (m, go, z)",
        "(int64 i, bool on, float[4] v) => (bool o, float[4] w, float[4] s) {"
        "o = Identity(on) p = Gather <axis = 0> (x, i) q = Mul(v, p) w = Tanh(q) s = Exp(w) }",
        "sizes = Shape <start = 0, end = 1> (x) m = Squeeze(sizes)",
    ) + "}"  # fmt: skip
    module = module_of(text)
    fast = dcir.optimize(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        for rounds in (10, 20, 37, 5):
            inputs = torch.rand(rounds, 4), torch.rand(4)
            torch.testing.assert_close(fast(*inputs), module(*inputs))
    assert [bool(g.bounds) for g in fast.dcir.explain().graphs] == [False, True]


def _recurrent(op: str, hidden: int = 5, peepholes: bool = False, lengths: bool = False, **attributes: Any) -> Any:
    """A recurrent network of 8 inputs over 12 steps of 3 sequences."""
    gates, directions = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 1 + (attributes.get("direction") == "bidirectional")
    rng = np.random.default_rng(0)
    weights: list[Any] = []

    def weight(name: str, *shape: int) -> str:
        values = (0.3 * rng.standard_normal((directions, *shape))).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(values, name))
        return name

    operands = [
        "x",
        weight("w", gates * hidden, 8),
        weight("r", gates * hidden, hidden),
        weight("b", 2 * gates * hidden),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [12, 3, 8])]
    if lengths:
        inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, [3]))
    operands.append("lengths" if lengths else "")
    if peepholes:
        operands += ["", "", weight("p", 3 * hidden)]
    node = helper.make_node(op, operands, ["y", "h"], hidden_size=hidden, **attributes)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "h")]
    graph = helper.make_graph([node], "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("GRU", {}),
        ("GRU", {"direction": "bidirectional", "lengths": True}),
        ("GRU", {"linear_before_reset": 1, "lengths": True}),
        ("LSTM", {"direction": "reverse", "lengths": True}),
        ("LSTM", {"direction": "bidirectional", "peepholes": True, "input_forget": 1}),
        ("RNN", {"clip": 0.5, "direction": "bidirectional"}),
        ("RNN", {"activations": ["Relu"]}),
    ],
)
def test_recurrent_networks_are_loops(op: str, options: dict[str, Any]) -> None:
    """Those, too, that torch has no layer for."""
    module = load(_recurrent(op, **options))
    x = torch.randn(12, 3, 8).requires_grad_()
    rest = (torch.tensor([12, 5, 1], dtype=torch.int32),) if options.get("lengths") else ()
    have, report = _compiled(module, (x, *rest))
    assert len(report.graphs) == 1
    assert report.graphs[0].operators < 60  # unrolled it is 12 steps of ten
    wanted = [x, *module.parameters()]
    want = _tuple(module(x, *rest))
    torch.testing.assert_close(have, want)
    gradients = [torch.autograd.grad(sum((r * r).sum() for r in results), wanted) for results in (have, want)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
