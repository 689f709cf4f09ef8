"""Tensors that no compiled program can be given: on other devices, stored otherwise, of classes of their own, through every door.

Each is refused by name before anything is compiled, or PyTorch computes with it, and says so; never are numbers wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor

import dcir
from dcir.driver import api
from dcir.errors import DcirError, InvalidInput, NotCompiledWarning, Unsupported

X = torch.arange(12.0).reshape(3, 4) - 5


class Network(nn.Module):
    """A buffer that is on another device if that is asked for."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.register_buffer("shift", torch.ones(4, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + self.shift


def _optimize(model: nn.Module, x: Any, folder: Path) -> Any:
    return dcir.optimize(model)(x)


def _function(model: nn.Module, x: Any, folder: Path) -> Any:
    return dcir.optimize(lambda x: model(x))(x)


def _backend(model: nn.Module, x: Any, folder: Path) -> Any:
    try:
        return torch.compile(model, backend="dcir")(x)
    except BackendCompilerFailed as e:
        raise e.inner_exception from e


def _train_step(model: nn.Module, x: Any, folder: Path) -> Any:
    step = dcir.train_step(model, lambda y, target: y.sum(), torch.optim.SGD(model.parameters(), lr=0.1))
    return step(x, torch.ones(3))


def _save(model: nn.Module, x: Any, folder: Path) -> Any:
    return api.save(model, [x], folder / "model.dcir")


def _loaded(model: nn.Module, x: Any, folder: Path) -> Any:
    api.save(Network().eval(), [X], folder / "model.dcir")
    return dcir.load(folder / "model.dcir")(x)


Door = Callable[[nn.Module, Any, Path], Any]
COMPILING: list[Door] = [_optimize, _function, _backend, _train_step, _save]


def refused(door: Door, model: nn.Module, x: Any, folder: Path, what: str) -> None:
    """The error has three parts, and its first names what is wrong."""
    torch._dynamo.reset()
    with pytest.raises(DcirError, match=what) as caught:
        door(model, x, folder)
    assert caught.value.where and caught.value.hint


@pytest.mark.parametrize("door", COMPILING)
def test_a_model_and_its_input_on_another_device(door: Door, tmp_path: Path) -> None:
    refused(door, Network().to("meta"), X.to("meta"), tmp_path, r"(the model's .*|input .*) is on device meta")


@pytest.mark.parametrize("door", [d for d in COMPILING if d is not _backend] + [_loaded])
def test_an_input_on_another_device(door: Door, tmp_path: Path) -> None:
    """torch.compile's own error, for its other backends too, comes before any backend is asked."""
    refused(door, Network(), X.to("meta"), tmp_path, "input .* is on device meta")


@pytest.mark.parametrize("door", [_optimize, _train_step, _save])
def test_a_buffer_on_another_device(door: Door, tmp_path: Path) -> None:
    refused(door, Network("meta"), X, tmp_path, "the model's shift is on device meta")


def test_a_buffer_there_that_is_not_used() -> None:
    model = Network("meta")
    model.forward = model.layers.forward
    torch.testing.assert_close(dcir.optimize(model)(X), model(X))


def test_a_model_that_moves_after_it_was_compiled() -> None:
    model = Network()
    fast = dcir.optimize(model)
    with torch.no_grad():
        for _ in range(6):
            fast(X)
        fast.to("meta")
        with pytest.raises(DcirError, match="is on device meta"):
            fast(X)
        with pytest.raises(DcirError, match="is on device meta"):
            fast(X.to("meta"))
        fast.to_empty(device="cpu").load_state_dict(Network().state_dict())
        torch.testing.assert_close(fast(X), Network()(X))


@pytest.mark.parametrize("door", COMPILING)
def test_a_tensor_made_inside_on_another_device(door: Door, tmp_path: Path) -> None:
    class Inside(Network):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x).to("meta") * 2

    refused(door, Inside(), X, tmp_path, "a tensor on device meta cannot be in a compiled graph")


def test_a_result_on_another_device() -> None:
    with pytest.raises(Unsupported, match="device meta") as caught:
        dcir.optimize(lambda x: (x + 1, torch.zeros(3, device="meta")))(X)
    assert "zeros" in str(caught.value.where) and "test_other_tensors.py" in str(caught.value.where)


def test_an_onnx_model(tmp_path: Path) -> None:
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 18]> g (float[3] x) => (float[3] y) { y = Relu(x) }'
        ),
        tmp_path / "m.onnx",
    )
    fast = dcir.optimize(dcir.load(tmp_path / "m.onnx"))
    with pytest.raises(InvalidInput, match="input x is on device meta"):
        fast(torch.ones(3, device="meta"))


@pytest.mark.parametrize("door", [d for d in COMPILING if d is not _backend] + [_loaded])
def test_fake_tensors(door: Door, tmp_path: Path) -> None:
    """Of a tracer, from outside; their addresses are 0."""
    fake = FakeTensorMode(allow_non_fake_inputs=True).from_tensor(X)
    refused(door, Network(), fake, tmp_path, "is a fake tensor, which has no values")


