"""Shapes of recurrent layers from one step: the same as from all steps, at no cost for each, and for nobody else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._python_dispatch import TorchDispatchMode

from dcir.frontends.torch.layer_shapes import shapes_from_one_step

LAYERS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm two ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm projected": (nn.LSTM, {"proj_size": 3}),
    "gru": (nn.GRU, {"num_layers": 2, "bidirectional": True}),
    "tanh": (nn.RNN, {"bias": False}),
    "relu": (nn.RNN, {"nonlinearity": "relu", "batch_first": True}),
}


class Counting(TorchDispatchMode):
    """How many operators there are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def layer(name: str) -> nn.RNNBase:
    torch.manual_seed(0)
    kind, options = LAYERS[name]
    return kind(5, 7, **options)  # type: ignore[arg-type]  # the base class begins with a mode


def data(name: str, steps: int, **options: Any) -> torch.Tensor:
    return torch.randn(*((3, steps) if LAYERS[name][1].get("batch_first") else (steps, 3)), 5, **options)


def flat(results: Any) -> Iterator[torch.Tensor]:
    output, state = results
    yield output
    yield from state if isinstance(state, tuple) else (state,)


def look(name: str, steps: int, mode: FakeTensorMode, *, inside: bool, gradient: bool = True) -> tuple[list[Any], int]:
    """As Dynamo looks: shape, strides, type and need of a gradient of every result; and how many operators that took."""
    module = layer(name)
    parameters: dict[str, torch.Tensor] = {n: mode.from_tensor(p) for n, p in module.named_parameters()}
    x = mode.from_tensor(data(name, steps, requires_grad=gradient))
    counting = Counting()
    with shapes_from_one_step() if inside else contextlib.nullcontext(), mode, enable_python_dispatcher(), counting:
        results = list(flat(torch.func.functional_call(module, parameters, (x,))))
    return [(tuple(r.shape), r.stride(), r.dtype, r.requires_grad) for r in results], counting.count


@pytest.mark.parametrize("gradient", [True, False], ids=["gradient of the input", "of the weights alone"])
@pytest.mark.parametrize("name", LAYERS)
def test_results_look_as_those_of_all_steps(name: str, gradient: bool) -> None:
    mode = FakeTensorMode()
    for steps in (1, 4):
        inside, outside = (look(name, steps, mode, inside=i, gradient=gradient)[0] for i in (True, False))
        assert inside == outside and inside[0][3]
    with torch.no_grad():
        assert not look(name, 4, mode, inside=True)[0][0][3]


@pytest.mark.parametrize("name", LAYERS)
def test_a_thousand_steps_take_no_more_operators_than_two(name: str) -> None:
    mode = FakeTensorMode()
    (few, cost), (many, same) = (look(name, steps, mode, inside=True) for steps in (2, 1000))
    steps = 1 if LAYERS[name][1].get("batch_first") else 0
    assert cost == same and many[0][0][steps] == 1000 and few[1:] == many[1:]


@pytest.mark.parametrize("name", LAYERS)
def test_a_number_of_steps_that_moves_stays_one(name: str) -> None:
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes)
    module, x = layer(name), data(name, 9)
    steps = 1 if LAYERS[name][1].get("batch_first") else 0
    sizes = [DimDynamic.DYNAMIC if d == steps else DimDynamic.STATIC for d in range(3)]
    parameters: dict[str, torch.Tensor] = {
        n: mode.from_tensor(p, static_shapes=True) for n, p in module.named_parameters()
    }
    moving = mode.from_tensor(
        x, source=ConstantSource("x"), symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes)
    )
    moving.requires_grad_()
    with shapes_from_one_step(), mode, enable_python_dispatcher():
        output, *states = flat(torch.func.functional_call(module, parameters, (moving,)))
    assert str(output.shape[steps]) == str(moving.shape[steps]) and isinstance(output.shape[steps], torch.SymInt)
    assert not shapes.replacements
    assert all(isinstance(d, int) for s in states for d in s.shape)
    assert [d for d in output.shape if isinstance(d, int)] == [
        d for i, d in enumerate(module(x)[0].shape) if i != steps
    ]


def test_outside_of_it_all_steps_are_taken() -> None:
    mode = FakeTensorMode()
    look("gru", 3, mode, inside=True)  # what is installed stays
    assert look("gru", 3, mode, inside=False)[1] < look("gru", 20, mode, inside=False)[1]


@pytest.mark.parametrize("name", LAYERS)
def test_numbers_stay_as_they_are(name: str) -> None:
    """Real tensors take all steps, in the layer itself and in its decomposition."""
    module, x = layer(name), data(name, 6, requires_grad=True)
    want = list(flat(module(x)))
    with shapes_from_one_step():
        torch.testing.assert_close(list(flat(module(x))), want, rtol=0, atol=0)
        with enable_python_dispatcher():
            torch.testing.assert_close(list(flat(module(x))), want)


@pytest.mark.parametrize("name", LAYERS)
def test_traces_have_all_steps(name: str) -> None:
    module, x = layer(name), data(name, 6, requires_grad=True)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(flat(module(x)))

    with shapes_from_one_step(), enable_python_dispatcher():
        graph = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(x)
    torch.testing.assert_close(graph(x), run(x))


def test_threads_do_not_see_each_other() -> None:
    mode, seen, inside, done = FakeTensorMode(), [], threading.Event(), threading.Event()
    least = look("gru", 2, mode, inside=True)[1]

    def other() -> None:
        with shapes_from_one_step():
            inside.set()
            done.wait(60)
            seen.append(look("gru", 50, FakeTensorMode(), inside=True)[1])

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(60)
    assert look("gru", 50, mode, inside=False)[1] > 2 * least
    done.set()
    thread.join()
    assert seen == [least]


def test_it_ends_with_the_outermost_and_with_an_error() -> None:
    mode = FakeTensorMode()
    least = look("gru", 2, mode, inside=True)[1]
    with shapes_from_one_step():
        with pytest.raises(ValueError), shapes_from_one_step():
            raise ValueError
        assert look("gru", 50, mode, inside=False)[1] == least
    assert look("gru", 50, mode, inside=False)[1] > least
