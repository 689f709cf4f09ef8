"""A .dcir file for sizes within bounds gives the model's results at all of them, and says what it cannot do."""

from __future__ import annotations

import copy
import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.export import Dim

import dcir
from dcir.cli.main import main
from dcir.driver import api
from dcir.errors import ArtefactInvalid, InvalidInput, OptionError, Unsupported

BATCHES = (1, 2, 3, 5, 16, 17, 33, 64)


class Net(nn.Module):
    """Convolution, normalisation and a product, with results nested in others and fixed ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, object]:
        y = torch.relu(self.norm(self.first(x))).mean((2, 3)) * scale
        return {"y": self.last(y.view(x.shape[0], -1)), "more": [None, 7, y]}


class Centred(nn.Module):
    """Every row depends on all rows."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0) + y


class Cut(nn.Module):
    """Is no network for all sizes (a third of a square is no polynomial), and mixes the rows."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return (torch.sort(x, 0)[0] + y).repeat(n, 1)[: n * n // 3 + 1]


class Branches(nn.Module):
    """Other sizes, other graphs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 2 else x + 1


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, Path]:
    torch.manual_seed(0)
    model, path = Net().eval(), tmp_path_factory.mktemp("net") / "model.dcir"
    report = api.save(model, _inputs(3), path, dynamic={"x": {0: Dim("b", min=1, max=64)}})
    assert "a piece of any batch: 16 images" in str(report)
    return model, path


@pytest.fixture(scope="module")
def centred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("centred") / "model.dcir"
    example = [torch.randn(3, 4), torch.randn(3, 4)]
    api.save(Centred(), example, path, dynamic={"x": {0: Dim("n", min=2, max=4)}, 1: {-2: "n"}})
    return path


def _inputs(images: int) -> list[torch.Tensor]:
    return [torch.randn(images, 3, 8, 7), torch.randn(8)]


def test_any_batch_in_pieces(net) -> None:
    model, path = net
    fast = dcir.load(path)
    assert [d.known.bounds for d in fast.dcir.dimensions] == ["1..64"]
    assert fast.dcir.sizes.programs == ((1,), (2,), (4,), (16,), (64,))
    for images in BATCHES:
        x, scale = _inputs(images)
        for given in (x, x.to(memory_format=torch.channels_last), torch.cat([x, x], 3)[..., :7]):
            got, want = fast(given, scale=scale), model(given, scale)
            torch.testing.assert_close(got["y"], want["y"].detach(), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(got["more"][2], want["more"][2].detach(), rtol=1e-4, atol=1e-5)
            assert got["more"][:2] == [None, 7]


def test_weights_are_stored_once_and_can_be_exchanged(net) -> None:
    model, path = net
    fast, other = dcir.load(path), Net().eval()
    assert set(fast.state_dict()) == set(model.state_dict())
    x, scale = _inputs(21)
    before = fast(x, scale)["y"]
    twin = copy.deepcopy(fast)
    fast.load_state_dict(other.state_dict())
    for images in (1, 3, 21):
        torch.testing.assert_close(
            fast(x[:images], scale)["y"], other(x[:images], scale)["y"].detach(), rtol=1e-4, atol=1e-5
        )
    assert torch.equal(twin(x, scale)["y"], before)
    with zipfile.ZipFile(path) as archive:
        assert len(archive.read("weights.safetensors")) < 2 * sum(t.nbytes for t in model.state_dict().values()) + 2000


def test_sizes_outside_and_other_mistakes(net, centred) -> None:
    fast = dcir.load(net[1])
    x, scale = _inputs(3)
    for images in (0, 65):
        with pytest.raises(
            InvalidInput, match=rf"input x: dimension 0 \(b\) has size {images}, outside its bounds 1\.\.64"
        ):
            fast(torch.zeros(images, 3, 8, 7), scale)
    for wrong, message in (
        ((x[..., :6], scale), r"must have shape \[b, 3, 8, 7\], it has \[3, 3, 8, 6\]"),
        ((x[0], scale), r"must have shape \[b, 3, 8, 7\]"),
        ((x, scale[:7]), r"must have shape \[8\]"),
        ((x.double(), scale), "must have type torch.float32"),
        (([1.0], scale), "it is a list"),
        ((x.clone().requires_grad_(), scale), "wants gradients"),
        ((x,), "1 inputs are given"),
    ):
        with pytest.raises(InvalidInput, match=message):
            fast(*wrong)
    with pytest.raises(InvalidInput, match=r"dimension 'n' is 3 in x\[0\] and 4 in y\[0\]"):
        dcir.load(centred)(torch.randn(3, 4), torch.randn(4, 4))


def test_what_mixes_images_has_a_program_for_each_size(centred) -> None:
    fast = dcir.load(centred)
    assert fast.dcir.sizes.batch == -1 and fast.dcir.sizes.programs == ((2,), (3,), (4,))
    assert fast.dcir.sizes.moving == (None, None, None)  # too few sizes for one program
    for n in (2, 3, 4):
        x, y = torch.randn(n, 4), torch.randn(n, 4)
        torch.testing.assert_close(fast(x, y), Centred()(x, y))


def test_other_sizes_than_the_batch(tmp_path) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Softmax(1)).eval()
    sizes = {0: {0: Dim("b", min=3), 1: Dim("s", min=2, max=3)}}
    api.save(model, [torch.randn(5, 2, 6)], tmp_path / "m.dcir", dynamic=sizes)
    fast = dcir.load(tmp_path / "m.dcir")
    assert len(fast.dcir.sizes.programs) == 8 and fast.dcir.dimensions[0].most is None
    for b, s in ((3, 2), (3, 3), (7, 3), (130, 2)):
        x = torch.randn(b, s, 6)
        torch.testing.assert_close(fast(x), model(x).detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidInput, match=r"bounds 2\.\.3"):
        fast(torch.randn(3, 4, 6))