def test_a_tracer_around_compiled_code(tmp_path: Path) -> None:
    fast = dcir.optimize(Network())
    api.save(Network().eval(), [X], tmp_path / "model.dcir")
    model = Network()
    step = dcir.train_step(model, lambda y, target: y.sum(), torch.optim.SGD(model.parameters(), lr=0.1))
    step(X, X)
    with torch.no_grad():
        for _ in range(6):
            fast(X)
    for call in (lambda: fast(X), lambda: dcir.load(tmp_path / "model.dcir")(X), lambda: step(X, X)):
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(DcirError, match="no values"):
            call()


def _left_to_torch(call: Callable[..., Any], x: Any) -> Any:
    """What a call gives that PyTorch computes, with a warning and a line in the report."""
    fast = dcir.optimize(call)
    with pytest.warns(NotCompiledWarning, match="which compiled code cannot read"):
        y = fast(x)
    assert not fast.dcir.session.graphs
    assert any("which compiled code cannot read" in u.reason for u in fast.dcir.explain().uncompiled)
    with pytest.raises(Unsupported, match="which compiled code cannot read"):
        dcir.optimize(call, strict=True)(x)
    return y


def test_nested_tensors() -> None:
    jagged = torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged)
    y = _left_to_torch(lambda x: torch.relu(x) * 2, jagged)
    for part, rows in zip(y.unbind(), (X, X[:2]), strict=True):
        assert torch.equal(part, torch.relu(rows) * 2)
    strided = dcir.optimize(lambda x: torch.relu(x) * 2)(torch.nested.nested_tensor([X, X[:2]]))
    assert torch.equal(strided.unbind()[1], torch.relu(X[:2]) * 2)


def test_mkldnn_tensors() -> None:
    y = _left_to_torch(torch.relu, X.to_mkldnn())
    assert torch.equal(y.to_dense(), torch.relu(X))


@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_bsr])
def test_sparse_tensors(make: Callable[..., Any]) -> None:
    """Dynamo traces nothing with one; one that is made inside ends its graph."""
    size = ((1, 1),) if make is torch.Tensor.to_sparse_bsr else ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparse = make(X, *size)
        got = dcir.optimize(lambda x: (x @ torch.ones(4, 2)) + 1)(sparse)
        inside = dcir.optimize(lambda x: make(x + 1, *size).to_dense() * 2)(X)
    assert torch.equal(got, X @ torch.ones(4, 2) + 1)
    assert torch.equal(inside, (X + 1) * 2)


def test_sparse_gradients(tmp_path: Path) -> None:
    """One that would be made inside is made by PyTorch, which is said; one that is there already is refused."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4, sparse=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(x) * 2

    x = torch.tensor([1, 2, 2])
    model = Table()
    with pytest.warns(NotCompiledWarning, match="a table's gradient is sparse"):
        dcir.optimize(model)(x).sum().backward()
    assert torch.equal(model.table.weight.grad.to_dense().sum(1) / 8, torch.tensor([0.0, 1, 2] + 6 * [0]))
    refused(_train_step, model, x, tmp_path, "the gradient of table.weight so far is stored as torch.sparse_coo")


@pytest.mark.parametrize(
    "x", [X.to_sparse(), X.to_mkldnn(), torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged)]
)
@pytest.mark.parametrize("door", [_train_step, _save, _loaded])
def test_what_is_stored_otherwise_where_all_is_one_program(door: Door, x: Any, tmp_path: Path) -> None:
    refused(door, Network(), x, tmp_path, "stored as|nested|NestedTensor")


@pytest.mark.filterwarnings("ignore:.*quantize.*")
def test_quantised_tensors(tmp_path: Path) -> None:
    """Given ones are left to PyTorch by Dynamo; made inside, they would look like plain ones to a tracer."""
    quantised = torch.quantize_per_tensor(X, 0.5, 3, torch.qint8)
    assert torch.equal(dcir.optimize(lambda x: x.dequantize() + 1)(quantised), quantised.dequantize() + 1)

    class Inside(Network):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.quantize_per_tensor(super().forward(x), 0.1, 3, torch.quint8).dequantize() + 1

    for door in (_optimize, _function, _save):
        refused(door, Inside().eval(), X, tmp_path, "quantize_per_tensor.default makes a quantised tensor")
    refused(_save, Network(), quantised, tmp_path, "quantised")
    refused(_loaded, Network(), quantised, tmp_path, "quantised")


def test_types_without_a_name() -> None:
    with pytest.raises(InvalidInput, match=r"input x is of type torch\.complex32"):
        dcir.optimize(lambda x: x.to(torch.complex64) + 1)(X.to(torch.complex32))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fn])
def test_types_without_code(dtype: torch.dtype) -> None:
    """Torch computes with them, inside the graph."""
    fast = dcir.optimize(lambda x: x.float() + 1)
    assert torch.equal(fast(X.abs().to(dtype)), X.abs().to(dtype).float() + 1)
    assert len(fast.dcir.session.graphs) == 1


def test_masked_tensors() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = masked_tensor(X, X > 0)
        assert torch.equal(dcir.optimize(lambda x: x * 2)(x).to_tensor(0), (X * 2).relu())


class Named(torch.Tensor):
    """A class that is kept by PyTorch's functions, and changes nothing."""


