"""Shape arithmetic stays in Python, so that tracers see numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from dcir.frontends.onnx import OnnxModule

Make = Callable[..., OnnxModule]


@pytest.fixture(autouse=True)
def _clean_dynamo() -> Iterator[None]:
    yield
    torch._dynamo.reset()


FLATTEN_BY_HAND = """g (float[N, 3, H, W] x) => (float[A, B] y) {
    shape = Shape(x)
    zero = Constant <value_ints = [0]> ()
    batch = Gather <axis = 0> (shape, zero)
    rest = Constant <value_ints = [-1]> ()
    target = Concat <axis = 0> (batch, rest)
    y = Reshape(x, target)
}"""

HALVES = """g (float[N, C] x) => (float[N, D] y) {
    shape = Shape(x)
    one = Constant <value_int = 1> ()
    width = Gather <axis = 0> (shape, one)
    two = Constant <value_int = 2> ()
    half = Div(width, two)
    axes = Constant <value_ints = [0]> ()
    start = Unsqueeze(half, axes)
    end = Unsqueeze(width, axes)
    last = Constant <value_ints = [1]> ()
    y = Slice(x, start, end, last)
}"""

BROADCAST = """g (float[N, 1] x, float[1, M] z) => (float[N, M] y) {
    a = Shape <start = 0, end = 1> (x)
    b = Shape <start = -1> (z)
    both = Concat <axis = 0> (a, b)
    minus = Constant <value_ints = [-1, -1]> ()
    same = Equal(both, minus)
    ones = ConstantOfShape <value = int64[1] {1}> (rank)
    target = Where(same, ones, both)
    w = Expand(x, target)
    y = Add(w, z)
}"""

CASES: dict[str, tuple[str, dict[str, Any], tuple[torch.Tensor, ...], Any]] = {
    "flatten": (FLATTEN_BY_HAND, {}, (torch.rand(2, 3, 4, 5),), lambda x: x.flatten(1)),
    "halves": (HALVES, {}, (torch.rand(2, 7),), lambda x: x[:, 3:]),
    "broadcast": (
        BROADCAST, {"rank": np.array([2])}, (torch.rand(3, 1), torch.rand(1, 4)), lambda x, z: x + z,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_integer_tensor_is_left_in_the_graph(module_of: Make, name: str) -> None:
    text, constants, inputs, expected = CASES[name]
    module = module_of(text, **constants)
    torch.testing.assert_close(module(*inputs), expected(*inputs))
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    result = torch.compile(module, backend=backend, fullgraph=True)(*inputs)
    torch.testing.assert_close(result, expected(*inputs))
    values = [n.meta["example_value"] for n in graphs[0].graph.nodes if n.op == "call_function"]
    assert all(v.is_floating_point() for v in values)


def test_symbolic_sizes_stay_symbolic(module_of: Make) -> None:
    module = module_of(FLATTEN_BY_HAND)
    # Once for the tuple of positional inputs that `forward` collects.
    dims = (({0: torch.export.Dim("n"), 2: torch.export.Dim("h"), 3: torch.export.Dim("w")},),)
    program = torch.export.export(module, (torch.rand(2, 3, 4, 5),), dynamic_shapes=dims)
    x = torch.rand(6, 3, 2, 7)
    torch.testing.assert_close(program.module()(x), x.flatten(1))


def test_division_truncates(module_of: Make) -> None:
    module = module_of("""g (float[N] x) => (int64[1] y) {
        n = Shape(x)
        seven = Constant <value_ints = [-7]> ()
        two = Constant <value_ints = [2]> ()
        shifted = Sub(n, n)
        low = Add(shifted, seven)
        y = Div(low, two)
    }""")
    assert module(torch.rand(3)).tolist() == [-3]


@pytest.mark.parametrize(("exponent", "wanted"), [("2.0", [8, 24]), ("0.5", [0, 2])])
def test_powers_are_of_the_type_of_their_base(module_of: Make, exponent: str, wanted: list[int]) -> None:
    """So that what follows divides whole numbers."""
    module = module_of(f"""g (float[3, 5] x) => (int64[2] y) {{
        n = Shape(x)
        e = Constant <value_float = {exponent}> ()
        two = Constant <value_ints = [2]> ()
        power = Pow(n, e)
        half = Div(power, two)
        y = Mul(half, two)
    }}""")
    assert module(torch.rand(3, 5)).tolist() == wanted


def test_products_of_all_wrap(module_of: Make) -> None:
    """A product of all elements is one of the element type before something is done with it."""
    module = module_of("""g (float[3, 5] x) => (int32[1] y) {
        n = Shape(x)
        sizes = Cast <to = 6> (n)
        many = Constant <value = int32[2] {70000, 70000}> ()
        seven = Constant <value = int32[1] {7}> ()
        large = Mul(sizes, many)
        all = ReduceProd(large)
        y = Div(all, seven)
    }""")
    wrapped = int((np.array([210000, 350000], "i4")).prod(dtype="i4"))
    assert module(torch.rand(3, 5)).tolist() == [int(wrapped / 7)]


def test_large_integer_constants_stay_tensors(module_of: Make) -> None:
    index = np.arange(500) % 7
    module = module_of("g (float[7] x) => (float[500] y) { y = Gather(x, index) }", index=index)
    assert list(module.original_names.values()) == ["index"]
    x = torch.rand(7)
    torch.testing.assert_close(module(x), x[torch.from_numpy(index)])


RESHAPE = "g (float[2, 6] x, int64[K] target) => (float[A, B] y) { y = Reshape(x, target) }"


def test_inputs_that_steer_may_be_numbers(module_of: Make) -> None:
    module = module_of(RESHAPE)
    assert [spec.host for spec in module.input_specs] == [False, True]
    x, target = torch.rand(2, 6), torch.tensor([3, -1])
    torch.testing.assert_close(module(x, target), x.reshape(3, 4))
    assert module.as_numbers(x, target)[1] == [3, -1]
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*module.as_numbers(x, target)), x.reshape(3, 4))


def test_steering_is_traced_back_through_arithmetic(module_of: Make) -> None:
    module = module_of("""g (float[2, 6] x, int64[2] a, int64[2] b) => (float[A, B] y, int64[2] z) {
        target = Mul(a, a)
        y = Reshape(x, target)
        z = Mul(b, b)
    }""")
    assert [spec.host for spec in module.input_specs] == [False, True, False]


IF = """g (bool c, float[2] x) => (float[2] y) {
    y = If (c) <
        then_branch = t () => (float[2] p) { p = Relu(x) },
        else_branch = e () => (float[2] q) { q = Neg(x) }
    >
}"""


def test_a_condition_in_a_tensor(module_of: Make) -> None:
    module = module_of(IF)
    x = torch.tensor([-1.0, 2.0])
    for condition, want in ((True, [0.0, 2.0]), (False, [1.0, -2.0])):
        assert module(torch.tensor(condition), x).tolist() == want
        assert module(condition, x).tolist() == want
    compiled = torch.compile(module, backend="eager")
    exported = torch.export.export(module, (torch.tensor(True), x)).module()
    for condition, want in ((True, [0.0, 2.0]), (False, [1.0, -2.0])):
        assert compiled(torch.tensor(condition), x).tolist() == want
        assert exported(torch.tensor(condition), x).tolist() == want


def test_a_loop_with_a_known_count_unrolls(module_of: Make) -> None:
    module = module_of("""g (float[2] x) => (float[2] y, float[3, 2] all) {
        three = Constant <value_int = 3> ()
        go = Constant <value = bool {1}> ()
        y, all = Loop (three, go, x) <
            body = b (int64 i, bool on, float[2] state) => (bool go_on, float[2] next, float[2] out) {
                go_on = Identity(on)
                next = Add(state, state)
                out = Identity(next)
            }
        >
    }""")
    y, everything = torch.compile(module, backend="eager", fullgraph=True)(torch.tensor([1.0, 2.0]))
    assert y.tolist() == [8.0, 16.0]
    assert everything.tolist() == [[2.0, 4.0], [4.0, 8.0], [8.0, 16.0]]