def test_conditions_on_sizes_are_decided_for_each(tmp_path) -> None:
    api.save(Branches(), [torch.randn(2, 4)], tmp_path / "m.dcir", dynamic={"x": {0: (1, 8)}})
    fast = dcir.load(tmp_path / "m.dcir")
    for n in range(1, 9):
        x = torch.randn(n, 4)
        torch.testing.assert_close(fast(x), Branches()(x))


def test_refusals(tmp_path) -> None:
    example, path = [torch.randn(3, 4), torch.randn(3, 4)], tmp_path / "m.dcir"
    for most, words in ((64, "64 programs, shape_limit is 16"), (None, "n has no upper bound")):
        with pytest.raises(Unsupported, match="too many programs") as caught:
            api.save(Cut(), example, path, dynamic={"x": {0: Dim("n", max=most)}, "y": {0: "n"}})
        assert words in str(caught.value) and "one for all" in str(caught.value)
    assert "no polynomial of the sizes" in str(caught.value) or "no upper bound" in str(caught.value)
    for dynamic, words in (
        (True, "names and bounds"),
        ({"z": {0: "n"}}, "'z' of the example is no tensor"),
        ({"x": {2: "n"}}, "no dimension 2"),
        ({"x": {0: (0, 4)}}, "begin at 1"),
    ):
        with pytest.raises(OptionError, match=words):
            api.save(Centred(), example, path, dynamic=dynamic)
    with pytest.raises(InvalidInput, match=r"size 3, outside its bounds 4\.\."):
        api.save(Centred(), example, path, dynamic={"x": {0: (4, 5)}})
    assert not list(tmp_path.iterdir())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """softmax(x @ w), with a free batch."""
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((5, 3), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Softmax", ["m"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    path = tmp_path / "model.onnx"
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


@pytest.mark.parametrize("words", [["--bound", "batch=1..64"], ["--shape", "x=[b,5]", "--bound", "b=2.."]])
def test_the_command_line(file, tmp_path, words) -> None:
    done = CliRunner().invoke(main, ["compile", str(file), "-o", str(tmp_path / "m.dcir"), "--plain", *words])
    assert done.exit_code == 0, done.output
    plain = dcir.load(file)
    for images in (2, 7):
        x = np.random.default_rng(images).standard_normal((images, 5)).astype(np.float32)
        np.save(tmp_path / "x.npy", x)
        ran = CliRunner().invoke(
            main,
            ["run", str(tmp_path / "m.dcir"), "--input", f"x={tmp_path / 'x.npy'}", "--output", str(tmp_path / "out")],
        )
        assert ran.exit_code == 0, ran.output
        want = plain.eval()(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), want, rtol=1e-5, atol=1e-6)
    np.save(tmp_path / "x.npy", np.zeros((0, 5), np.float32))
    ran = CliRunner().invoke(main, ["run", str(tmp_path / "m.dcir"), "--input", str(tmp_path / "x.npy")])
    assert ran.exit_code == 2 and "outside its bounds" in ran.output
    explained = CliRunner().invoke(main, ["explain", str(tmp_path / "m.dcir")])
    assert explained.exit_code == 0 and "a piece of any batch: 4 images" in explained.output