class Louder(torch.Tensor):
    """A class with an addition of its own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.add:
            args = (args[0], args[1] * 10)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_classes_with_functions_of_their_own() -> None:
    """Dynamo traces through them; results and gradients are theirs, in training too."""
    model = Network()
    fast = dcir.optimize(Network())
    for m in (model, fast):
        y = m(X.as_subclass(Named))
        assert type(y) is Named
        y.sum().backward()
    assert fast.dcir.session.graphs
    for a, b in zip(model.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad)
    x = X.clone().requires_grad_()
    add = dcir.optimize(lambda x: torch.add(x, 1))
    add(x.as_subclass(Louder)).sum().backward()
    assert torch.equal(add(X.as_subclass(Louder)), torch.add(X, 10))
    assert torch.equal(x.grad, torch.ones_like(X))


def test_classes_that_are_taken_apart() -> None:
    """AOTAutograd makes a graph of plain tensors of them; those are looked at, too."""
    model = Network()
    fast = dcir.optimize(Network())
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            got, want = fast(TwoTensor(X, X + 1)), model(TwoTensor(X, X + 1))
        torch.testing.assert_close((got.a, got.b), (want.a, want.b))
    assert [g.kind for g in fast.dcir.session.graphs] == ["forward", "inference"]
    with pytest.raises(InvalidInput, match="input x is on device meta"):
        fast(TwoTensor(X.to("meta"), X.to("meta")))


class Wrapped(torch.Tensor):
    """A tensor in another one, of a class that nobody can take apart."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = torch.utils._pytree.tree_map_only(cls, lambda t: t.inner, args)
        return torch.utils._pytree.tree_map_only(torch.Tensor, cls, func(*args, **(kwargs or {})))


def test_classes_that_compute_in_their_own_way(tmp_path: Path) -> None:
    got = dcir.optimize(lambda x: torch.relu(x) * 2)(Wrapped(X))
    assert torch.equal(got.inner, torch.relu(X) * 2)
    for door in (_train_step, _save, _loaded):
        refused(door, Network(), Wrapped(X), tmp_path, "is a Wrapped")
    model = Network()
    model.layers[0].bias = nn.Parameter(TwoTensor(torch.ones(4), torch.ones(4)))
    for door in (_train_step, _save):
        refused(door, model, X, tmp_path, "layers.0.bias is a TwoTensor")


def _lazy() -> torch.Tensor:
    x = torch.view_as_complex(torch.stack([X, X + 2], -1)).conj().imag
    assert x.is_neg() and not x.is_contiguous()
    return x


def test_negatives_that_are_not_written_out(tmp_path: Path) -> None:
    """PyTorch keeps the sign of such a view as a note beside the memory."""
    want = torch.relu(_lazy() * 2)
    fast = dcir.optimize(lambda x: torch.relu(x * 2))
    with torch.no_grad():
        for _ in range(6):
            assert torch.equal(fast(X), torch.relu(X * 2))
            assert torch.equal(fast(_lazy()), want)
    pieces = dcir.optimize(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    with torch.no_grad():
        for rows in (3, 5, 4, 9):
            x = torch._neg_view(torch.randn(rows, 4))
            torch.testing.assert_close(pieces(x), pieces.forward(x))
    assert "piece of any batch" in str(pieces.dcir.explain())
    for lazy in (_lazy(), torch._neg_view(X)):
        torch.testing.assert_close(_loaded(Network(), lazy, tmp_path), Network()(lazy))
    model, twin = Network(), Network()
    loss = _train_step(model, _lazy(), tmp_path)
    torch.testing.assert_close(loss, twin(_lazy()).sum().detach())


def test_conjugates_that_are_not_written_out() -> None:
    z = torch.view_as_complex(torch.stack([X, X + 2], -1)).conj()
    assert z.is_conj()
    fast = dcir.optimize(lambda z: z * 2)
    torch.testing.assert_close(fast(z), (z * 2).resolve_conj())
    torch.testing.assert_close(fast(z.resolve_conj()), (z * 2).resolve_conj())


def test_gradients_that_are_not_written_out() -> None:
    """What a backward is given may be such a view though nothing in its forward is."""
    grads = []
    for fn in (lambda x: x * 3, dcir.optimize(lambda x: x * 3)):
        x = X.clone().requires_grad_()
        fn(x).backward(_lazy())
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_forward_derivatives() -> None:
    """Compiled code has none: none are lost in silence, and torch.func has PyTorch compute them."""
    fast = dcir.optimize(lambda x: torch.sin(x))
    with torch.no_grad():
        for _ in range(6):
            fast(X)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
            with pytest.raises(InvalidInput, match="no forward-mode derivatives"):
                fast(dual)
    _, tangent = torch.func.jvp(fast, (X,), (torch.ones_like(X),))
    torch.testing.assert_close(tangent, torch.cos(X))
    torch.testing.assert_close(torch.func.vmap(fast)(X), torch.sin(X))
