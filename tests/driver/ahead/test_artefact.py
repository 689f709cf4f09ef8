"""A .dcir file gives the model's results anywhere on this machine, and anything wrong with it is said, not run."""

import copy
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import dcir
from dcir.driver import api
from dcir.driver.ahead.header import _string
from dcir.errors import ArtefactInvalid, IndexOutOfRange, InvalidInput, OptionError, Unsupported
from dcir.runtime import artefact as reader
from dcir.runtime.artefact import MEMBERS


class Everything(nn.Module):
    """Shared, strided, unused, half and integer state; nested, viewed and fixed results."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.conv = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.narrow = nn.Parameter(torch.randn(4).bfloat16())
        self.unused = nn.Parameter(torch.randn(3))
        self.register_buffer("table", torch.arange(12).reshape(3, 4).t())
        self.register_buffer("hidden", torch.tensor(3.0), persistent=False)
        self.plain = torch.ones(4)

    def forward(self, x, images, scale=2.0, flag=None):
        y = self.second(self.first(x)) * scale + self.narrow.float() + self.plain * self.hidden
        return {
            "y": y,
            "both": (y.t(), [x, None, 7]),
            "image": self.conv(images),
            "table": self.table + 1,
            "weight": self.first.weight,
        }


@pytest.fixture(scope="module", autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    path = tmp_path_factory.mktemp("linear") / "model.dcir"
    model = nn.Linear(8, 8).eval()
    api.save(model, [torch.zeros(1, 8)], path)
    return model, path


def test_results_and_state(tmp_path):
    model = Everything().eval()
    inputs = (torch.randn(3, 4), torch.randn(1, 2, 4, 4))
    report = api.save(model, inputs, tmp_path / "m.dcir")
    assert "graph 0 (inference)" in str(report)
    fast = dcir.load(tmp_path / "m.dcir")
    inputs = (torch.randn(3, 4), torch.randn(1, 2, 4, 4))
    got, want = fast(*inputs), model(*inputs)
    for name in ("y", "image", "table", "weight"):
        torch.testing.assert_close(got[name], want[name].detach(), rtol=1e-5, atol=1e-5)
        assert got[name].stride() == want[name].stride(), name
    assert got["both"][0].stride() == want["both"][0].stride()
    torch.testing.assert_close(got["both"][0], got["y"].t())
    assert got["both"][1][0] is inputs[0]
    assert got["both"][1][1:] == [None, 7]
    assert [x.name for x in fast.dcir.inputs] == ["x", "images"]
    state, original = fast.state_dict(), model.state_dict()
    assert set(state) == set(original)
    assert all(torch.equal(state[name], original[name]) for name in state)
    assert state["first.weight"].data_ptr() == state["second.weight"].data_ptr()
    assert state["conv.weight"].stride() == original["conv.weight"].stride()
    assert not list(fast.parameters())


def test_weights_can_be_exchanged(linear):
    model, path = linear
    other = nn.Linear(8, 8)
    fast = dcir.load(path)
    x = torch.randn(1, 8)
    torch.testing.assert_close(fast(x), model(x).detach())
    fast.load_state_dict(other.state_dict())
    torch.testing.assert_close(fast(x), other(x).detach())
    twin = copy.deepcopy(fast)
    fast.load_state_dict(model.state_dict())
    torch.testing.assert_close(twin(x), other(x).detach())


def _data(buffers, to):
    for name, b in buffers.items():
        b.data = to[name].clone()


def _set(buffers, to):
    for name, b in buffers.items():
        b.set_(to[name].clone())


def _vector(buffers, to):
    vector = nn.utils.parameters_to_vector(to.values())
    nn.utils.vector_to_parameters(vector, buffers.values())


MOVES = {"data": _data, "set_": _set, "vector_to_parameters": _vector}


class Sum(nn.Module):
    """Nothing of it is prepared."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 6))

    def forward(self, x):
        return x + self.weight


@pytest.fixture(params=["prepared", "plain", "sizes"])
def loaded(request, tmp_path):
    """A loaded model that was called, its example, and another model like that it was made of."""
    kind = Sum if request.param == "plain" else lambda: nn.Linear(6, 8)
    model, x = kind().eval(), torch.randn(8, 6)
    bounds = {"dynamic": {"input": {0: Dim("n", min=2, max=60)}}} if request.param == "sizes" else {}
    api.save(model, [x], tmp_path / "m.dcir", **bounds)
    fast = dcir.load(tmp_path / "m.dcir")
    assert bool(fast.dcir.manifest.prepared_bytes) == (request.param != "plain")
    for _ in range(3):
        fast(x)
    return fast, x, kind()