def test_sizes_that_follow_from_others_in_a_file(tmp_path) -> None:
    """x @ t', where t has 2*s+1 rows: in the file by name, or on the command line; and the check of it."""
    nodes = [helper.make_node("MatMul", ["x", "t"], ["m"]), helper.make_node("Softmax", ["m"], ["y"], axis=1)]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    for rows, words in (("2*s + 1", []), ("r", ["--shape", "x=[b,s,5]", "--shape", "t=[5,2*s+1]"])):
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", 5])
        t = helper.make_tensor_value_info("t", TensorProto.FLOAT, [5, rows])
        graph = helper.make_graph(nodes, "g", [x, t], [y], [])
        path = tmp_path / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
        bounds = ["--bound", "b=2..20", "--bound", "s=2..30"]
        done = CliRunner().invoke(main, ["check", str(path), "--plain", *words, *bounds])
        assert done.exit_code == 0 and "b=20, s=2: y" in done.output, done.output
        done = CliRunner().invoke(
            main, ["compile", str(path), "-o", str(tmp_path / "m.dcir"), "--plain", *words, *bounds]
        )
        assert done.exit_code == 0, done.output
        fast = dcir.load(tmp_path / "m.dcir")
        assert len(fast.dcir.sizes.programs) == 1 and fast.dcir.dimensions[1].related == ((1, 1, 2, 1),)
        x, t = torch.randn(3, 7, 5), torch.randn(5, 15)
        torch.testing.assert_close(fast(x, t), torch.softmax(x @ t, 1), rtol=1e-5, atol=1e-6)
        inputs = []
        for name, value in (("x", x), ("t", t)):
            np.save(tmp_path / f"{name}.npy", value.numpy())
            inputs += ["--input", f"{name}={tmp_path / name}.npy"]
        ran = CliRunner().invoke(main, ["run", str(tmp_path / "m.dcir"), *inputs, "--output", str(tmp_path / "out")])
        assert ran.exit_code == 0 and "3x7x15" in ran.output, ran.output
        np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), fast(x, t).numpy())
        explained = CliRunner().invoke(main, ["explain", str(tmp_path / "m.dcir")])
        assert "for all sizes: b 2 to " in explained.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bound", "c=1..4"], "no dimension of an input is named 'c'"),
        (["--bound", "batch=4"], "does not look like"),
        (["--bound", "batch=4..1"], "lower bound last"),
        (["--bound", "batch=1..__import__('os')"], "does not look like"),
        (["--bound", "batch=0..4"], "begin at 1"),
        (["--bound", "batch=1..9999999999999"], "does not look like"),
        ([], "--bound batch=1..64"),
    ],
)
def test_wrong_bounds_on_the_command_line(file, tmp_path, words, message) -> None:
    done = CliRunner().invoke(main, ["compile", str(file), "-o", str(tmp_path / "m.dcir"), "--plain", *words])
    assert done.exit_code == 2 and message in done.output, done.output
    assert not (tmp_path / "m.dcir").exists()


def _rewritten(source: Path, target: Path, changes: dict[str, object]) -> None:
    """A copy with changed members: JSON by a function, others by bytes; digests are those of the changed members."""
    with zipfile.ZipFile(source) as old:
        members = {name: old.read(name) for name in old.namelist()}
    for name, change in changes.items():
        if name != "manifest.json":
            members[name] = json.dumps(change(json.loads(members[name]))).encode() if callable(change) else change
    document = json.loads(members["manifest.json"])
    for name, entry in document["files"].items():
        data = members[name]
        entry |= {"size": len(data), "digest": hashlib.blake2b(data, digest_size=20).hexdigest()}
    change = changes.get("manifest.json", lambda d: d)
    members["manifest.json"] = json.dumps(change(document)).encode()
    with zipfile.ZipFile(target, "w") as new:
        for name, data in members.items():
            new.writestr(name, data)


def _with(*way: object, to: object):
    """A change of one place of a document."""

    def change(document):
        node = document
        for step in way[:-1]:
            node = node[step]
        node[way[-1]] = to(node[way[-1]]) if callable(to) else to
        return document

    return change


