"""A second process runs what the first one traced, without a trace, as long as everything that the trace depended on is the same."""

from pathlib import Path
from typing import Any

import pytest

from tests.driver.kept.places import Place

pytestmark = pytest.mark.in_turn(6)

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

SCALE = 2.0


def scaled(x):
    return x * 3.0


class Net(nn.Module):
    def __init__(self, width=16, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(50, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, ids, mask):
        x = self.norm(self.tokens(ids))
        for layer in self.layers:
            x = x + scaled(F.gelu(layer(x))) * SCALE
        w = mask[..., None].float()
        return (x * w).sum(1) / w.sum(1).clamp(min=1)


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        return F.dropout(self.out(self.norm(x)), 0.25, self.training)


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x):
        return F.softmax(self.two(F.gelu(self.one(x))), -1)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        return F.interpolate(self.out(self.down(x)), size=x.shape[2:], mode="bilinear")


def inputs(net, n, g):
    if net == "Images":
        return (torch.randn(1, 3, 4 * n, 8 * n, generator=g),)
    if net in ("Writing", "Rows"):
        return (torch.randn(n, 16, generator=g),)
    mask = (torch.arange(n)[None] < torch.tensor([[n], [n // 2]])).long()
    return torch.randint(0, 50, (2, n), generator=g), mask
"""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, dict[str, Any]]:
    """A folder in which one process has traced a model for two lengths, in inference, and what it found."""
    place = Place(tmp_path_factory.mktemp("kept"), MODEL)
    first = place.run()
    assert first["traced"] == 2
    return place, first


def test_a_second_process_traces_nothing_and_gets_the_same_numbers(known: tuple[Place, dict[str, Any]]) -> None:
    place, first = known
    again, others = place.runs([{}, {"lengths": [31, 5, 18]}])
    assert (again["traced"], again["results"], again["graphs"]) == (0, first["results"], first["graphs"])
    assert others["traced"] == 0


OTHERS: list[dict[str, Any]] = [
    {"dtype": "float64"},
    {"made": {"width": 32}},
    {"made": {"layers": 3}},
    {"train": True},
    {"options": {"level": 1}},
    {"options": {"dynamic": True}},
    {"before": "net.layers[0].register_forward_hook(lambda m, i, o: o * 2)"},
    {"before": "net.layers[0].bias = None"},
    {"before": "net.layers[0].eps = 1.0; net.norm.eps = 1.0"},
    {"before": "model.SCALE = 5.0"},
    {"before": "model.scaled = lambda x: x * 4.0"},
    {"before": "torch.nn.functional.gelu = torch.nn.functional.relu"},
    {"before": "torch.nn.Linear.forward = lambda self, x: x @ self.weight.T"},
    {"before": "torch.set_num_threads(torch.get_num_threads() % 2 + 1)"},
]


def test_what_a_trace_depended_on_and_is_another_one_is_traced(known: tuple[Place, dict[str, Any]]) -> None:
    found = known[0].runs([{}, *({"lengths": [7], "keep": True, **other} for other in OTHERS), {}])
    traced = [f["traced"] for f in found]
    assert traced == [0, *([1] * len(OTHERS)), 0], list(zip(traced[1:], OTHERS, strict=False))


def test_code_that_was_edited_is_traced_and_lines_that_moved_are_not(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    for text, traced in (
        (MODEL, 1),
        (MODEL.replace("x * 3.0", "x * 7.0"), 1),
        (MODEL.replace("F.gelu(", "F.silu("), 1),
        ("# a comment\n" + MODEL, 0),
    ):
        place.write(text)
        assert place.run(lengths=[7])["traced"] == traced, text


def test_a_training_step_is_kept_with_its_backward(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    first = place.run(train=True, lengths=[7, 12, 9, 7, 12])
    assert first["traced"] == 2
    again = place.run(train=True, lengths=[7, 12, 9, 7, 12])
    assert again["traced"] == 0
    assert again["results"] == first["results"]


def test_buffers_that_a_graph_writes_and_random_numbers_are_as_in_eager_mode(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    first = place.run(net="Writing", train=True, lengths=[6, 6, 6])
    assert first["traced"] == 1
    again = place.run(net="Writing", train=True, lengths=[6, 6, 6])
    assert again["traced"] == 0
    assert again["results"] == first["results"]


def test_images_of_any_size_are_kept(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    first = place.run(net="Images", lengths=[5, 8, 6, 11])
    assert first["traced"] >= 1
    again = place.run(net="Images", lengths=[5, 8, 6, 11, 7])
    assert again["traced"] == 0
    assert again["results"][:4] == first["results"]


def test_nothing_is_kept_or_used_unless_asked_for(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    assert place.run(lengths=[7], keep=False)["traced"] == 1
    assert not place.files()
    place.run(lengths=[7])
    assert place.run(lengths=[7], keep=False)["traced"] == 1


def test_a_file_that_was_written_to_is_not_read(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    place.run(lengths=[7])
    (file,) = place.files()
    file.write_bytes(file.read_bytes()[:-1] + b"x")  # its seal does not match any more
    assert place.run(lengths=[7])["traced"] == 1


def test_a_library_that_is_gone_is_made_again(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    first = place.run(lengths=[7])
    for library in (tmp_path / "cache").rglob("*.so"):
        library.unlink()
    again = place.run(lengths=[7])
    assert again["traced"] == 1
    assert again["results"] == first["results"]


def test_sizes_that_a_kept_program_is_not_for_are_traced_and_kept(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    place.run(lengths=[7, 12])
    beyond = place.run(lengths=[9, 3000, 11, 3000, 7, 12])
    assert beyond["traced"] == 1
    again = place.run(lengths=[9, 3000, 11, 3000, 7, 12])
    assert again["traced"] == 0
    assert again["results"] == beyond["results"]


def test_a_batch_is_covered_by_the_pieces_that_were_kept(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    assert place.run(net="Rows", lengths=[2, 3, 5])["traced"] == 2
    assert place.run(net="Rows", lengths=[5, 2, 3, 7, 11, 12])["traced"] == 0
    # One that would take very many is traced.
    assert place.run(net="Rows", lengths=[3, 500])["traced"] == 1
    assert place.run(net="Rows", lengths=[3, 500, 4])["traced"] == 0


def test_training_on_sizes_that_a_kept_program_is_not_for_is_traced(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    place.run(train=True, lengths=[7, 12])
    beyond = place.run(train=True, lengths=[9, 3000, 11, 3000])
    assert beyond["traced"] == 1
    assert place.run(train=True, lengths=[9, 3000, 11])["traced"] == 0
