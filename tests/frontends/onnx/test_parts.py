"""Models that must read data while they run: compiled in few graphs, around what reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dcir
from dcir.frontends.onnx import OnnxModule

Make = Callable[..., OnnxModule]


@pytest.fixture(autouse=True)
def _clean_dynamo() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def _operators(module: OnnxModule, *calls: Tensor) -> list[int]:
    """Operators of each graph that is compiled for these calls, which give what eager gives."""
    fast = dcir.optimize(module)
    with torch.no_grad():
        for x in calls:
            torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-5)
    return [g.operators for g in fast.dcir.explain().graphs]


def test_a_result_of_unknown_size_takes_the_model_in_two(module_of: Make) -> None:
    module = module_of("""g (float[4,4] x) => (int64[2,n] z, float[4,4] y) {
        a = MatMul(x, x)
        b = Relu(a)
        z = NonZero(b)
        c = Sin(b)
        d = MatMul(c, x)
        y = Tanh(d)
    }""")
    assert [part.reads for part in module.program.parts] == [False, True, False]
    assert _operators(module, torch.randn(4, 4)) == [2, 3]


IF = """g (float[4,4] x) => (float[4,4] y) {
    a = MatMul(x, x)
    zero = Constant <value_float = 0.0> ()
    s = ReduceSum <keepdims = 0> (a)
    c = Greater(s, zero)
    b = Relu(a)
    r = If (c) <
        then_branch = tb () => (float[4,4] o) { o1 = Sin(b) o = MatMul(o1, x) },
        else_branch = eb () => (float[4,4] p) { p1 = Cos(b) p2 = MatMul(p1, b) p = Tanh(p2) }
    >
    y = Add(r, x)
}"""


def test_the_branches_of_a_condition_in_a_tensor_are_compiled(module_of: Make) -> None:
    """As one operator where the file says that their results are alike, else each of them."""
    x = torch.eye(4)
    turned = x.clone()
    turned[0, 1], turned[1, 0] = 4.0, -4.0
    assert len(_operators(module_of(IF), x, turned)) == 1
    assert _operators(module_of(IF.replace("float[4,4] p", "float[n,m] p")), x, turned) == [4, 2, 1, 3]


@pytest.mark.parametrize("declared", [True, False])
def test_rounds_of_a_loop_that_data_ends_are_compiled(module_of: Make, declared: bool) -> None:
    """As one operator where the file says that what they carry keeps its shape, else each of them."""
    text = """g (float[4,4] x) => (float[4,4] y) {
        bound = Constant <value_float = 1000.0> ()
        most = Constant <value_int = 20> ()
        go = Constant <value = bool {1}> ()
        last = Loop (most, go, x) <
            body = b (int64 i, bool on, float[4,4] v) => (bool go_on, float[4,4] next) {
                square = MatMul(v, v)
                next = Add(square, x)
                s = ReduceSum <keepdims = 0> (next)
                go_on = Less(s, bound)
            }
        >
        y = Tanh(last)
    }"""
    if declared:
        assert len(_operators(module_of(text), torch.eye(4))) == 1
        return
    operators = _operators(module_of(text.replace("[4,4] next", "[n,m] next")), torch.eye(4))
    assert operators[-1] == 1
    # The number of the round is a number of its own at first, then one that changes.
    assert set(operators[:-1]) == {4}
    assert len(operators) <= 3


def test_numbers_pass_through_control_flow(module_of: Make) -> None:
    module = module_of("""g (float[n] x, int64[1] size, bool flag) => (float[a, b] y) {
        one = Constant <value_ints = [1]> ()
        other = If (flag) <
            then_branch = tb () => (int64[1] o) { o = Add(size, one) },
            else_branch = eb () => (int64[1] p) { p = Identity(one) }
        >
        shape = Concat <axis = 0> (size, other)
        y = Expand(x, shape)
    }""")
    assert {spec.name: spec.host for spec in module.input_specs} == {"x": False, "size": True, "flag": True}
    assert not module.program.parts
    result = torch.compile(module, backend="eager", fullgraph=True)(torch.ones(1), [3], True)
    assert result.shape == (3, 4)


def test_how_long_a_sequence_is_need_not_be_read(module_of: Make) -> None:
    module = module_of("""g (float[3] x) => (float[m] y) {
        all = SequenceConstruct(x, x)
        count = SequenceLength(all)
        go = Constant <value = bool {1}> ()
        y = Loop (count, go, x) <
            body = b (int64 i, bool on, float[3] v) => (bool go_on, float[3] next) {
                go_on = Identity(on)
                one = SequenceAt(all, i)
                next = Add(v, one)
            }
        >
    }""")
    assert not module.program.parts
    assert _operators(module, torch.rand(3)) != []


def test_a_number_that_a_loop_turns_into_data_is_read(module_of: Make) -> None:
    """What a round makes of a tensor is no number, even where the loop began with one."""
    module = module_of("""g (float[3] x) => (float[m] y) {
        two = Constant <value_int = 2> ()
        go = Constant <value = bool {1}> ()
        first = Constant <value_ints = [2]> ()
        axes = Constant <value_ints = [0]> ()
        size = Loop (two, go, first) <
            body = b (int64 i, bool on, int64[1] v) => (bool go_on, int64[1] next) {
                go_on = Identity(on)
                most = ReduceMax(x, axes)
                more = Cast <to = 7> (most)
                next = Add(v, more)
            }
        >
        one = Constant <value_ints = [1]> ()
        z = Sin(x)
        part = Slice(z, axes, one)
        y = Expand(part, size)
    }""")
    assert [part.steps[0].node.op for part in module.program.parts if part.reads] == ["Expand"]
    assert module(torch.tensor([0.0, 1.0, 2.0])).shape == (6,)


@pytest.mark.parametrize("size", [3, 5])
def test_division_of_sizes_that_change(module_of: Make, size: int) -> None:
    """The signs of symbolic sizes are asked for one by one."""
    module = module_of("""g (float[n, m] x) => (float[a, b] y) {
        shape = Shape(x)
        minus = Constant <value_ints = [-2, 2]> ()
        halves = Div(shape, minus)
        size = Abs(halves)
        one = Constant <value_floats = [1.5]> ()
        y = Expand(one, size)
    }""")
    compiled: Any = torch.compile(module, backend="eager", dynamic=True, fullgraph=True)
    assert compiled(torch.ones(size, 7)).shape == (size // 2, 3)


@pytest.mark.parametrize(
    ("value", "type_", "want"), [(0.1, 10, 0.0999755859375), (1e5, 10, float("inf")), (0.1, 16, 0.10009765625)]
)
def test_numbers_are_rounded_as_their_type_is(module_of: Make, value: float, type_: int, want: float) -> None:
    module = module_of(f"""g (float[2] x) => (float[4] y) {{
        v = Constant <value_float = {value}> ()
        pads = Constant <value_ints = [1, 1]> ()
        fill = Cast <to = {type_}> (v)
        h = Cast <to = {type_}> (x)
        z = Pad(h, pads, fill)
        y = Cast <to = 1> (z)
    }}""")
    assert module(torch.ones(2)).tolist() == [want, 1.0, 1.0, want]
