"""What a file says of sizes that move is data: polynomials are evaluated, never run, and what cannot be is refused on reading."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import dcir
from dcir.driver import api
from dcir.errors import ArtefactInvalid
from dcir.ir.sizes import polynomial, size
from dcir.runtime.moving_manifest import Moving, MovingAxis, MovingLayout, MovingWindow
from dcir.runtime.sized_manifest import holds, read
from tests.driver.ahead.test_sized_artefact import _rewritten, _with


class Centred(nn.Module):
    """A result that is a buffer, and one that is a window of it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x - x.mean(0)
        return y, y[:, 1:]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("centred") / "model.dcir"
    sizes = {"x": {0: Dim("n", min=4, max=50), 1: Dim("m", min=4, max=60)}}
    report = api.save(Centred().eval(), [torch.randn(5, 7)], path, dynamic=sizes)
    assert len(report.graphs) == 1
    return path


def moving(*way: object, to: object):
    return _with("moving", 0, *way, to=to)


def terms(*rows: object) -> dict[str, object]:
    return {"terms": list(rows)}


BROKEN = [
    (_with("dimensions", 0, "related", to=[[0, 1, 2, 1]]), "places of their own"),
    (_with("dimensions", 0, "related", to=[[0, 2, 2, 1]]), "dimensions of inputs"),
    (_with("dimensions", 0, "related", to=[[0, 2, 0, 1]]), "possible sizes"),
    (_with("dimensions", 0, "related", to=[[0, 2, 2, 1 << 60]]), "possible sizes"),
    (_with("moving", to=[]), "one per program"),
    (_with("moving", to=lambda m: [*m, None]), "one per program"),
    (_with("moving", 0, to=None), "one for every size within the bounds"),
    (moving("more", to=1), "fields"),
    (moving("slot", to=0), "free slot"),
    (moving("slot", to=2), "free slot"),
    (moving("slot", to=1 << 30), "free slot"),
    (moving("axes", to=[]), "one for every size within the bounds|dimensions of the file"),
    (moving("axes", to=lambda a: a[:1]), "one for every size within the bounds"),
    (moving("axes", to=lambda a: [a[0], a[0] | {"steps": [[2, 1]]}, a[1]]), "dimensions of the file"),
    (moving("axes", to=lambda a: a[::-1]), "greatest sizes"),
    (moving("axes", 0, "dimension", to=2), "greatest sizes of the program"),
    (moving("axes", 0, "dimension", to=-1), "greatest sizes of the program"),
    (moving("axes", 0, "least", to=5), "one for every size within the bounds"),
    (moving("axes", 0, "least", to=0), "bounds from 1 up"),
    (moving("axes", 0, "most", to=40), "greatest sizes of the program"),
    (moving("axes", 0, "steps", to=[[0, 0]]), "possible divisions"),
    (moving("axes", 0, "steps", to=[[2, 2]]), "possible divisions"),
    (moving("axes", 0, "steps", to=[[1024, 0]] * 2), "possible divisions"),
    (moving("inputs", to=[]), "as many as in the program"),
    (moving("buffers", to=[]), "as many as in the program"),
    (moving("outputs", to=lambda o: [*o, None]), "as many as in the program"),
    (moving("outputs", 0, to=None), "one for every window"),
    (moving("calls", to=[{"spec": None, "ins": [], "outs": []}]), "as many as in the program"),
    (moving("inputs", 0, "shape", 0, to=7), r"greatest sizes|sizes of the dimensions"),
    (moving("inputs", 0, "shape", 0, to=terms([[["s1", 1]], 1])), "greatest sizes|sizes of the dimensions"),
    (moving("inputs", 0, "shape", 0, to="s0"), "type int"),
    (moving("inputs", 0, "shape", 0, to="__import__('os').system('x')"), "type int"),
    (moving("inputs", 0, "shape", 0, to=terms([[["s2", 1]], 1])), "polynomial of the program's sizes"),
    (moving("inputs", 0, "shape", 0, to=terms([[["import os", 1]], 1])), "polynomial of the program's sizes"),
    (moving("inputs", 0, "shape", 0, to=terms([[["s0", 10**9]], 1])), "polynomial of the program's sizes"),
    (moving("inputs", 0, "shape", 0, to=terms([[["s0", -1]], 1])), "polynomial of the program's sizes"),
    (moving("inputs", 0, "shape", 0, to=terms([[["s0", 1.5]], 1])), "type int"),
    (moving("inputs", 0, "shape", 0, to=terms([[["s0", 1]], 2**70])), "polynomial in order"),
    (moving("inputs", 0, "shape", 0, to=terms([[["s0", 1]], 0])), "polynomial in order"),
    (moving("inputs", 0, "shape", 0, to=terms(*[[[["s0", 1]], 1]] * 300)), "polynomial of the program's sizes"),
    (moving("inputs", 0, "shape", 0, to={"terms": [], "more": 1}), "fields"),
    (moving("buffers", 0, "shape", 0, to=terms([[["s0", 1]], -1])), "possible shape"),
    (moving("buffers", 0, "strides", 0, to=1), "greatest sizes|inside its memory"),
    (moving("outputs", 1, "offset", to=10**6), "inside its memory"),
    (moving("outputs", 1, "offset", to=-1), "inside its memory"),
    (moving("outputs", 1, "shape", 0, to=terms([[["s0", 2]], 1])), "inside its memory"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_what_cannot_be_is_refused(file, tmp_path, change, message) -> None:
    bad = tmp_path / "bad.dcir"
    _rewritten(file, bad, {"manifest.json": change})
    with pytest.raises(ArtefactInvalid, match=message) as caught:
        dcir.load(bad)
    assert str(bad) in str(caught.value)


def test_what_is_wrong_at_some_sizes_only_is_refused_there(file, tmp_path) -> None:
    """Right at both ends, too large between them."""
    bad = tmp_path / "bad.dcir"
    # 53 * s0 - (s0 - 4) * (s0 - 53) beyond s0 itself: more rows than there are between the ends.
    more = polynomial([((("s0", 2),), -1), ((("s0", 1),), 58), ((), -212)])
    rows = json.loads(json.dumps(more.terms))
    _rewritten(file, bad, {"manifest.json": moving("outputs", 1, "shape", 0, to=terms(*rows))})
    fast = dcir.load(bad)
    assert fast(torch.randn(4, 7))[1].shape == (4, 6)
    with pytest.raises(ArtefactInvalid, match="inside its memory"):
        fast(torch.randn(20, 7))


def test_it_comes_back_as_it_was(file) -> None:
    document = dcir.load(file).dcir.sizes
    assert read(json.loads(json.dumps(document.to_json())), 1) == document


def test_sizes_of_divided_dimensions() -> None:
    axes = (MovingAxis(0, 4, 9, ()), MovingAxis(2, 32, 99, ((2, 1), (2, 1))))
    layout = MovingLayout((size("s0"), 3), (3, 1))
    moved = Moving(5, axes, (layout,), (layout,), (MovingWindow((size("s0"),), (3,), 0),), ())
    assert moved.count == 4
    top, last, first = moved.sizes((7, 1, 46))[1:]
    assert (top, 2 * top - 1 + last, 4 * top - 3 + 2 * last + first) == (12, 23, 46)
    assert moved.sizes((7, 1, 46))[0] == 7


def test_boxes_hold_what_lies_in_them() -> None:
    assert (
        holds(((2, 5), (3, 3)), (5, 3)) and not holds(((2, 5), (3, 3)), (6, 3)) and not holds(((2, 5), (3, 3)), (2, 2))
    )
