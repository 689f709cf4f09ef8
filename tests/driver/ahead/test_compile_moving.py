"""One program of a .dcir file is for all sizes within bounds, as far as can be; what it is not for has others, and the reason is told."""

from __future__ import annotations

import copy
import random
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import dcir
from dcir.driver import api
from dcir.errors import IndexOutOfRange, InvalidInput, OptionError, Unsupported
from dcir.runtime import moving_parts
from tests.harness import check_close
from tests.moving import Decoder, Encoder

pytestmark = pytest.mark.in_turn(3)


class Images(nn.Module):
    """Sizes that are divided by four on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.second(self.first(x).relu()).relu()
        return y, y.mean((2, 3))


class Table(nn.Module):
    """A length up to the last row of a table of positions."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.tokens, self.positions, self.last = nn.Embedding(50, 16), nn.Embedding(rows, 16), nn.Linear(16, 8)
        self.register_buffer("ids", torch.arange(rows)[None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.tokens(x) + self.positions(self.ids[:, : x.shape[1]])).softmax(1)


class ThroughTorch(nn.Module):
    """Has a call into torch whose operands move."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.linalg.solve(torch.eye(4, dtype=x.dtype) + 0 * x.sum(), x.T) @ x, x, x[1:]


class Pairs(nn.Module):
    """A product of the rows of one table with those of another."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y.T).relu()


class Nested(nn.Module):
    """Results in a dict, of which some are fixed, and one is an argument."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, object]:
        return {"z": [x - x.mean(0) + y, None, 7], "a": y, "part": (x * 2)[:, 1:]}


class Relative(nn.Module):
    """Rows of relative positions: two for each row, and one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, n = self.linear(x), x.shape[1]
        return y + rows[1 : n + 1] + rows[n + 1 :], torch.softmax(y @ rows.T, -1)


class Branches(nn.Module):
    """Other batches, other graphs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 - x.mean() if x.shape[0] > 2 else x.softmax(1)


class Recurrent(nn.Module):
    """A loop of as many trips as there are words, over as many rows as there are sentences; and a branch on what is in them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True), nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(self.layer(x)[0])
        (z,) = torch.cond(x.sum() > 0, lambda y: (y.softmax(-1),), lambda y: (y.cos(),), (y,))
        return z


