"""What is said of tensors that compiled code cannot read, a GPU's among them, which no GPU is needed for."""

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dcir.errors import InvalidInput, Unsupported
from dcir.frontends.torch.admission import Named, refuse, refuse_unless_plain
from dcir.frontends.torch.importer import import_graph
from dcir.ops.reach import elsewhere, of_a_class, of_unknown_type, otherwise_stored, out_of_reach, without_values

X = torch.ones(2, 3)


class Claims(torch.Tensor):
    """A tensor that says it is on a GPU."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (2, 3), device="cuda:1")

    __torch_dispatch__ = None


def on_a_gpu(shape=(2, 3)):
    with FakeTensorMode():
        return torch.empty(shape, device="cuda")


def test_plain_tensors():
    lazy = torch.complex(X, X).conj()
    for t in (
        X,
        nn.Parameter(X),
        X.t(),
        X[:, 1:],
        X.bool(),
        X.double(),
        lazy,
        lazy.imag,
        torch.empty(0),
        X.expand(4, 2, 3),
    ):
        assert out_of_reach(t) is None


@pytest.mark.parametrize(
    ("look", "t", "what"),
    [
        (elsewhere, X.to("meta"), "on device meta"),
        (elsewhere, on_a_gpu(), "on device cuda:0"),
        (elsewhere, Claims(), "on device cuda:1"),
        (otherwise_stored, X.to_sparse(), "stored as torch.sparse_coo"),
        (otherwise_stored, X.to_mkldnn(), "stored as torch._mkldnn"),
        (otherwise_stored, torch.nested.nested_tensor([X, X]), "nested (torch.strided)"),
        (of_unknown_type, X.to(torch.complex32), "of type torch.complex32"),
        (without_values, on_a_gpu(), "a fake tensor, which has no values"),
        (of_a_class, Claims(), "a Claims"),
    ],
)
def test_what_is_said(look, t, what):
    assert look(t) == what


def test_a_gpu_is_refused_by_name():
    with pytest.raises(InvalidInput, match="input x is on device cuda:1") as caught:
        refuse([Named("y", own=False, tensor=X), Named("x", own=False, tensor=Claims())])
    assert caught.value.where == "x" and "cpu()" in str(caught.value.hint)
    with pytest.raises(Unsupported, match=r"the model's layer.weight is on device cuda:1"):
        refuse([Named("layer.weight", own=True, tensor=Claims())])
    with pytest.raises(InvalidInput, match="input x is a Claims"):
        refuse_unless_plain([Named("x", own=False, tensor=Claims())])
    refuse([Named("x", own=False, tensor=X)])


@pytest.mark.parametrize("place", ["input", "inside"])
def test_a_graph_on_a_gpu_is_refused(place):
    graph = fx.Graph()
    given = graph.placeholder("x")
    given.meta["val"] = on_a_gpu() if place == "input" else FakeTensorMode().from_tensor(X)
    made = graph.call_function(torch.ops.aten.relu.default, (given,))
    made.meta["val"] = on_a_gpu()
    graph.output((made,))
    where = "input x" if place == "input" else "aten.relu.default"
    with pytest.raises(Unsupported, match="a tensor on device cuda:0 cannot be in a compiled graph") as caught:
        import_graph(fx.GraphModule(nn.Module(), graph))
    assert caught.value.where == where
