"""What a training step became in one process is found again by the same step in another one, and only there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dcir
from tests.driver.kept.places import Place

pytestmark = pytest.mark.in_turn(3)

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

SCALE = 2.0


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.tokens = nn.Embedding(50, width)
        self.norm = nn.BatchNorm1d(width)
        self.out = nn.Linear(width, 4)

    def forward(self, ids):
        x = F.gelu(self.tokens(ids)).mean(1)
        return self.out(self.norm(x)) * SCALE
"""
SCRIPT = """
import copy, importlib, json, sys
import torch, dcir
from torch import nn
from dcir.driver.training import whole_step
import model

compiling, compiled = whole_step.compiling, []


def counted(session):
    made = compiling(session)

    def compile_graph(*args):
        compiled.append(len(compiled))
        return made(*args)

    return compile_graph


whole_step.compiling = counted


def tried(what):
    torch.manual_seed(0)
    compiled.clear()
    names = {"torch": torch, "nn": nn, "model": model}
    exec(what.get("before", ""), names)
    plain = model.Net(**what.get("made", {}))
    own = copy.deepcopy(plain)
    how = what.get("optimizer", "torch.optim.AdamW(p, lr=0.01)")
    loss = eval(what.get("loss", "nn.CrossEntropyLoss()"), names)
    optimizers = [eval(how, {**names, "p": net.parameters()}) for net in (own, plain)]
    step = dcir.train_step(own, loss, optimizers[0], **what.get("options", {"keep_graphs": True}))
    losses, worst = [], 0.0
    for i, (rows, length) in enumerate(what.get("sizes", [[8, 5]] * 3)):
        g = torch.Generator().manual_seed(i)
        batch = torch.randint(0, 50, (rows, length), generator=g), torch.randint(0, 4, (rows,), generator=g)
        if what.get("accumulate") == i:
            for net in (own, plain):
                loss(net(batch[0]), batch[1]).backward()
        got = step(*batch)
        want = loss(plain(batch[0]), batch[1])
        want.backward()
        if "clip_grad_norm" in what.get("options", {}):
            nn.utils.clip_grad_norm_(plain.parameters(), what["options"]["clip_grad_norm"])
        optimizers[1].step()
        optimizers[1].zero_grad()
        pairs = [(got, want), *zip(own.parameters(), plain.parameters()), *zip(own.buffers(), plain.buffers())]
        worst = max(worst, *(float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-2)) for a, b in pairs))
        losses.append(float(got))
    graphs = [g.kind for g in step.dcir.explain().graphs]
    importlib.reload(model)
    return {"compiled": len(compiled), "losses": losses, "worst": worst, "graphs": graphs}


print("RESULT " + json.dumps([tried(what) for what in json.loads(sys.argv[1])]))
"""


class Steps(Place):
    """A folder with a module ``model`` in it and a cache, in which processes train that model one after another."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, MODEL)

    def steps(self, *tries: dict[str, Any]) -> list[dict[str, Any]]:
        """One process; its steps must agree with PyTorch's."""
        return self.told(SCRIPT, list(tries), 2e-4)


OTHERS: list[dict[str, Any]] = [
    {"made": {"width": 24}}, {"before": "model.SCALE = 3.0"}, {"loss": "nn.CrossEntropyLoss(label_smoothing=0.1)"},
    {"optimizer": "torch.optim.AdamW(p, lr=0.01, amsgrad=True)"}, {"optimizer": "torch.optim.SGD(p, lr=0.1, momentum=0.9)"},
    {"optimizer": "torch.optim.SGD(p, lr=0.1)"}, {"options": {"keep_graphs": True, "clip_grad_norm": 1.0}},
    {"options": {"keep_graphs": True, "level": 1}}, {"sizes": [[8, 6]]}, {"sizes": [[9, 5]]}, {"accumulate": 0, "sizes": [[8, 5]]},
    {"before": "model.Net.forward = lambda self, ids: self.out(self.norm(self.tokens(ids).mean(1)))"},
]  # fmt: skip


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Steps, dict[str, Any]]:
    """A folder in which one process has made steps of one model, and what it found."""
    place = Steps(tmp_path_factory.mktemp("steps"))
    (first,) = place.steps({})
    assert first["compiled"] == 1
    return place, first