@pytest.mark.parametrize("move", MOVES)
def test_weights_in_other_memory_are_read_there(move, loaded):
    fast, x, other = loaded
    to = {name: p.detach() for name, p in other.named_parameters()}
    MOVES[move](dict(fast.named_buffers()), to)
    torch.testing.assert_close(fast(x), other(x).detach())
    torch.testing.assert_close(copy.deepcopy(fast)(x), other(x).detach())


def test_weights_may_be_shared_with_other_processes(loaded):
    fast, x, other = loaded
    assert fast.share_memory() is fast
    fast(x)
    fast.load_state_dict(other.state_dict())
    torch.testing.assert_close(fast(x), other(x).detach())
    assert all(b.is_shared() for b in fast.buffers())


def test_weights_in_another_layout_are_refused(loaded):
    fast, x, _ = loaded
    want, weight = fast(x), fast.weight.detach().clone()
    for other in (weight.double(), weight.flatten(), weight.t().contiguous().t(), weight.view(6, 8)):
        fast.weight.data = other
        for _ in range(2):
            with pytest.raises(InvalidInput, match="laid out otherwise") as caught:
                fast(x)
            assert caught.value.where == "weight"
        fast.weight.data = weight
        torch.testing.assert_close(fast(x), want)
    for look in (torch.t, torch.flatten, lambda w: w[:4]):  # in the same memory
        fast.weight.data = look(fast.weight.data)
        with pytest.raises(InvalidInput, match="laid out otherwise"):
            fast(x)
        fast.weight.data = weight
        torch.testing.assert_close(fast(x), want)


def test_the_same_model_gives_the_same_bytes(linear, tmp_path):
    model, path = linear
    api.save(model, [torch.zeros(1, 8)], tmp_path / "again.dcir")
    assert path.read_bytes() == (tmp_path / "again.dcir").read_bytes()


def test_a_call_is_short(linear):
    """What stands between the caller and the kernels is counted, not timed: machines are busy."""
    fast = dcir.load(linear[1])
    x = torch.randn(1, 8)
    fast(x)
    calls = []
    sys.setprofile(lambda frame, event, what: calls.append(event) if event in ("call", "c_call") else None)
    try:
        fast(x)
    finally:
        sys.setprofile(None)
    assert len(calls) <= 33, calls


def test_arguments(linear):
    model, path = linear
    fast = dcir.load(path)
    x = torch.randn(1, 8)
    want = model(x).detach()
    torch.testing.assert_close(fast(input=x), want)
    torch.testing.assert_close(fast(torch.randn(16, 1)[::2].t().copy_(x)), want)
    torch.testing.assert_close(fast(nn.Parameter(x, requires_grad=False)), want)
    with torch.no_grad():
        torch.testing.assert_close(fast(x.clone().requires_grad_()), want)
    for wrong, message in (
        ((), "0 inputs are given, the model takes 1: input"),
        ((x.numpy(),), "torch.from_numpy"),
        (([1.0],), "must be a tensor, it is a list"),
        ((x.double(),), "must have type torch.float32"),
        ((torch.randn(2, 8),), r"must have shape \[1, 8\], it has \[2, 8\]"),
        ((x.to("meta"),), "is on device meta"),
        ((x.clone().requires_grad_(),), "wants gradients"),
    ):
        with pytest.raises(InvalidInput, match=message):
            fast(*wrong)
    with pytest.raises(InvalidInput, match="unknown"):
        fast(y=x)


def test_hooks_and_modes(linear):
    fast = dcir.load(linear[1])
    x = torch.randn(1, 8)
    want = fast(x)
    assert not fast.training
    assert fast.eval() is fast
    assert fast.cpu() is fast and fast.float() is fast
    fast.register_forward_hook(lambda m, args, out: out + 1)
    torch.testing.assert_close(fast(x), want + 1)
    for act in (fast.train, fast.half, lambda: fast.to("meta")):
        with pytest.raises(InvalidInput):
            act()
    with pytest.raises(TypeError, match="keep its"):
        pickle.dumps(fast)