class Cut(nn.Module):
    """Is no network for all sizes: a third of a square is no polynomial, and follows from no rest of a division."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return torch.sort(x, 0)[0] + torch.arange(n * n // 3).sum()


def save(net: nn.Module, example: object, path: Path, **bounds: object) -> nn.Module:
    api.save(net.eval(), example, path, **bounds)
    return dcir.load(path)


def check(fast: nn.Module, net: nn.Module, *args: torch.Tensor) -> None:
    wide = copy.deepcopy(net).double()
    with torch.no_grad():
        results = [fast(*args), net(*args), wide(*(a.double() if a.is_floating_point() else a for a in args))]
    for got, want, exact in zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True):
        check_close(got, want, exact)


def text(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids, mask = torch.randint(0, 50, (batch, length)), torch.ones(batch, length)
    mask[0, length // 2 + 1 :] = 0
    return ids, mask


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Path]:
    torch.manual_seed(0)
    net, path = Encoder().eval(), tmp_path_factory.mktemp("encoder") / "model.dcir"
    b, s = Dim("b", min=2, max=16), Dim("s", min=2, max=64)
    report = api.save(net, text(3, 7), path, dynamic={"ids": {0: b, 1: s}, "mask": {0: "b", 1: "s"}})
    assert len(report.graphs) == 1 and "for all sizes: b 2 to 17, s 2 to 67" in str(report)
    return net, path


def test_one_program_for_all_sizes(encoder) -> None:
    net, path = encoder
    fast = dcir.load(path)
    assert len(fast.dcir.sizes.programs) == 1 and [d.known.bounds for d in fast.dcir.dimensions] == ["2..16", "2..64"]
    draw = random.Random(0)
    for size in (
        (2, 2),
        (16, 64),
        (2, 64),
        (16, 2),
        (9, 33),
        *((draw.randint(2, 16), draw.randint(2, 64)) for _ in range(9)),
    ):
        check(fast, net, *text(*size))
    ids, mask = text(5, 12)
    check(fast, net, torch.cat([ids, ids], 1)[:, 1::2], mask)  # other strides cost a copy


def test_recurrent_layers_of_any_length_and_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Recurrent()
    b, s = Dim("b", min=2, max=48), Dim("s", min=3, max=64)
    fast = save(net, (torch.randn(3, 7, 6),), tmp_path / "model.dcir", dynamic={"x": {0: b, 1: s}})
    assert len(fast.dcir.sizes.programs) == 1
    for sign, size in ((1, (2, 3)), (-1, (48, 64)), (1, (5, 33)), (-1, (2, 64))):
        check(fast, net, sign * torch.rand(*size, 6))


def test_sizes_outside_and_other_mistakes(encoder) -> None:
    fast = dcir.load(encoder[1])
    for size, words in (
        ((17, 3), r"\(b\) has size 17, outside its bounds 2\.\.16"),
        ((2, 65), r"\(s\) has size 65"),
        ((1, 5), "size 1"),
    ):
        with pytest.raises(InvalidInput, match=words):
            fast(*text(*size))
    ids, mask = text(3, 7)
    for wrong, words in (
        ((ids, mask[:, 1:]), r"dimension 's' is 7 in ids\[1\] and 6 in mask\[1\]"),
        ((ids[0], mask), r"must have shape \[b, s\]"),
        ((ids.float(), mask), "must have type torch.int64"),
        ((ids,), "1 inputs are given"),
    ):
        with pytest.raises(InvalidInput, match=words):
            fast(*wrong)
    ids[1, 2] = 50
    with pytest.raises(IndexOutOfRange):
        fast(ids, mask)
    check(fast, encoder[0], *text(3, 7))


def test_few_sizes_are_kept(encoder, monkeypatch) -> None:
    monkeypatch.setattr(moving_parts, "MOST_KEPT", 2)
    fast = dcir.load(encoder[1])
    for size in ((2, 2), (3, 4), (5, 6), (2, 2), (3, 4)):
        check(fast, encoder[0], *text(*size))


def test_weights_can_be_exchanged(encoder) -> None:
    fast, other = dcir.load(encoder[1]), Encoder().eval()
    check(fast, encoder[0], *text(3, 9))
    twin = copy.deepcopy(fast)
    fast.load_state_dict({name: t for name, t in other.state_dict().items() if name in fast.state_dict()})
    for size in ((3, 9), (4, 20)):
        check(fast, other, *text(*size))
        check(twin, encoder[0], *text(*size))


def test_threads(encoder) -> None:
    net, fast, errors = encoder[0], dcir.load(encoder[1]), []

    def work(first: int) -> None:
        try:
            for k in range(12):
                args = text(2 + (first + k) % 7, 3 + 4 * k)
                with torch.no_grad():
                    torch.testing.assert_close(fast(*args), net(*args), rtol=1e-4, atol=1e-4)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors


def test_sizes_of_one_have_programs_of_their_own(tmp_path) -> None:
    net, dims = Encoder(), {0: Dim("b", min=1, max=16), 1: Dim("s", min=1, max=64)}
    fast = save(net, text(3, 7), tmp_path / "m.dcir", dynamic={0: dims, 1: {0: "b", 1: "s"}})
    boxes = [fast.dcir.sizes.box(i) for i in range(len(fast.dcir.sizes.programs))]
    assert boxes == [((2, 17), (2, 67)), ((1, 1), (2, 67)), ((1, 1), (1, 1)), ((2, 17), (1, 1))]
    for size in ((1, 1), (1, 2), (2, 1), (16, 1), (1, 64), (16, 64)):
        check(fast, net, *text(*size))
    assert "few sizes, beside a program for many" in api.explain_file(tmp_path / "m.dcir").to_text()


def test_sizes_of_one_in_the_same_program(tmp_path) -> None:
    net = Table(600)
    fast = save(
        net, [torch.zeros(1, 5, dtype=torch.long)], tmp_path / "m.dcir", dynamic={0: {1: Dim("s", min=1, max=64)}}
    )
    assert [fast.dcir.sizes.box(0)] == [((1, 67),)]
    for s in (1, 2, 40, 64):
        check(fast, net, torch.randint(0, 50, (1, s)))


def test_images_whose_sizes_are_divided(tmp_path) -> None:
    net, sizes = Images(), {0: {2: Dim("h", min=32, max=96), 3: Dim("w", min=32, max=96)}}
    fast = save(net, [torch.zeros(2, 3, 40, 48)], tmp_path / "m.dcir", dynamic=sizes)
    assert len(fast.dcir.sizes.programs) == 1
    assert [a.steps for a in fast.dcir.sizes.moving[0].axes] == [((2, 1), (2, 1))] * 2
    for h, w in ((32, 32), (96, 96), (32, 96), (33, 34), (35, 36), (61, 77)):
        check(fast, net, torch.randn(2, 3, h, w))


def test_up_to_the_last_row_of_a_table(tmp_path) -> None:
    """Samples lie beyond the upper end, where the table has no rows: the last sizes have programs of their own."""
    net = Table(64)
    fast = save(
        net, [torch.zeros(2, 5, dtype=torch.long)], tmp_path / "m.dcir", dynamic={0: {1: Dim("s", min=2, max=64)}}
    )
    assert [fast.dcir.sizes.box(i)[0] for i in range(4)] == [(2, 61), (62, 62), (63, 63), (64, 64)]
    for s in (2, 60, 61, 62, 63, 64):
        check(fast, net, torch.randint(0, 50, (2, s)))


def test_few_sizes_of_a_dimension(tmp_path) -> None:
    """Samples of it lie beyond what was asked for."""
    net, dims = Decoder(), {0: Dim("b", min=2, max=3), 1: Dim("n", min=2, max=40)}
    fast = save(net, [torch.zeros(2, 5, dtype=torch.long)], tmp_path / "m.dcir", dynamic={0: dims})
    assert len(fast.dcir.sizes.programs) == 1 and fast.dcir.sizes.box(0)[0][0] == 2
    for size in ((2, 2), (3, 40), (2, 17)):
        check(fast, net, torch.randint(0, 50, size))
    with pytest.raises(InvalidInput, match=r"outside its bounds 2\.\.3"):
        fast(torch.randint(0, 50, (4, 5)))


def test_few_sizes_of_two_dimensions(tmp_path) -> None:
    """No sample is a constant extent or another dimension's: the second one's lie further out than the first one's."""
    net, x, y = Pairs(), Dim("a", min=1, max=9), Dim("k", min=1, max=9)
    fast = save(net, [torch.randn(3, 4), torch.randn(2, 4)], tmp_path / "m.dcir", dynamic={"x": {0: x}, "y": {0: y}})
    assert len(fast.dcir.sizes.programs) == 1 and fast.dcir.sizes.moving
    for size in ((1, 1), (9, 9), (1, 9), (7, 2)):
        check(fast, net, torch.randn(size[0], 4), torch.randn(size[1], 4))
    with pytest.raises(InvalidInput, match=r"outside its bounds 1\.\.9"):
        fast(torch.randn(10, 4), torch.randn(2, 4))