BROKEN = [
    (_with("sized", to=1), "sized"),
    (_with("sized", to=True), "sized"),
    (_with("more", to=1), "fields"),
    (_with("dimensions", to=[]), "named differently"),
    (_with("dimensions", 0, "name", to=""), "named differently"),
    (_with("dimensions", 0, "name", to=["b"]), "type str"),
    (_with("dimensions", 0, "least", to=0), "bounds from 1 up"),
    (_with("dimensions", 0, "least", to=-5), "bounds from 1 up"),
    (_with("dimensions", 0, "least", to="1"), "type int"),
    (_with("dimensions", 0, "least", to=2**70), "bounds from 1 up"),
    (_with("dimensions", 0, "most", to=0), "bounds from 1 up"),
    (_with("dimensions", 0, "most", to=2**70), "bounds from 1 up"),
    (_with("dimensions", 0, "most", to="exec('1')"), "type int"),
    (_with("dimensions", 0, "places", to=[]), "where the size stands"),
    (_with("dimensions", 0, "places", to=[[0, 0], [0, 0]]), "places of their own"),
    (_with("dimensions", 0, "places", to=[[0, 1]]), "first dimension of inputs"),
    (_with("dimensions", 0, "places", to=[[9, 0]]), "dimensions of inputs"),
    (_with("dimensions", 0, "places", to=[[-1, 0]]), "dimensions of inputs"),
    (_with("dimensions", 0, "places", to=[[1, 0]]), r"inputs\[1\].shape"),
    (_with("batch", to=1), "number of a dimension"),
    (_with("batch", to=-2), "number of a dimension"),
    (_with("batch", to=-1), "one for every size within the bounds"),
    (_with("programs", to=lambda p: p[:-1]), "one per program"),
    (_with("programs", to=lambda p: [*p[:-1], p[0]]), "one per program"),
    (_with("programs", 0, to=[0]), "possible size"),
    (_with("programs", 0, to=[2**60]), "possible size"),
    (_with("programs", 0, to=[1, 1]), "possible size"),
    (_with("programs", 0, to=[3]), "pieces for every batch"),
    (_with("programs", 1, to=[3]), r"inputs\[0\].shape"),
    (_with("files", "0/network.so", "digest", to="../../x"), "not the one"),
    (_with("files", "0/manifest.json", "size", to=3), "not the one"),
    (_with("files", "9/network.so", to={"size": 1, "digest": "a"}), "other members"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_a_broken_manifest_is_refused(net, tmp_path, change, message) -> None:
    bad = tmp_path / "bad.dcir"
    _rewritten(net[1], bad, {"manifest.json": change})
    with pytest.raises(ArtefactInvalid, match=message) as caught:
        dcir.load(bad)
    assert str(bad) in str(caught.value)


PROGRAM = [
    (_with("format", to=1), "format 1"),
    (_with("machine", "identity", to="0"), "another processor"),
    (_with("inputs", 0, "shape", to=[2, 3, 8, 6]), r"inputs\[0\].shape"),
    (_with("inputs", 0, "name", to="other"), "inputs of the others"),
    (_with("inputs", 1, "dtype", to="i32"), "inputs of the others"),
    (_with("outputs", 0, "name", to="other"), "results of the others"),
    (_with("result", to={"tuple": [0, 1, 2, 3]}), "results of the others"),
    (_with("buffers", 0, "shape", to=lambda s: [1, *s[1:]]), "batch in front"),
    (_with("buffers", 0, "dtype", to="i32"), "results like those"),
    (_with("outputs", 2, "literal", to=8), "results like those"),
    (_with("constants", 0, "strides", to=lambda s: s[::-1]), "disagree|another type or size"),
    (_with("constants", 0, "tensor", to="other"), "not those|disagree"),
    (_with("table_size", to=1 << 40), "possible size"),
]


@pytest.mark.parametrize(("change", "message"), PROGRAM)
def test_programs_that_do_not_fit_each_other_are_refused(net, tmp_path, change, message) -> None:
    bad = tmp_path / "bad.dcir"
    _rewritten(net[1], bad, {"1/manifest.json": change})
    with pytest.raises(ArtefactInvalid, match=message):
        dcir.load(bad)


def test_missing_and_additional_members_are_refused(net, tmp_path) -> None:
    with zipfile.ZipFile(net[1]) as old:
        members = {name: old.read(name) for name in old.namelist()}
    bad = tmp_path / "bad.dcir"
    for gone in ("0/network.so", "4/dcir.h", "report.json", "manifest.json"):
        with zipfile.ZipFile(bad, "w") as new:
            for name in members:
                if name != gone:
                    new.writestr(name, members[name])
        with pytest.raises(ArtefactInvalid, match="exactly the members"):
            dcir.load(bad)
    for more in ("../evil", "5/manifest.json", "0/evil.pkl"):
        with zipfile.ZipFile(bad, "w") as new:
            for name in [*members, more]:
                new.writestr(name, members.get(name, b"{}"))
        with pytest.raises(ArtefactInvalid, match="exactly the members"):
            dcir.load(bad)


def test_the_same_model_gives_the_same_bytes(net, tmp_path) -> None:
    api.save(net[0], _inputs(3), tmp_path / "again.dcir", dynamic={"x": {0: Dim("b", min=1, max=64)}})
    assert (tmp_path / "again.dcir").read_bytes() == net[1].read_bytes()