def test_a_forward_of_the_models_own(linear):
    fast = dcir.load(linear[1])
    x, own = torch.randn(1, 8), fast.forward
    want = fast(x)
    fast.forward = lambda x: own(x) + 100
    torch.testing.assert_close(fast(x), want + 100)
    del fast.forward
    torch.testing.assert_close(fast(x), want)


def test_results_do_not_change_later(linear):
    fast = dcir.load(linear[1])
    held = fast(torch.ones(1, 8))
    before = held.clone()
    fast(torch.zeros(1, 8))
    assert torch.equal(held, before)


def test_calls_into_torch_are_kept(tmp_path):
    class Solves(nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x), torch.cumsum(x, 0)

    x = torch.eye(3) + torch.rand(3, 3) / 10
    api.save(Solves(), [x], tmp_path / "m.dcir")
    fast = dcir.load(tmp_path / "m.dcir")
    assert fast.dcir.manifest.calls_into_torch
    for got, want in zip(fast(x), Solves()(x), strict=True):
        torch.testing.assert_close(got, want)
    with pytest.raises(Unsupported, match="linalg"):
        api.save(Solves(), [x], tmp_path / "n.dcir", strict=True)


def test_a_bad_index_is_an_error_and_the_model_goes_on(tmp_path):
    model = nn.Embedding(5, 3)
    api.save(model, [torch.tensor([1, 2])], tmp_path / "m.dcir")
    fast = dcir.load(tmp_path / "m.dcir")
    with pytest.raises(IndexOutOfRange):
        fast(torch.tensor([1, 5]))
    torch.testing.assert_close(fast(torch.tensor([4, 0])), model(torch.tensor([4, 0])).detach())


