"""Sizes that change: one trace for all of them, bounds, a word with its cause when something is compiled, and a limit."""

import copy
import threading
import warnings

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.export import Dim

import dcir
from dcir.errors import InvalidInput, OptionError, RecompileWarning
from dcir.frontends.torch import capture


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.fixture
def traces(monkeypatch):
    """How often Dynamo hands a graph on."""
    made = []
    for name in ("ahead_of_time", "BySize"):
        real = getattr(capture, name)

        def counting(*args, real=real, name=name, **options):
            made.append(name)
            return real(*args, **options)

        monkeypatch.setattr(capture, name, counting)
    return made


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x, y=None):
        x = torch.relu(self.linear(x))
        return x if y is None else x * y


class Centred(Two):
    def forward(self, x, y=None):
        return super().forward(x - x.mean(0), y)  # every row depends on all rows


def agree(module, fast, *inputs):
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), module(*inputs), rtol=1e-5, atol=1e-5)


def causes(caught):
    return [str(w.message) for w in caught if w.category is RecompileWarning]


def test_sizes_become_symbolic_at_the_first_change(traces):
    fast = dcir.optimize(module := Two().eval())
    for n in (3, 5, 7, 5):
        agree(module, fast, torch.randn(n, 6))
    assert traces.count("BySize") == 1 and traces[0] == "ahead_of_time"
    assert [dict(g.sizes) for g in fast.dcir.session.graphs] == [{}, {"x[0]": 5}, {"x[0]": 4}]


def test_true_makes_them_symbolic_at_once(traces):
    fast = dcir.optimize(module := Two().eval(), dynamic=True)
    for n in (3, 5, 7):
        agree(module, fast, torch.randn(n, 6))
    assert traces[0] == "BySize" and traces.count("BySize") == 1
    report = str(fast.dcir.explain())
    assert "3 combinations compiled" in report and "x[0]=2 (a piece of any batch" in report


def test_false_traces_every_size(traces):
    fast = dcir.optimize(module := Two().eval(), dynamic=False)
    with pytest.warns(RecompileWarning, match="dynamic=False"):
        for n in (3, 5, 7):
            agree(module, fast, torch.randn(n, 6))
    assert traces == ["ahead_of_time"] * 3


def test_false_holds_for_what_another_program_has_seen(traces):
    """AOTAutograd notes on a tensor that is kept for a backward which of its sizes move."""
    moving, fast = (dcir.optimize(Two(), dynamic=dynamic) for dynamic in (True, False))
    for n in (3, 5):
        moving(x := torch.randn(n, 6)).sum().backward()
    noted = dict(x.__dict__)
    assert noted
    traces.clear()
    fast(x)
    assert traces == ["ahead_of_time"] and x.__dict__ == noted


@pytest.mark.parametrize("key", ["x", 0])
def test_bounds(key, traces):
    fast = dcir.optimize(module := Two().eval(), dynamic={key: {0: Dim("batch", min=3, max=8)}})
    for n in (3, 8, 5):
        x = torch.randn(n, 6)
        agree(module, fast, x)
        assert not x.__dict__  # the marks are gone
    assert traces.count("BySize") == 1
    for n in (2, 9):
        with pytest.raises(
            InvalidInput, match=rf"input x: dimension 0 \(batch\) has size {n}, outside its bounds 3..8"
        ):
            fast(torch.randn(n, 6))
    with pytest.raises(InvalidInput, match=r"dimension 0, its shape is \[\]"):
        fast(torch.tensor(1.0))
    with pytest.raises(InvalidInput, match="it is a list"):
        fast([1.0])


def test_bounds_hold_after_many_equal_calls():
    fast = dcir.optimize(module := Two().eval(), dynamic={"x": {0: (None, 4)}})
    for _ in range(8):  # the short way of repeated calls is open now
        agree(module, fast, torch.randn(4, 6))
    with pytest.raises(InvalidInput, match=r"bounds \.\.4"), torch.no_grad():
        fast(torch.randn(5, 6))