def test_a_dimension_that_decides(tmp_path) -> None:
    """It has a program for each of its sizes, which are for all of the other dimension."""
    net, dims = Branches(), {0: Dim("b", min=1, max=4), 1: Dim("n", min=4, max=40)}
    fast = save(net, [torch.zeros(2, 5)], tmp_path / "m.dcir", dynamic={0: dims})
    assert sorted(fast.dcir.sizes.box(i)[0] for i in range(4)) == [(b, b) for b in range(1, 5)]
    assert all(fast.dcir.sizes.moving)
    for size in ((1, 4), (2, 40), (3, 17), (4, 40)):
        check(fast, net, torch.randn(*size))


def test_calls_into_torch(tmp_path) -> None:
    net = ThroughTorch()
    fast = save(net, [torch.randn(5, 4)], tmp_path / "m.dcir", dynamic={"x": {0: Dim("n", min=2, max=50)}})
    # Of two rows x[1:] is one, which torch has another trace for.
    boxes = [fast.dcir.sizes.box(i)[0] for i in range(len(fast.dcir.sizes.programs))]
    assert boxes == [(4, 53), (2, 2), (3, 3)] and fast.dcir.manifest.calls_into_torch
    for n in (2, 3, 4, 31, 50):
        x = torch.randn(n, 4)
        check(fast, net, x)
        assert fast(x)[1] is not None and fast(x)[2].shape == (n - 1, 4)