def test_what_has_no_place_in_a_file(tmp_path):
    path = tmp_path / "m.dcir"
    with pytest.raises(Unsupported, match="writes to running_mean") as caught:
        api.save(nn.BatchNorm1d(4), [torch.randn(3, 4)], path)
    assert "eval()" in str(caught.value)
    with pytest.raises(OptionError, match="target"):
        api.save(nn.Linear(2, 2), [torch.zeros(1, 2)], path, target="dace")

    class Decides(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(Unsupported, match="cannot be captured as one graph"):
        api.save(Decides(), [torch.zeros(2)], path)
    assert list(tmp_path.iterdir()) == []


def rewrite(source, target, *, change=None, drop=(), extra=None, method=zipfile.ZIP_STORED):
    """A copy of a .dcir file with some members exchanged, left out or added."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", method) as new:
        for name in old.namelist():
            if name not in drop:
                data = old.read(name)
                new.writestr(name, change(name, data) if change else data)
        for name, data in (extra or {}).items():
            new.writestr(name, data)


def edited(path, value):
    """A change of one entry of the manifest; ``value`` may be a function of the old one."""

    def change(name, data):
        if name != "manifest.json":
            return data
        manifest = json.loads(data)
        *way, last = path
        node = manifest
        for step in way:
            node = node[step]
        if value is KeyError:
            del node[last]
        else:
            node[last] = value(node[last]) if callable(value) else value
        return json.dumps(manifest).encode()

    return change


BROKEN = [
    (("format",), 1, "format 1"),
    (("format",), KeyError, "format None"),
    (("machine", "identity"), "0" * 40, "another processor"),
    (("table_size",), KeyError, "fields"),
    (("more",), 1, "fields"),
    (("table_size",), "4", "type int"),
    (("table_size",), True, "type int"),
    (("table_size",), 2, "free slot"),
    (("table_size",), -1, "possible size"),
    (("table_size",), 1 << 40, "possible size"),
    (("arena_bytes",), -1, "possible size"),
    (("inputs", 0, "slot"), 0, "free slot"),
    (("inputs", 0, "slot"), 10**6, "free slot"),
    (("inputs", 0, "slot"), 2, "free slot"),
    (("inputs", 0, "shape"), [1, -8], "possible shape"),
    (("inputs", 0, "shape"), [1 << 40, 1 << 40], "possible shape"),
    (("inputs", 0, "strides"), [8], "one number per dimension"),
    (("inputs", 0, "dtype"), "f31", "an element type"),
    (("inputs", 0, "name"), "", "named"),
    (("inputs",), {}, "a list"),
    (("constants", 0, "shape"), [9, 8], "another type or size"),
    (("constants", 0, "dtype"), "i32", "another type or size"),
    (("constants", 0, "tensor"), "other", "not those"),
    (("constants", 0, "names"), ["bias"], "named"),
    (("constants", 0, "names"), ["a..b"], "cannot be the name"),
    (("constants", 0, "names"), ["forward"], "cannot be the name"),
    (("constants", 0, "role"), "king", "parameter, buffer or constant"),
    (("outputs", 0, "index"), 5, "a buffer, an input or a literal"),
    (("outputs", 0, "source"), "file", "a buffer, an input or a literal"),
    (("outputs", 0, "shape"), [2, 8], "per dimension"),
    (("outputs", 0), lambda o: o | {"shape": [1, 8], "strides": [8, 1], "offset": 1}, "inside its memory"),
    (("outputs", 0), lambda o: o | {"shape": [1, 8], "strides": [8, 1], "offset": -1}, "inside its memory"),
    (("outputs", 0), lambda o: o | {"shape": [2, 8], "strides": [8, 1]}, "inside its memory"),
    (("result",), 1, "a nest of all outputs"),
    (("result",), {"tuple": [0, 0]}, "a nest of all outputs"),
    (("result",), {"exec": [0]}, "a nest of all outputs"),
    (("files", "network.so", "digest"), "../../x", "not the one"),
    (("files", "network.so", "size"), 3, "not the one"),
    (("files", "other.so"), {"size": 1, "digest": "a"}, "other members"),
    (("calls_into_torch",), [{"number": 0, "spec": {"c": "LoopNest", "v": {}}, "ins": [], "outs": []}], "call into"),
    (("calls_into_torch",), [{"number": 0, "spec": {"c": "os", "v": {}}, "ins": [], "outs": []}], "call into"),
    (("calls_into_torch",), [{"number": 0, "spec": 7, "ins": [], "outs": []}], "call into"),
]


@pytest.mark.parametrize(("path", "value", "message"), BROKEN)
def test_a_broken_manifest_is_refused(linear, tmp_path, path, value, message):
    bad = tmp_path / "bad.dcir"
    rewrite(linear[1], bad, change=edited(path, value))
    with pytest.raises(ArtefactInvalid, match=message) as caught:
        dcir.load(bad)
    assert str(bad) in str(caught.value)


def torch_call(name, slot=2, offset=0, shape=(1, 8)):
    window = [list(shape), [8, 1], "f32"]
    spec = {"name": name, "args": [["t", 0]], "kwargs": [], "ins": [window], "outs": [window]}
    return [{"number": 0, "spec": {"c": "TorchCall", "v": spec}, "ins": [[slot, offset]], "outs": [[slot, offset]]}]


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (torch_call("aten.no_such_operator.default"), "has no operator"),
        (torch_call("os.system"), "call into torch"),
        (torch_call("aten.relu.default", slot=999), "inside their memory"),
        (torch_call("aten.relu.default", offset=228), "inside their memory"),
        (torch_call("aten.relu.default", offset=-4), "inside their memory"),
        (torch_call("aten.relu.default", shape=(9, 8)), "inside their memory"),
    ],
)
def test_calls_into_torch_are_checked(linear, tmp_path, calls, message):
    bad = tmp_path / "bad.dcir"
    rewrite(linear[1], bad, change=edited(("calls_into_torch",), calls))
    with pytest.raises(ArtefactInvalid, match=message):
        dcir.load(bad)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_missing_or_changed_member_is_refused(linear, tmp_path, name):
    rewrite(linear[1], tmp_path / "without.dcir", drop=(name,))
    with pytest.raises(ArtefactInvalid, match="exactly the members"):
        dcir.load(tmp_path / "without.dcir")
    if name in ("manifest.json", "network.so", "weights.safetensors"):
        rewrite(linear[1], tmp_path / "changed.dcir", change=lambda n, d: d[:-1] + b"?" if n == name else d)
        with pytest.raises(ArtefactInvalid):
            dcir.load(tmp_path / "changed.dcir")


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "manifest.json", "evil.pkl"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_more_members_are_refused(linear, tmp_path, name):
    rewrite(linear[1], tmp_path / "bad.dcir", extra={name: b"{}"})
    with pytest.raises(ArtefactInvalid, match="exactly the members"):
        dcir.load(tmp_path / "bad.dcir")


def test_weights_are_never_unpickled(linear, tmp_path):
    import hashlib

    data = pickle.dumps({"weight": 1})
    entry = {"size": len(data), "digest": hashlib.blake2b(data, digest_size=20).hexdigest()}

    def change(name, old):
        old = edited(("files", "weights.safetensors"), entry)(name, old)
        return data if name == "weights.safetensors" else old

    rewrite(linear[1], tmp_path / "bad.dcir", change=change)
    with pytest.raises(ArtefactInvalid, match="weights are broken"):
        dcir.load(tmp_path / "bad.dcir")


def test_bombs_cuts_and_other_files(linear, tmp_path):
    bad = tmp_path / "bad.dcir"
    rewrite(linear[1], bad, method=zipfile.ZIP_DEFLATED)
    with pytest.raises(ArtefactInvalid, match="compressed"):
        dcir.load(bad)
    whole = linear[1].read_bytes()
    for size in (4, 100, len(whole) // 2, len(whole) - 1):
        bad.write_bytes(whole[:size])
        with pytest.raises(ArtefactInvalid):
            dcir.load(bad)
    deep = b"[" * 100_000
    rewrite(linear[1], bad, change=lambda n, d: deep if n == "manifest.json" else d)
    with pytest.raises(ArtefactInvalid, match="not JSON"):
        dcir.load(bad)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtefactInvalid, match="not an ordinary file"):
        reader.load_artefact(tmp_path / "pipe", identity="")
    with pytest.raises(OptionError, match="takes no options"):
        dcir.load(linear[1], level=2)


def test_the_library_is_kept_privately_under_its_digest(linear):
    fast = dcir.load(linear[1])
    assert fast.dcir.library.stem == fast.dcir.manifest.files["network.so"].digest
    assert Path(os.environ["DCIR_CACHE_DIR"]).resolve() in fast.dcir.library.resolve().parents
    assert fast.dcir.library.stat().st_mode & 0o077 == 0


def test_report_and_graph(linear, tmp_path):
    import dace

    fast = dcir.load(linear[1])
    assert fast.dcir.report["graphs"][0]["kind"] == "inference"
    assert "graph 0 (inference)" in api.explain_file(linear[1]).to_text()
    with zipfile.ZipFile(linear[1]) as archive:
        (tmp_path / "network.sdfgz").write_bytes(archive.read("network.sdfgz"))
    assert dace.SDFG.from_file(str(tmp_path / "network.sdfgz")).number_of_nodes() == 1


def test_a_report_whose_file_is_gone(linear, tmp_path):
    moved = tmp_path / "model.dcir"
    moved.write_bytes(linear[1].read_bytes())
    fast = dcir.load(moved)
    moved.unlink()
    with pytest.raises(ArtefactInvalid, match="cannot be read any more") as caught:
        fast.dcir.report  # noqa: B018
    assert caught.value.where == str(moved) and "keep the file" in caught.value.hint
    fast(torch.zeros(1, 8))


def test_names_cannot_end_a_string_of_the_header():
    assert _string('a"b\\\n*/??/') == '"a\\042b\\134\\012\\052/\\077\\077/"'


def test_from_c(tmp_path):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)).eval()
    model.register_parameter('odd"name', nn.Parameter(torch.zeros(1)))
    x = torch.randn(1, 1, 6, 6)
    api.save(model, [x], tmp_path / "model.dcir", strict=True)
    x.numpy().tofile(tmp_path / "x.bin")
    examples = Path(__file__).parents[3] / "examples"
    command = ["make", "-s", "-C", str(examples), "run", f"MODEL={tmp_path}/model.dcir", f"FOLDER={tmp_path}/unpacked"]
    done = subprocess.run([*command, f"INPUTS={tmp_path}/x.bin"], capture_output=True, text=True, check=True)
    name, *values = done.stdout.split()
    assert "warning" not in done.stderr
    assert name == "y0"
    torch.testing.assert_close(torch.tensor([float(v) for v in values]), model(x)[0].detach(), rtol=1e-4, atol=1e-5)


def test_loading_compiles_nothing(linear):
    code = (
        "import sys, torch, dcir; from dcir.codegen.cpp.compiler_process import compiler_runs;"
        "dcir.load(sys.argv[1])(torch.zeros(1, 8)); sys.exit(compiler_runs.total)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(linear[1])], check=True)
