"""Damages files of kept traces in all ways but one that forges their digests: every call is traced again then, or gets the right numbers.

    python -m tests.driver.kept.fuzz --seed 1 --cases 500
    python -m tests.driver.kept.fuzz --seed 1 --cases 500 --graphs

With ``--graphs`` it is the files of what graphs become.
The networks are small, and compiled once. Where a damaged file leaves nothing to use, the trace that would follow is made for one case in
twenty; the others end there. Prints a line of JSON: how often a trace was used and how often not, by kind of damage.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import pickle
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters

import dcir
from dcir.cache import ENVIRONMENT_NAME, Cache
from dcir.driver.kept.keeper import TraceKeeper
from dcir.driver.kept.pickles import from_bytes
from dcir.driver.session import Session
from dcir.frontends.torch import ahead_of_time
from dcir.frontends.torch.kept.frames import frame_again
from dcir.options import Options

_SUFFIXES = {"traces": ".trace", "graphs": ".graph"}
_TOLERANCE = 1e-4
_REAL = 20
"""One case in so many is traced where nothing is kept."""


class Layers(nn.Module):
    """Products with a bias, an activation between them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        """From [n, 8] to [n, 8]."""
        return self.two(torch.relu(self.one(x)))  # type: ignore[no-any-return]


class Normal(Layers):
    """With a normalisation, which has a buffer; and a constant of the trace."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        """From [n, 8] to [n, 8]."""
        return self.norm(super().forward(x)) * torch.tensor([1.0, 2.0] * 4)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Subject:
    """What is compiled: how to make it, with which options, and the lengths of its calls."""

    make: Callable[[], nn.Module]
    options: dict[str, Any]
    lengths: tuple[int, ...]
    train: bool = False

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make().train(self.train)


_SUBJECTS = (
    _Subject(Layers, {}, (5, 5)),
    _Subject(lambda: Layers(16), {}, (5, 5)),
    _Subject(Layers, {"level": 1}, (5, 5)),
    _Subject(Layers, {"dynamic": True}, (5, 9)),
    _Subject(Normal, {}, (5, 5)),
    _Subject(Normal, {}, (5, 9, 7), train=True),
)


class _Refused(Exception):
    """There is no trace to use for a call, so one would be made."""


@contextmanager
def _ended_before_a_trace() -> Iterator[None]:
    """While it lasts, Dynamo does not trace what no trace is kept of, nor AOTAutograd what there are no graphs of."""
    found, ahead = TraceKeeper.found, ahead_of_time.aot_module_simplified

    def known(self: TraceKeeper, frame: Any) -> Any:
        code = found(self, frame)
        if code is None:
            raise _Refused
        return code

    def refused(*_: Any, **__: Any) -> Any:
        raise _Refused

    TraceKeeper.found = known  # type: ignore[method-assign]
    ahead_of_time.aot_module_simplified = refused
    try:
        yield
    except BackendCompilerFailed as e:
        if not isinstance(e.inner_exception, _Refused):
            raise
        raise _Refused from None
    finally:
        TraceKeeper.found, ahead_of_time.aot_module_simplified = found, ahead  # type: ignore[method-assign]


def _run(subject: _Subject, kind: str) -> list[Tensor]:
    """Results of all calls, compiled; gradients and buffers of training steps with them."""
    torch._dynamo.reset()
    wish = {"keep_traces": kind == "traces", "keep_graphs": kind == "graphs"}
    return _results(dcir.optimize(copy.deepcopy(subject.module()), **wish, **subject.options), subject)


def _results(module: nn.Module, subject: _Subject) -> list[Tensor]:
    found = []
    with torch.set_grad_enabled(subject.train):
        for seed, length in enumerate(subject.lengths):
            result = module(torch.randn(length, 8, generator=torch.Generator().manual_seed(seed)))
            found.append(result.detach().clone())
            if subject.train:
                module.zero_grad()
                result.pow(2).sum().backward()
                found += [p.grad.clone() for p in module.parameters() if p.grad is not None]
                found += [b.clone() for b in module.buffers()]
    return found


def _check(subject: _Subject, got: Sequence[Tensor]) -> None:
    want = _results(subject.module(), subject)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        error, size = float((a.double() - b.double()).abs().max()), float(b.double().abs().max())
        assert error <= _TOLERANCE * max(size, 1.0), (subject, error, size)


class _Files:
    """The files of kept traces as they were written."""

    def __init__(self, kind: str) -> None:
        self.cache, self._kind = Cache.default(), kind
        self.kept = {e.key: e.path.read_bytes() for e in self.cache.ls(kind)}
        self.keys = sorted(self.kept)

    def put(self, key: str, data: bytes) -> None:
        """Give a file other contents, sealed as the cache does it."""
        self.cache.change(self._kind, key, _SUFFIXES[self._kind], lambda _: data)

    def restore(self) -> None:
        for entry in self.cache.ls(self._kind):
            if entry.key not in self.kept:
                entry.path.unlink()
        for key, data in self.kept.items():
            self.put(key, data)

    def path(self, key: str) -> Path:
        return self.cache.folder / self._kind / key[:2] / (key + _SUFFIXES[self._kind])


def _flipped(data: bytes, draw: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)
    return bytes(made)


def _rows(data: bytes) -> list[Any]:
    rows: list[Any] = pickle.loads(data)  # our own
    return rows


def _written_to(files: _Files, draw: random.Random) -> None:
    """Bytes are changed by something that knows nothing of seals."""
    for key in files.keys:
        files.path(key).write_bytes(_flipped(files.kept[key], draw))


def _flips(files: _Files, draw: random.Random) -> None:
    for key in files.keys:
        files.put(key, _flipped(files.kept[key], draw))


def _truncated(files: _Files, draw: random.Random) -> None:
    for key in files.keys:
        files.put(key, files.kept[key][: draw.randrange(len(files.kept[key]))])


def _reordered(files: _Files, draw: random.Random) -> None:
    for key in files.keys:
        rows = _rows(files.kept[key])
        files.put(key, pickle.dumps(draw.sample(rows, len(rows)) + draw.choices(rows, k=draw.randrange(3))))


def _swapped(files: _Files, draw: random.Random) -> None:
    """Files of one network, or of other options, in the place of another's."""
    for key, other in zip(files.keys, draw.sample(files.keys, len(files.keys)), strict=True):
        files.put(key, files.kept[other])


