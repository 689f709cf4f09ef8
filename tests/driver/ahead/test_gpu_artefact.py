"""Compiled files for GPUs through the kernels' twin on the CPU: written, loaded, called; and refused where their code cannot run."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx import TensorProto, helper
from torch import Tensor, nn

import dcir
from dcir.cli.main import main
from dcir.codegen.cuda.nvrtc import find_nvrtc
from dcir.cost.cuda import SETTING, TWIN
from dcir.driver import api
from dcir.driver.ahead.artefact import listed, write_members
from dcir.errors import ArtefactInvalid, CompilerNotFound, IndexOutOfRange, InvalidInput, OptionError
from dcir.kernel_images import images_of
from dcir.runtime import artefact as layout
from tests.harness import check_close


@pytest.fixture(autouse=True)
def twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run on the CPU."""
    monkeypatch.setenv(SETTING, TWIN)


@pytest.fixture
def nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled for GPUs, none of which is here."""
    try:
        find_nvrtc()
    except CompilerNotFound as e:
        pytest.skip(f"NVRTC is not installed: {e.message}")
    monkeypatch.setenv(SETTING, "")


class Network(nn.Module):
    """Convolutions, of which one's result is the network's, a norm, a product, an operator that runs through torch."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.linear = nn.Conv2d(2, 4, 3), nn.LayerNorm(6), nn.Linear(6, 5)
        self.other = nn.Conv2d(2, 3, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.linear(self.norm(self.convolution(x)))
        return {
            "scores": y.softmax(-1),
            "inverse": torch.linalg.inv(y[..., :4] + 3 * torch.eye(4)),
            "other": self.other(x),
        }


class Words(nn.Module):
    """An embedding, and what is summed of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)

    def forward(self, words: Tensor) -> Tensor:
        return self.embedding(words).sum(1)


def network() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Network().eval(), torch.randn(3, 2, 6, 8)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    model, x = network()
    api.save(model, [x], tmp_path / "model.dcir", target="cuda")
    return tmp_path / "model.dcir"


def test_a_file_computes_what_the_model_does(written: Path) -> None:
    model, x = network()
    loaded = dcir.load(written)
    wide = network()[0].double()
    with torch.no_grad():
        for given in (x, x * 2, x.to(memory_format=torch.channels_last)):
            got, want, exact = loaded(given), model(given), wide.float()(given)
            assert sorted(got) == sorted(want)
            for name in want:
                check_close(got[name], want[name], exact[name], units=64, what=name)
    assert not got["scores"].requires_grad
    assert set(loaded.state_dict()) == set(model.state_dict())


def test_weights_that_are_loaded_are_seen(written: Path) -> None:
    model, x = network()
    loaded = dcir.load(written)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
        loaded.load_state_dict(model.state_dict())
        torch.testing.assert_close(loaded(x)["scores"], model(x)["scores"])


def test_a_bad_index_is_told(tmp_path: Path) -> None:
    model, words = Words().eval(), torch.randint(0, 20, (3, 4))
    api.save(model, [words], tmp_path / "words.dcir", target="cuda")
    loaded = dcir.load(tmp_path / "words.dcir")
    torch.testing.assert_close(loaded(words), model(words).detach())
    with pytest.raises(IndexOutOfRange):
        loaded(words + 30)


def test_what_a_call_cannot_take_is_told(written: Path) -> None:
    loaded = dcir.load(written)
    with pytest.raises(InvalidInput, match="shape"):
        loaded(torch.randn(3, 2, 6, 9))


def test_a_file_for_the_twin_runs_nowhere_else(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "")
    with pytest.raises(ArtefactInvalid, match="made for a CPU, to be tested there") as refused:
        dcir.load(written)
    assert f"{SETTING}={TWIN}" in str(refused.value)


@pytest.mark.usefixtures("nvrtc")
def test_a_file_holds_code_for_the_gpus_that_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network()
    path = tmp_path / "model.dcir"
    api.save(model, [x], path, target="cuda", arch=["sm_80", "sm_90a"])
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read(layout.MANIFEST))
        (tmp_path / "network.so").write_bytes(archive.read(layout.LIBRARY))
        assert b"dcir.load" in archive.read(layout.HEADER)
    assert manifest["gpu"]["architectures"] == ["sm_80", "sm_90a"] and manifest["gpu"]["made"]
    images = images_of(tmp_path / "network.so")
    kernels = {arch: {n.split("/")[1] for n in images if n.startswith(f"{arch}/")} for arch in ("sm_80", "sm_90a")}
    assert kernels["sm_80"] == kernels["sm_90a"] != set()
    assert all(i.startswith(b"\x7fELF") and n.split("/")[1].encode() in i for n, i in images.items())
    with pytest.raises(ArtefactInvalid, match="PyTorch finds none here"):
        dcir.load(path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an older one")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ArtefactInvalid, match=r"code for GPUs of sm_80, sm_90a, and this one is sm_75") as refused:
        dcir.load(path)
    assert "compile again, for sm_75 too" in str(refused.value)


@pytest.mark.usefixtures("nvrtc")
def test_without_a_gpu_its_architecture_has_to_be_named(tmp_path: Path) -> None:
    model, x = network()
    with pytest.raises(OptionError, match="no GPU that PyTorch can use"):
        api.save(model, [x], tmp_path / "model.dcir", target="cuda")


@pytest.mark.parametrize(("options", "why"), [
    ({"target": "cuda", "arch": ["hopper"]}, "'hopper' is no architecture of GPUs"),
    ({"arch": ["sm_80"]}, "target 'cpp' makes code for the processor at hand"),
    ({"target": "cuda", "dynamic": {"x": {0: torch.export.Dim("n", min=1, max=8)}}}, "of target 'cuda' is for one size"),
])  # fmt: skip
def test_refused_when_compiled(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    model, x = network()
    with pytest.raises(OptionError) as refused:
        api.save(model, [x], tmp_path / "model.dcir", **options)
    assert why in str(refused.value)
    assert not list(tmp_path.iterdir())


def _elsewhere(gpu: dict[str, Any]) -> None:
    gpu["made"][0][1] += 1


_Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(("change", "why"), [
    (lambda m: m["gpu"].update(architectures=["../x"]), "gpu.architectures must be names of architectures"),
    (lambda m: _elsewhere(m["gpu"]), "gpu.made must be calls whose result is a whole buffer"),
    (lambda m: m.update(gpu={"made": []}), "gpu must be an object with the fields"),
    (lambda m: m.update(gpu=None), "calls_into_torch"),
    (lambda m: m["machine"].update(architecture="vax"), "compiled for a machine of vax"),
])  # fmt: skip
def test_a_broken_manifest_is_refused(change: _Change, why: str, written: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(written) as archive:
        members = {name: archive.read(name) for name in layout.MEMBERS}
    manifest = json.loads(members.pop(layout.MANIFEST))
    change(manifest)
    manifest["files"] = listed(members)
    members[layout.MANIFEST] = json.dumps(manifest).encode()
    write_members(tmp_path / "other.dcir", {name: members[name] for name in layout.MEMBERS})
    with pytest.raises(ArtefactInvalid) as refused:
        dcir.load(tmp_path / "other.dcir")
    assert why in str(refused.value)


def test_the_command_line_writes_one(tmp_path: Path) -> None:
    shape = [3, 4]
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    done = CliRunner().invoke(main, ["compile", str(tmp_path / "m.onnx"), "--target", "cuda", "--arch", "sm_80"])
    assert done.exit_code == 0, done.output
    x = torch.randn(shape)
    torch.testing.assert_close(dcir.load(tmp_path / "m.dcir")(x), x.softmax(-1))
