"""What a graph became in one process is found again by the same graph in another one, and only there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dcir
from dcir.frontends.torch.kept import graphs as kept
from tests.driver.kept.places import Place
from tests.driver.kept.test_doors import COMPILES, process
from tests.driver.kept.test_keeper import MODEL, OTHERS

pytestmark = pytest.mark.in_turn(3)


def graphs(place: Place, *tries: dict[str, Any]) -> list[dict[str, Any]]:
    """What one process finds, which must agree with PyTorch."""
    return place.runs([{"keep": "graphs", **what} for what in tries])


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, dict[str, Any]]:
    """A folder in which one process has compiled a model for two lengths, in inference, and what it found."""
    place = Place(tmp_path_factory.mktemp("graphs"), MODEL)
    (first,) = graphs(place, {})
    assert (first["traced"], first["ahead"]) == (2, 2)
    return place, first


def test_a_second_process_has_dynamo_trace_and_nothing_else(known: tuple[Place, dict[str, Any]]) -> None:
    place, first = known
    again, others, weights = graphs(
        place, {}, {"lengths": [31, 5, 18]}, {"before": "net.layers[0].weight.data.normal_()"}
    )
    assert (again["traced"], again["ahead"]) == (2, 0)
    assert (again["results"], again["graphs"]) == (first["results"], first["graphs"])
    assert all(f["programs"] >= 1 for f in (again, others, weights))
    assert (others["ahead"], weights["ahead"]) == (1, 0)  # the first length has a program of its own
    assert weights["results"] != first["results"]


def test_other_graphs_are_compiled(known: tuple[Place, dict[str, Any]]) -> None:
    found = graphs(known[0], {}, *({"lengths": [7], **other} for other in OTHERS), {})
    ahead = [f["ahead"] for f in found]
    assert ahead == [0, *([1] * len(OTHERS)), 0], list(zip(ahead[1:], OTHERS, strict=False))


@pytest.mark.parametrize(
    ("what", "lengths"),
    [
        ({"train": True}, [7, 12, 9, 7, 12]), ({"net": "Writing", "train": True}, [6, 6, 6]), ({"net": "Images"}, [5, 8, 6, 11]),
        ({"net": "Rows"}, [2, 3, 5, 40]), ({"options": {"dynamic": True}}, [7, 12]), ({"options": {"strict": True}}, [7, 7]),
        ({"options": {"prepare": "frozen"}}, [7, 7]), ({"dtype": "float64"}, [7, 12]),
    ],
    ids=["steps", "statistics", "images", "pieces", "dynamic", "strict", "frozen", "float64"],
)  # fmt: skip
def test_what_else_is_kept(tmp_path: Path, what: dict[str, Any], lengths: list[int]) -> None:
    place = Place(tmp_path, MODEL)
    first, again = (graphs(place, {**what, "lengths": lengths})[0] for _ in range(2))
    assert first["ahead"] >= 1
    assert again["ahead"] == 0
    assert again["programs"] >= 1
    assert again["results"] == first["results"]
    assert sorted(again["graphs"]) == sorted(first["graphs"])


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_sizes_that_a_kept_program_is_not_for_are_traced_and_kept(tmp_path: Path, train: bool) -> None:
    place = Place(tmp_path, MODEL)
    graphs(place, {"lengths": [7, 12], "train": train})
    (beyond,) = graphs(place, {"lengths": [7, 12, 3000, 11, 3000], "train": train})
    assert (beyond["traced"], beyond["ahead"]) == (2, 1)
    (again,) = graphs(place, {"lengths": [7, 12, 3000, 11, 3000], "train": train})
    assert again["ahead"] == 0
    assert again["results"] == beyond["results"]


def test_code_that_was_edited_is_compiled(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    for text, ahead in (
        (MODEL, 1), (MODEL.replace("x * 3.0", "x * 7.0"), 1), (MODEL, 0), (MODEL.replace("F.gelu(", "F.silu("), 1), (MODEL, 0)
    ):  # fmt: skip
        place.write(text)
        assert graphs(place, {"lengths": [7]})[0]["ahead"] == ahead, text


def test_nothing_is_kept_or_used_where_that_is_not_wanted(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    for_looking: list[dict[str, Any]] = [
        {"verify": "passes"}, {"remarks": True}, {"history": True}, {"memory_limit": 1 << 30}, {"background": True},
        {"debug_dir": str(tmp_path / "debug")}, {"record_function": True},
    ]  # fmt: skip
    graphs(place, *({"lengths": [7], "options": options} for options in for_looking))
    place.run(lengths=[7], keep=False)
    assert not place.graphs()
    # As it is for users.
    (first,) = place.runs([{"lengths": [7], "keep": None}], DCIR_KEEP_GRAPHS="")
    assert (first["ahead"], len(place.graphs())) == (1, 1)
    assert place.runs([{"lengths": [7], "keep": None}], DCIR_KEEP_GRAPHS="")[0]["ahead"] == 0
    assert place.run(lengths=[7], keep=False)["ahead"] == 1


def test_damaged_files_and_libraries_that_are_gone(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    (first,) = graphs(place, {"lengths": [7]})
    (file,) = place.graphs()
    file.write_bytes(file.read_bytes()[:-1] + b"x")  # its seal does not match any more
    assert graphs(place, {"lengths": [7]})[0]["ahead"] == 1
    for library in (tmp_path / "cache").rglob("*.so"):
        library.unlink()
    (again,) = graphs(place, {"lengths": [7]})
    assert (again["ahead"], again["results"]) == (1, first["results"])
    assert graphs(place, {"lengths": [7]})[0]["ahead"] == 0


def test_explain_tells_the_same_of_a_graph_that_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path))
    told = []
    for _ in range(2):
        torch._dynamo.reset()
        net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))
        fast = dcir.optimize(net, keep_graphs=True)
        fast(torch.ones(4, 8)).sum().backward()
        told.append(str(fast.dcir.explain()))
    first, again = (text.splitlines() for text in told)
    differ = [(a, b) for a, b in zip(first, again, strict=True) if a != b]
    assert len(differ) == 4  # of each graph what was generated, and how long it took
    assert all("from the cache" in b or "as an earlier compilation left it" in b for _, b in differ)


WRITES = """
def plain(x, y):
    x.mul_(2)
    y.add_(1)
    return x + y


