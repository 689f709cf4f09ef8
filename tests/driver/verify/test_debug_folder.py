"""``debug_dir`` keeps the graph, the network of every step, and the code that runs; other options are unharmed by it."""

import json
import re
from dataclasses import dataclass
from typing import ClassVar

import dace
import pytest
import torch
from torch import nn

import dcir
from dcir.errors import OptionError
from dcir.ir.network import Network
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tidy.remove_dead_code import RemoveDeadCode


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def run(folder, train=False, **options):
    torch.manual_seed(0)
    fast = dcir.optimize(nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)), debug_dir=folder, **options)
    with torch.set_grad_enabled(train):
        loss = fast(torch.ones(4, 6)).sum()
    if train:
        loss.backward()
    return fast


def names(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_every_step_of_an_inference(tmp_path):
    fast = run(tmp_path)
    (graph,) = fast.dcir.explain().graphs
    (folder,) = tmp_path.iterdir()
    assert folder.name == "000-inference"
    found = names(folder)
    changed = [p.name for p in graph.passes if p.changed]
    steps = [f"{number:02}-{name}" for number, name in enumerate(["import", *changed], 1)]
    assert changed and found[0] == "00-graph.txt"
    assert [n for n in found if n.endswith(".sdfg")] == [f"{s}.sdfg" for s in steps]
    assert [n for n in found[1:] if n.endswith(".txt")] == [f"{s}.txt" for s in steps]
    assert "aten.addmm" in (folder / "00-graph.txt").read_text() or "aten.mm" in (folder / "00-graph.txt").read_text()
    codes = [n for n in found if n.startswith("code/")]
    assert len(codes) == graph.kernels + 1 and "code/driver.cpp" in codes
    driver = (folder / "code" / "driver.cpp").read_text()
    assert all(name in driver for name in (re.sub(r"code/|\.cpp", "", c) for c in codes) if name != "driver")
    record = json.loads((folder / "record.json").read_text())
    assert record["kernels"] == graph.kernels and [p["name"] for p in record["passes"] if p["changed"]] == changed


def test_the_graphs_open_in_dace_and_shrink(tmp_path):
    run(tmp_path)
    sdfgs = [dace.SDFG.from_file(str(p)) for p in sorted(tmp_path.glob("*/*.sdfg"))]
    assert all(sdfg.arrays for sdfg in sdfgs)
    texts = [p.read_text() for p in sorted(tmp_path.glob("*/*.txt"))[1:]]
    operators = [int(re.match(r"network of (\d+) operators", t)[1]) for t in texts]
    assert operators[-1] < operators[0]
    assert all(f"\n{section}\n" in texts[0] for section in ("containers", "operators", "results"))
    assert "contraction" in texts[0] and "f32[4, 6]" in texts[0]


def test_code_is_there_when_the_library_comes_from_the_cache(tmp_path):
    for folder in ("first", "second"):
        torch._dynamo.reset()
        fast = run(tmp_path / folder)
    assert fast.dcir.explain().graphs[0].generated == 0
    assert names(tmp_path / "first") == names(tmp_path / "second")


def test_forward_and_backward_and_further_graphs_have_folders_of_their_own(tmp_path):
    run(tmp_path, train=True)
    torch._dynamo.reset()
    run(tmp_path, level=0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000-forward", "001-backward", "002-inference"]
    assert (tmp_path / "001-backward" / "code" / "driver.cpp").is_file()
    assert {p.name.split(".")[0] for p in (tmp_path / "002-inference").glob("02-*")} == {"02-run-in-order"}


def test_through_dace(tmp_path):
    run(tmp_path, target="dace")
    assert [n for n in names(tmp_path) if n.startswith("000-inference/code/")]


def test_a_step_of_a_users_pass_and_verification_both_see_it(tmp_path):
    seen = []

    @dataclass(frozen=True)
    class Mine(Pass):
        tier: ClassVar[int] = 2
        name: ClassVar[str] = "mine/../x y"

        def apply(self, net: Network) -> PassResult:
            seen.append(len(net.ops()))
            outcome = PassResult()
            outcome.changed = 1
            return outcome

    run(tmp_path, pipeline=(RemoveDeadCode(), Mine()), verify="passes")
    assert seen and [n for n in names(tmp_path) if "mine" in n] == [
        "000-inference/02-mine_.._x_y.sdfg",
        "000-inference/02-mine_.._x_y.txt",
    ]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="debug_dir names no folder that can be written"):
        run(tmp_path / "file" / "below")
