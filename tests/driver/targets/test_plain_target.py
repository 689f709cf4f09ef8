"""A target from another package: found by its entry point, it compiles networks forward and backward, and refuses what it lacks."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import dcir
from dcir import targets
from dcir.cache import Cache
from dcir.driver import api
from dcir.errors import OptionError, Unsupported
from dcir.extensions import TARGETS, read_again
from tests.harness import check_close

WHERE = "tests.driver.targets.plain_target:PlainTarget"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package of the target, as pip leaves it."""
    folder = tmp_path / "site" / "plain_target-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-target\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{TARGETS}]\nplain = {WHERE}\nbroken = no.such.module:Target\n")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path / "cache"))
    _forget()
    torch._dynamo.reset()
    yield
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    read_again()
    targets.known_targets.cache_clear()
    targets.target_class.cache_clear()


def mlp() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(11, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 5), nn.Softmax(-1)), torch.randn(
        7, 11
    )


def cnn() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(1)
    body = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 6, 3, stride=2))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(6 * 9, 4)), torch.randn(2, 3, 15, 14)


@pytest.mark.parametrize("level", [0, 2, 4])
@pytest.mark.parametrize("make", [mlp, cnn])
def test_inference(make, level: int) -> None:
    model, x = make()
    model.eval()
    fast = dcir.optimize(model, target="plain", level=level)
    with torch.no_grad():
        check_close(fast(x), model(x), copy.deepcopy(model).double()(x.double()))
    (graph,) = fast.dcir.explain().graphs
    assert graph.calls > 0 and not graph.fallbacks


@pytest.mark.parametrize("make", [mlp, cnn])
def test_training(make) -> None:
    """Gradients of every parameter, two steps."""
    model, x = make()
    exact = copy.deepcopy(model).double()
    twin = copy.deepcopy(model)
    fast = dcir.optimize(model, target="plain")
    for _ in range(2):
        for m, given in ((fast, x), (twin, x), (exact, x.double())):
            m.zero_grad()
            m(given).square().sum().backward()
    for p, q, e in zip(model.parameters(), twin.parameters(), exact.parameters(), strict=True):
        check_close(p.grad, q.grad, e.grad)
    assert {g.kind for g in fast.dcir.explain().graphs} == {"forward", "backward"}


def test_its_code_has_neither_threads_nor_vectors(tmp_path: Path) -> None:
    model, x = mlp()
    with torch.no_grad():
        dcir.optimize(model.eval(), target="plain", debug_dir=tmp_path / "debug")(x)
    kernels = [t for t in (p.read_text() for p in (tmp_path / "debug").rglob("*.cpp")) if "__program_k" in t]
    assert len(kernels) > 3 and not any("omp" in t for t in kernels)


def test_its_kernels_are_not_those_of_cpp() -> None:
    """Both targets in one cache: neither takes the other's library."""
    model, x = mlp()
    with torch.no_grad():
        for name in ("cpp", "plain", "cpp"):
            torch._dynamo.reset()
            check_close(
                dcir.optimize(model.eval(), target=name)(x), model(x), copy.deepcopy(model).double()(x.double())
            )
    assert sum(e.kind == "graph" for e in Cache.default().ls()) == 2


def test_an_operator_without_a_loop_nest_is_refused() -> None:
    with torch.no_grad(), pytest.raises(Unsupported, match="generated code for SortSpec"):
        dcir.optimize(lambda x: x.sort(-1).values, target="plain")(torch.randn(5, 9))


@pytest.mark.parametrize(("options", "why"), [
    ({"tune": 1.0}, "plain makes its kernels in one way"),
    ({"target": "broken"}, "cannot be loaded"),
    ({"target": "plein"}, "target='plain'"),
])  # fmt: skip
def test_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(OptionError) as refused, torch.no_grad():
        dcir.optimize(torch.exp, **{"target": "plain", **options})(torch.ones(3))
    assert why in str(refused.value)


def test_no_file_holds_its_code(tmp_path: Path) -> None:
    model, x = mlp()
    with pytest.raises(OptionError, match="a compiled file holds code of targets 'cpp' and 'cuda' only"):
        api.save(model.eval(), [x], tmp_path / "m.dcir", target="plain")