fast = dcir.optimize(plain, keep_graphs=True)
results, worst = [], 0.0
for together in (False, True, False):
    for f in (fast, plain):
        t = torch.arange(12.0)
        pair = (t[:-1], t[1:]) if together else (t.clone()[:-1], t.clone()[1:])
        found = [f(*pair), *pair]
        results.append([float(v.double().sum()) for v in found])
    worst = max(worst, *(abs(a - b) for a, b in zip(*results[-2:])))
"""


def test_inputs_that_lie_in_each_other_are_left_to_torch_as_ever(tmp_path: Path) -> None:
    first, again = process(tmp_path, WRITES), process(tmp_path, WRITES)
    assert (first["ahead"], again["ahead"]) == (1, 0)
    assert first["programs"] >= 1 <= again["programs"]  # the first call at least
    assert first["results"] == again["results"]


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_torch_compile_and_parts_between_graph_breaks(tmp_path: Path, mode: str) -> None:
    broken = COMPILES.replace("keep_traces", "keep_graphs").replace(
        "return self.two", "torch._dynamo.graph_break(); return self.two"
    )
    first, again = (process(tmp_path, broken, 2.0, mode, "4 7 5") for _ in range(2))
    assert first["ahead"] >= 4
    assert again["ahead"] == 0
    assert (first["programs"], first["results"]) == (again["programs"], again["results"])
    assert first["programs"] >= 6  # two parts in each of three calls


def test_graphs_whose_gradients_pass_gates_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keeper:
        def address(self, rows: Any) -> str:
            return "somewhere"

    def asked() -> str | None:
        return kept.address_in(Keeper(), list)  # type: ignore[arg-type]

    assert asked() == "somewhere"
    monkeypatch.setattr(kept, "gates_of_call", object)
    assert asked() is None


SCALES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = {"scale": 2.25, "last": None}

    def forward(self, x):
        scale = self.state["scale"]
        if "grows" in sys.argv[1]:
            self.state["scale"] = scale * 1.5
        return x.sin() * scale, scale == 3.0 if "asks" in sys.argv[1] else None


plain = Net()
own = copy.deepcopy(plain)
fast = dcir.optimize(own, keep_graphs=True)
results, worst = [], 0.0
for given in map(float, sys.argv[2].split()):
    x = torch.arange(float(len(results) + 3 if "sizes" in sys.argv[1] else 3)).requires_grad_("trains" in sys.argv[1])
    if "grows" not in sys.argv[1]:
        plain.state["scale"] = own.state["scale"] = given
    (got, asked), (want, told) = fast(x), plain(x)
    assert (asked, own.state) == (told, plain.state), (asked, own.state, plain.state)
    worst = max(worst, float((got - want).abs().max()))
    results.append(float(got.sum()))
"""


@pytest.mark.parametrize("more", ["", " trains", " sizes", " sizes trains"])
@pytest.mark.parametrize("what", ["plain", "grows", "asks"])
def test_a_number_that_moves_is_no_constant_in_another_process(tmp_path: Path, what: str, more: str) -> None:
    process(tmp_path, SCALES, what + more, "2 3 5 7")
    again = process(tmp_path, SCALES, what + more, "2 9 3 4 5")
    assert again["programs"] >= 4
    if what == "plain" and not more:
        assert again["ahead"] == 0
