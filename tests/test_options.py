"""Options are checked when they are made, read what people write, and have a stable key."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from dcir.errors import OptionError
from dcir.options import Options, parse_size


@dataclasses.dataclass(frozen=True)
class Pass:
    width: int = 4
    names: frozenset[str] = frozenset({"a", "b"})


@pytest.mark.parametrize("text", [3, "3", "O3", "-O3", "o3"])
def test_levels_as_people_write_them(text):
    assert Options.make(level=text).level == 3


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"level": 5}, "one of 0, 1, 2, 3, 4"),
        ({"level": "fast"}, "one of 0, 1, 2, 3, 4"),
        ({"level": True}, "one of 0, 1, 2, 3, 4"),
        ({"target": "cp"}, "target='cpp'"),
        ({"verify": "all"}, "'off', 'passes'"),
        ({"strict": 1}, "True or False"),
        ({"threads": 0}, "from 1 up"),
        ({"threads": "many"}, "from 1 up"),
        ({"until": ""}, "name of a pass"),
        ({"pipeline": "abc"}, "tuple of passes"),
        ({"memory_limit": "lots"}, "'512MB'"),
        ({"memory_limit": 0}, "'512MB'"),
        ({"precision": "fp31"}, "fp32"),
        ({"hint": "througput"}, "hint='throughput'"),
        ({"remarks": 1}, "True or False"),
        ({"background": True, "strict": True}, "strict=False"),
        ({"skip": ["fuse-epilogues"]}, "as remarks name them"),
        ({"streams": 0}, "from 1 up"),
        ({"streams": True}, "from 1 up"),
        ({"streams": "many"}, "from 1 up"),
        ({"streams": 1 << 20}, "leave streams out"),
        ({"streams": 2, "hint": "latency"}, "hint='throughput'"),
        ({"levle": 3}, "level"),
        ({"xyz": 3}, "one of level, target"),
    ],
)
def test_refusals_say_where_and_what_to_try(values, hint):
    with pytest.raises(OptionError) as caught:
        Options.make(**values)
    assert hint in caught.value.hint
    assert caught.value.where
    assert next(iter(values)) in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [{"precision": "bf16"}, {"memory_limit": "2GB", "target": "dace"}],
)
def test_what_is_not_implemented_is_refused_by_name(values):
    with pytest.raises(OptionError, match="not implemented yet"):
        Options.make(**values)


def test_threads_auto_and_lists_of_passes():
    options = Options.make(threads="auto", pipeline=[Pass()], debug_dir=Path("x"))
    assert options == Options(threads=None, pipeline=(Pass(),), debug_dir="x")


@pytest.mark.parametrize(
    ("text", "size"), [("2GB", 2_000_000_000), ("2GiB", 2 << 30), ("1.5kB", 1500), ("77", 77), (9, 9), (None, None)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


def test_streams_are_a_wish_for_throughput_and_no_more_than_processors(monkeypatch):
    monkeypatch.setattr("dcir.cores.usable_threads", lambda: 4)
    assert Options.make(streams=4) == Options(hint="throughput", streams=4)
    assert Options.make().hint == "latency" and Options.make(hint="latency", streams=1).streams == 1
    with pytest.raises(OptionError, match="5 streams want a processor each, and 4 can be used"):
        Options.make(streams=5)
    with pytest.raises(OptionError, match="3 streams want a processor each, and 2 can be used"):
        Options.make(streams=3, threads=2)


def test_cache_key_leaves_out_options_that_only_watch():
    assert Options().cache_key() == Options(verify="passes", debug_dir="x", strict=True).cache_key()
    keys = {Options(level=2).cache_key(), Options(threads=2).cache_key(), Options(pipeline=(Pass(3),)).cache_key()}
    assert len(keys | {Options().cache_key()}) == 4


def test_cache_key_is_the_same_in_every_process():
    code = (
        "from dcir.options import Options\n"
        "print(Options(pipeline=(frozenset({'a', 'b', 'c'}), {'y': 1, 'x': 2}, len)).cache_key())"
    )
    run = [sys.executable, "-c", code]
    texts = {
        subprocess.run(run, env={"PYTHONHASHSEED": str(n)}, capture_output=True, check=True).stdout for n in (1, 2)
    }
    assert len(texts) == 1


@pytest.mark.parametrize("entry", [object(), lambda graph: graph])
def test_cache_key_refuses_what_it_cannot_name(entry):
    with pytest.raises(OptionError, match="cache key"):
        Options(pipeline=(entry,)).cache_key()
