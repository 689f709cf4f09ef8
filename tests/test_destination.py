"""A path that no file can be written to, or whose file is read, is refused before anything is compiled, and the file stays as it is."""

import json
import os
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx import TensorProto, helper
from torch import nn

from dcir.cli.main import main
from dcir.destination import check_destination
from dcir.driver import api
from dcir.driver.ahead.artefact import write_members
from dcir.errors import InvalidInput


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An ONNX file."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    (tmp_path / "link").symlink_to("there")
    check_destination(tmp_path / "new", tmp_path / "there", "nets.py:make")
    check_destination(tmp_path / "there", "nets.py:make")
    for path, words in (("no/x", "there is no folder"), ("", "is a folder"), ("link", "the one that is read")):
        with pytest.raises(InvalidInput, match=words) as caught:
            check_destination(tmp_path / path, tmp_path / "there")
        assert caught.value.where == str(tmp_path / path) and caught.value.hint


@pytest.mark.parametrize(
    "verb",
    [
        ["compile"], ["explain", "--format", "model-explorer"], ["check", "--bisect"], ["profile"], ["roofline"],
        ["view", "--format", "json"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_verbs(verb: list[str], model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compile_file", "model_explorer_file", "bisect_file"):
        monkeypatch.setattr(api, name, lambda *args, **settings: pytest.fail("it was compiled"))
    before = model.read_bytes()
    for output, words in ((model, "the one that is read"), (model.parent / "no" / "m.json", "there is no folder")):
        done = CliRunner().invoke(main, [verb[0], str(model), *verb[1:], "-o", str(output), "--json"])
        assert done.exit_code == 2 and words in json.loads(done.stdout)["error"]["message"]
    assert model.read_bytes() == before


def test_a_model_by_the_name_of_its_compiled_file(model: Path) -> None:
    odd = model.rename(model.with_suffix(".dcir"))
    done = CliRunner().invoke(main, ["compile", str(odd)])
    assert done.exit_code == 2 and "the one that is read" in done.output and onnx.load(odd).graph.node


def test_saving_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*args: Any, **settings: Any) -> None:
        pytest.fail("it was compiled")

    monkeypatch.setattr(api, "compile_module", call)
    for path, words in ((tmp_path / "no" / "m.dcir", "there is no folder"), (tmp_path, "is a folder")):
        with pytest.raises(InvalidInput, match=words):
            api.save(nn.Linear(2, 2), (torch.zeros(1, 2),), path)


def test_the_longest_name(tmp_path: Path) -> None:
    api.save(nn.ReLU(), (torch.zeros(1, 2),), tmp_path / ("m" * 250 + ".dcir"))
    assert [p.name for p in tmp_path.iterdir()] == ["m" * 250 + ".dcir"]


def test_what_is_no_file_stays(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    with monkeypatch.context() as patch:
        patch.setattr(api, "_compile_onnx", lambda *args: pytest.fail("it was compiled"))
        for path in (pipe, tmp_path / "link"):
            with pytest.raises(InvalidInput, match="no file"):
                api.save(nn.ReLU(), (torch.zeros(1, 2),), path)
            done = CliRunner().invoke(main, ["compile", str(model), "-o", str(path), "--json"])
            assert done.exit_code == 2 and "no file" in json.loads(done.stdout)["error"]["message"]
    assert pipe.is_fifo() and (tmp_path / "link").is_symlink()
    with pytest.raises(InvalidInput, match="no file"):  # it can come up while the model is compiled, too
        write_members(pipe, {})


def test_a_link_goes_on_leading_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "link.dcir").symlink_to("v1/m.dcir")
    for old in (False, True):
        assert (tmp_path / "v1" / "m.dcir").exists() == old
        api.save(nn.ReLU(), (torch.zeros(1, 2),), tmp_path / "link.dcir")
        assert (tmp_path / "link.dcir").is_symlink() and [p.name for p in (tmp_path / "v1").iterdir()] == ["m.dcir"]


def test_the_source_of_a_model_is_one_of_the_files_that_are_read(tmp_path: Path) -> None:
    source = tmp_path / "nets.py"
    source.write_text("def make():\n    raise AssertionError('not reached')\n")
    (tmp_path / "link.json").symlink_to("nets.py")
    for words in (["view", "-o", source, "--format", "json"], ["profile", "-o", tmp_path / "link.json"]):
        done = CliRunner().invoke(main, [words[0], f"{source}:make", *map(str, words[1:])])
        assert done.exit_code == 2 and "the one that is read" in done.output
    assert "not reached" in source.read_text()