def _mixed(files: _Files, draw: random.Random) -> None:
    """The guards of one trace with the programs of another one."""
    every = {row[3] for data in files.kept.values() for row in _rows(data)}
    for key in files.keys:
        rows = [(n, m, f, draw.choice(sorted(every - {own})), s) for n, m, f, own, s in _rows(files.kept[key])]
        files.put(key, pickle.dumps(rows))


def _parts(files: _Files, draw: random.Random) -> None:
    """Parts of rows are missing, or of other types."""
    for key in files.keys:
        rows = [list(row) for row in _rows(files.kept[key])]
        for row in rows:
            at = draw.randrange(len(row))
            row[at : at + 1] = draw.choice(([], [None], [b""], ["x"], [row[at], row[at]], [1 << 80], [True]))
        files.put(key, pickle.dumps([tuple(row) for row in rows]))


_DAMAGES = (_written_to, _flips, _truncated, _reordered, _swapped, _mixed, _parts)


def _read_flipped(files: _Files, kind: str, draw: random.Random, count: int) -> Counter[str]:
    """Frames, or graphs, with bytes changed, read without any seal: something is made of them or not, and nothing else happens."""
    parts = [row[2 if kind == "traces" else 3] for data in files.kept.values() for row in _rows(data) if row[3]]
    session = Session(Options.make())
    said: Counter[str] = Counter()
    for _ in range(count):
        made, data = "an object", _flipped(draw.choice(parts), draw)
        try:
            _ = frame_again(data) if kind == "traces" else from_bytes(data, session, files.cache)
        except Exception as error:  # which the keeper takes for none
            made = type(error).__name__
        said[made] += 1
    return said


def fuzzed(seed: int, cases: int, kind: str) -> dict[str, Any]:
    """Compile the networks, and damage what was kept in so many ways; the cache of the process is written to.

    Raises:
        AssertionError: a call got other numbers.
    """
    draw = random.Random(seed)
    before = [_run(subject, kind) for subject in _SUBJECTS]
    for subject, want in zip(_SUBJECTS, before, strict=True):
        _check(subject, want)
    files = _Files(kind)
    used, refused, traced = Counter[str](), Counter[str](), 0
    for case in range(cases):
        damage = _DAMAGES[case % len(_DAMAGES)]
        damage(files, draw)
        for subject, want in zip(_SUBJECTS, before, strict=True):
            name = damage.__name__.strip("_")
            got = None
            with suppress(_Refused), _ended_before_a_trace():
                got = _run(subject, kind)
            if got is None:
                refused[name] += 1
            else:
                used[name] += 1
                assert all(map(torch.equal, got, want)), (case, name, subject)
        if case % _REAL == 0:
            subject = draw.choice(_SUBJECTS)
            counters.clear()
            _check(subject, _run(subject, kind))
            traced += counters["stats"].get("unique_graphs", 0)
        files.restore()
    with _ended_before_a_trace():  # nothing of all this has spoilt anything
        for subject, want in zip(_SUBJECTS, before, strict=True):
            assert all(map(torch.equal, _run(subject, kind), want)), subject
    read = _read_flipped(files, kind, draw, 4 * cases)
    return {"used": used, "refused": refused, "traced": traced, "read": read}


def main() -> None:
    """Read the arguments, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--graphs", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ[ENVIRONMENT_NAME] = folder
        print(json.dumps(fuzzed(given.seed, given.cases, "graphs" if given.graphs else "traces")))


if __name__ == "__main__":
    main()