def test_equal_names_are_equal_sizes():
    fast = dcir.optimize(module := Two().eval(), dynamic={"x": {0: "n"}, "y": {-2: "n"}})
    for n in (3, 5):
        agree(module, fast, torch.randn(n, 6), torch.randn(n, 4))
        agree(module, fast, torch.randn(n, 6))
    with pytest.raises(InvalidInput, match=r"dimension 'n' is 5 in x\[0\] and 1 in y\[0\]"):
        fast(torch.randn(5, 6), torch.randn(1, 4))
    with torch.no_grad():
        fast(torch.randn(7, 6), y=torch.randn(7, 4))


def test_sizes_of_one_have_their_own_program():
    fast = dcir.optimize(module := Two().eval(), dynamic={"x": {0: "n"}})
    for n in (1, 4, 1, 0, 6):
        agree(module, fast, torch.randn(n, 6))


def test_unknown_inputs_are_refused():
    for key, word in (("z", "one of x, y"), (2, "0 to 1")):
        with pytest.raises(OptionError, match=word):
            dcir.optimize(Two(), dynamic={key: {0: "n"}})


def test_a_model_of_one_size_says_so():
    class OneSize(nn.Module):
        def forward(self, x):
            return x.view(4, -1) if x.shape[0] == 4 else x * 2

    fast = dcir.optimize(OneSize(), dynamic={"x": {0: "n"}})
    with pytest.raises(OptionError, match="one size in this model"):
        fast(torch.randn(4, 6))
    soft = dcir.optimize(OneSize(), dynamic={"x": {0: Dim.AUTO}})
    for n in (4, 5, 6):
        agree(OneSize(), soft, torch.randn(n, 6))


def test_warnings_name_the_cause():
    fast = dcir.optimize(module := Two().eval())
    calls = [
        (torch.randn(3, 6), None),
        (torch.randn(5, 6), "x: size of dimension 0 was 3, is 5"),
        (torch.randn(6, 5).t(), "x: strides were (6, 1), are (1, 5)"),
        (torch.randn(2, 5, 6), "x: had 2 dimensions, has 3"),
        (torch.randn(5, 6), None),
    ]
    for x, cause in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            agree(module, fast, x)
        assert [cause in text for text in causes(caught)] == [True] * (cause is not None), (cause, causes(caught))
        assert all(w.filename == __file__ for w in caught if w.category is RecompileWarning)


class Cache:
    """Keys and values as transformers holds them: an object with a list of objects."""

    def __init__(self, length):
        self.layers = [Layer(length), Layer(length)]


class Layer:
    def __init__(self, length):
        self.keys = torch.randn(length, 6)


class Reads(nn.Module):
    def forward(self, x, cache=None, scales=()):
        for layer in cache.layers:
            x = x @ layer.keys.t() @ layer.keys
        return x * sum(scales)


def test_warnings_look_into_objects_and_say_a_cause_once():
    fast = dcir.optimize(module := Reads().eval(), dynamic=False)
    x = torch.randn(3, 6)
    told = []
    for length, scales in ((4, [1.0]), (5, [1.0]), (6, [1.0]), (6, [1.0, torch.ones(())]), (7, [1.0])):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            agree(module, fast, x, Cache(length), scales)
        told.append(causes(caught))
    assert [len(t) for t in told] == [0, 1, 0, 1, 0]
    assert "cache.layers[0].keys: size of dimension 0 was 4, is 5; cache.layers[1].keys: " in told[1][0]
    assert "scales[1]: is new" in told[3][0]


def test_causes_that_were_told_together_are_not_told_one_by_one():
    """As of a decoder: the first token changes prompt and cache, the next prompt the prompt alone."""
    fast = dcir.optimize(module := Reads().eval(), dynamic=False)
    told = []
    for rows, length in ((3, 4), (1, 5), (4, 4), (1, 6)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            agree(module, fast, torch.randn(rows, 6), Cache(length), [1.0])
        told.append(causes(caught))
    assert [len(t) for t in told] == [0, 1, 0, 0]
    assert "x: size of dimension 0 was 3, is 1; cache.layers[0].keys: " in told[1][0]


def test_modes_and_the_first_call_are_no_cause():
    fast = dcir.optimize(module := Two())
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)
        fast(torch.randn(3, 6)).sum().backward()
        agree(module, fast, torch.randn(3, 6))
        fast.eval()
        agree(module, fast, torch.randn(3, 6))