def test_sizes_that_follow_from_others(tmp_path) -> None:
    net, b, s = Relative(), Dim("b", min=2, max=16), Dim("s", min=2, max=40)
    sizes = {"x": {0: b, 1: s}, "rows": {0: 2 * s + 1}}
    fast = save(net, [torch.randn(3, 5, 4), torch.randn(11, 6)], tmp_path / "m.dcir", dynamic=sizes)
    assert len(fast.dcir.sizes.programs) == 1
    for batch, n in ((2, 2), (16, 40), (5, 17)):
        check(fast, net, torch.randn(batch, n, 4), torch.randn(2 * n + 1, 6))
    for rows, words in (
        ((10, 6), r"has size 10, outside 2\*s \+ 1 for s=2\.\.40"),
        ((13, 6), r"'s' is 5 in x\[1\] and 6 in rows\[0\]"),
        ((11, 5), r"must have shape \[2\*s \+ 1, 6\]"),
    ):
        with pytest.raises(InvalidInput, match=words):
            fast(torch.randn(3, 5, 4), torch.randn(*rows))
    with pytest.raises(OptionError, match="no dimension of an input is s itself"):
        api.save(net, [torch.randn(3, 5, 4), torch.randn(11, 6)], tmp_path / "n.dcir", dynamic={"rows": {0: 2 * s + 1}})


def test_nested_results(tmp_path) -> None:
    net, sizes = Nested(), {"x": {0: Dim("n", min=4, max=50), 1: Dim("m", min=4, max=50)}, "y": {0: "n", 1: "m"}}
    fast = save(net, [torch.randn(5, 6), torch.randn(5, 6)], tmp_path / "m.dcir", dynamic=sizes)
    for size in ((4, 4), (50, 50), (13, 7)):
        x, y = torch.randn(*size), torch.randn(*size)
        torch.testing.assert_close(fast(x, y), net(x, y), rtol=1e-5, atol=1e-5)


def test_dimensions_in_any_order(tmp_path) -> None:
    net, sizes = Nested(), {"y": {1: Dim("m", min=4, max=50), 0: "n"}, "x": {0: Dim("n", min=4, max=40), 1: "m"}}
    fast = save(net, [torch.randn(5, 6), torch.randn(5, 6)], tmp_path / "m.dcir", dynamic=sizes)
    assert [d.name for d in fast.dcir.dimensions] == ["m", "n"] and len(fast.dcir.sizes.programs) == 1
    for size in ((4, 50), (40, 4), (13, 7)):
        x, y = torch.randn(*size), torch.randn(*size)
        torch.testing.assert_close(fast(x, y), net(x, y), rtol=1e-5, atol=1e-5)


def test_why_there_is_no_program_for_all_sizes(tmp_path) -> None:
    sizes = {"x": {0: Dim("n", min=2, max=9)}}
    fast = save(Cut(), [torch.randn(3, 4)], tmp_path / "m.dcir", dynamic=sizes)
    assert len(fast.dcir.sizes.programs) == 8 and not any(fast.dcir.sizes.moving)
    assert "no program for all sizes" in api.explain_file(tmp_path / "m.dcir").to_text()
    with pytest.raises(Unsupported, match=r"one for all .*no polynomial of the sizes"):
        api.save(Cut(), [torch.randn(3, 4)], tmp_path / "n.dcir", dynamic={"x": {0: Dim("n", min=2, max=60)}})
    # Equal sizes of different names are told by the trace.
    x = {"x": {0: Dim("n", min=2, max=60)}, "y": {0: Dim("m", min=2, max=60)}}
    with pytest.raises(Unsupported, match=r"one for all .*captured as one graph"):
        api.save(Nested(), [torch.randn(3, 4), torch.randn(3, 4)], tmp_path / "n.dcir", dynamic=x)


def test_the_same_model_gives_the_same_bytes(encoder, tmp_path) -> None:
    b, s = Dim("b", min=2, max=16), Dim("s", min=2, max=64)
    api.save(encoder[0], text(3, 7), tmp_path / "m.dcir", dynamic={"ids": {0: b, 1: s}, "mask": {0: "b", 1: "s"}})
    with zipfile.ZipFile(encoder[1]) as old, zipfile.ZipFile(tmp_path / "m.dcir") as new:
        assert [n for n in old.namelist() if old.read(n) != new.read(n)] == []