def test_a_second_process_compiles_nothing(known: tuple[Steps, dict[str, Any]]) -> None:
    place, first = known
    again, rates, weights = place.steps(
        {}, {"optimizer": "torch.optim.AdamW(p, lr=0.03, betas=(0.8, 0.9), weight_decay=0.1)"}, {"before": "torch.manual_seed(7)"}
    )  # fmt: skip
    assert [f["compiled"] for f in (again, rates, weights)] == [0, 0, 0]
    assert (again["losses"], again["graphs"]) == (first["losses"], first["graphs"])
    assert rates["losses"] != first["losses"]
    assert weights["losses"] != first["losses"]


def test_other_steps_are_compiled(known: tuple[Steps, dict[str, Any]]) -> None:
    found = known[0].steps({}, *OTHERS, {})
    compiled = [f["compiled"] for f in found]
    assert compiled == [0, *([1] * len(OTHERS)), 0], list(zip(compiled[1:], OTHERS, strict=False))


def test_one_program_for_all_sizes(tmp_path: Path) -> None:
    place = Steps(tmp_path)
    sizes = [[8, 5], [8, 7], [8, 12], [8, 9]]
    (first,) = place.steps({"sizes": sizes})
    assert first["compiled"] == 2  # the first length has a program of its own
    (again,) = place.steps({"sizes": sizes})
    assert again["compiled"] == 0
    assert again["losses"] == first["losses"]
    files = [file.read_bytes() for file in place.graphs()]
    (beyond,) = place.steps({"sizes": [*sizes, [8, 3000]]})  # no kept program reaches so far
    assert beyond["compiled"] == 1
    assert [file.read_bytes() for file in place.graphs()] != files
    files = [file.read_bytes() for file in place.graphs()]
    (again,) = place.steps({"sizes": [*sizes, [8, 3000]]})
    assert again["compiled"] == 0
    assert again["losses"] == beyond["losses"]
    assert [file.read_bytes() for file in place.graphs()] == files


def test_code_that_was_edited_is_compiled(tmp_path: Path) -> None:
    place = Steps(tmp_path)
    for text, compiled in (
        (MODEL, 1), (MODEL.replace("SCALE = 2.0", "SCALE = 5.0"), 1), (MODEL, 0), (MODEL.replace("F.gelu(", "F.silu("), 1), (MODEL, 0)
    ):  # fmt: skip
        place.write(text)
        assert place.steps({"sizes": [[8, 5]]})[0]["compiled"] == compiled, text


def test_nothing_is_kept_where_that_is_not_wanted(tmp_path: Path) -> None:
    place = Steps(tmp_path)
    for options in (
        {"keep_graphs": False},
        {"remarks": True, "keep_graphs": True},
        {"history": True, "keep_graphs": True},
    ):
        place.steps({"options": options})
    assert not place.graphs()


def test_damaged_files_and_libraries_that_are_gone(tmp_path: Path) -> None:
    place = Steps(tmp_path)
    (first,) = place.steps({})
    (file,) = place.graphs()
    file.write_bytes(file.read_bytes()[:-1] + b"x")  # its seal does not match any more
    assert place.steps({})[0]["compiled"] == 1
    for library in (tmp_path / "cache").rglob("*.so"):
        library.unlink()
    (again,) = place.steps({})
    assert (again["compiled"], again["losses"]) == (1, first["losses"])
    assert place.steps({})[0]["compiled"] == 0


def test_a_step_says_that_it_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path))
    told = []
    for _ in range(2):
        net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
        step = dcir.train_step(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1), keep_graphs=True)
        step(torch.ones(4, 8), torch.ones(4, 4))
        told.append(str(step.dcir.explain()))
    assert "as an earlier compilation left it" not in told[0]
    assert "as an earlier compilation left it" in told[1]