def test_beyond_the_limit_calls_run_in_torch():
    fast = dcir.optimize(module := Centred().eval(), dynamic=True, shape_limit=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in (3, 5, 7, 9, 3):
            agree(module, fast, torch.randn(n, 6))
    assert sum("limit" in text for text in causes(caught)) == 1
    assert len(fast.dcir.session.graphs) == 2
    x = torch.randn(11, 6, requires_grad=True)
    fast(x).sum().backward()
    want = x.detach().clone().requires_grad_()
    module(want).sum().backward()
    torch.testing.assert_close(x.grad, want.grad)


def test_training_with_changing_sizes():
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))
    fast = dcir.optimize(copy.deepcopy(module), dynamic={"input": {0: Dim("n", max=64)}})
    for n in (4, 7, 33, 4):
        x = torch.randn(n, 6)
        for net in (module, fast):
            net.zero_grad()
            net(x).square().sum().backward()
        for a, b in zip(fast.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_threads_with_their_own_sizes():
    fast = dcir.optimize(module := Two().eval(), dynamic=True)
    failed = []

    def work(n):
        try:
            for _ in range(20):
                agree(module, fast, torch.randn(n, 6))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (2, 3, 5, 8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_free_dimensions_of_a_file(tmp_path, traces):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 6])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "m.onnx")
    fast = dcir.load(tmp_path / "m.onnx", dynamic=True)
    for n in (3, 5, 1, 8):
        value = torch.randn(n, 6)
        torch.testing.assert_close(fast(value), value.relu())
    assert traces.count("BySize") == 1
    with pytest.raises(InvalidInput, match="must have shape"):
        fast(torch.randn(3, 7))


def test_numbers_that_change_with_the_sizes():
    def scaled(x, scale, shift=1.0):
        return x * scale + (shift + scale)

    fast = dcir.optimize(scaled, dynamic=True)
    for n, scale in ((3, 2.0), (4, 2.0), (4, 3.5), (3, -1.0)):
        agree(scaled, fast, torch.randn(n, 9), scale)


def test_functions_and_the_backend():
    def double(x, *, scale=2.0):
        return x * scale

    fast = dcir.optimize(double, dynamic={"x": {1: (2, 5)}})
    for n in (2, 5):
        agree(double, fast, torch.randn(3, n))
    with pytest.raises(InvalidInput, match=r"bounds 2\.\.5"):
        fast(torch.randn(3, 6))
    plain = torch.compile(double, backend="dcir", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)  # one program serves both
        for n in (3, 4):
            agree(double, plain, torch.randn(n, 9))
    # More sizes may move than can in one program; those that stay are constants of it.
    images, before = torch.compile(nn.functional.conv1d, backend="dcir", dynamic=True), dcir.sessions()
    for n in (8, 9, 14, 11, 30):
        agree(nn.functional.conv1d, images, torch.randn(2, 3, n), torch.randn(4, 3, 5))
    (session,) = (s for s in dcir.sessions() if s not in before)
    assert [bool(g.bounds) for g in session.explain().graphs] == [False, True]
    torch._dynamo.reset()
    with pytest.raises(Exception, match="no option of the backend"):
        torch.compile(double, backend="dcir", options={"dynamic": True})(torch.randn(3))


def test_files_and_steps_refuse(tmp_path):
    from dcir.driver.api import save

    with pytest.raises(OptionError, match="names and bounds of the sizes"):
        save(Two().eval(), [torch.randn(3, 6)], tmp_path / "m.dcir", dynamic=True)
    model = nn.Linear(2, 1)
    with pytest.raises(OptionError, match="found out by a training step"):
        dcir.train_step(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), dynamic=True)
