"""Tests compile into a cache of their own, never into the user's, and say at the end where they ran and what they left out."""

import gc
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dcir.isa import executable, host_isa
from tests.rotation import has_turn

COMPILED_ONLY = host_isa().name not in executable()
"""Whether ``DCIR_ISA`` asks for instructions that this processor lacks: code is made and compiled, and tests end where it would run."""
WHY_NOT_RUN = f"compiled for {host_isa().name}, which this processor cannot run"


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A fresh cache for the session, or the folder DCIR_TEST_CACHE, which makes repeated runs quick.

    Processes that share a session (pytest-xdist) share its cache: each kernel is built by one of them. What graphs become is not found
    there: a test compiles what it says that it compiles, whatever others compiled before (``tests/driver/kept`` is about that).
    """
    kept = os.environ.get("DCIR_TEST_CACHE")
    together = tmp_path_factory.getbasetemp().parent / "dcir-cache"
    if kept:
        folder = os.path.abspath(kept)
    elif "PYTEST_XDIST_WORKER" in os.environ:
        folder = str(together)
    else:
        folder = str(tmp_path_factory.mktemp("dcir-cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DCIR_CACHE_DIR", folder)
        patch.setenv("DCIR_KEEP_GRAPHS", "0")
        yield


if COMPILED_ONLY:

    class _CompiledOnly:
        """Stands for a loaded program."""

        def __init__(self, path: Path, info: Any, *_: Any, **__: Any) -> None:
            self.info, self.path = info, path

        def __call__(self, args: Sequence[Any]) -> list[Any]:
            pytest.skip(WHY_NOT_RUN)

        def place(self, blocks: Any) -> None:
            """A program that never runs puts nothing anywhere."""

    @pytest.fixture(autouse=True)
    def _nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
        """Libraries are made and not loaded, a backward's with its forward's: it would be made when it is first called."""
        monkeypatch.setattr("dcir.driver.targets.cpp.require_executable", lambda isa: None)
        monkeypatch.setattr("dcir.driver.compile.Late", lambda make, hears=None: make())
        monkeypatch.setattr("dcir.driver.assemble.Program", _CompiledOnly)


_WHOLE = "DCIR_TEST_WHOLE"


def pytest_configure(config: pytest.Config) -> None:
    """Tell the processes that share the tests whether all are asked for, or some by name."""
    if not hasattr(config, "workerinput"):
        named = config.args_source is not config.ArgsSource.TESTPATHS or config.option.keyword or config.option.markexpr
        os.environ[_WHOLE] = "" if named else "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long has its turn with some of the commits, unless it is asked for by name."""
    if not os.environ.get(_WHOLE):
        return
    marks = [(item, item.get_closest_marker("in_turn")) for item in items]
    items[:] = [item for item, mark in marks if mark is None or has_turn(item.nodeid, mark.args[0])]
    away = [item for item, mark in marks if mark is not None and not has_turn(item.nodeid, mark.args[0])]
    config.hook.pytest_deselected(items=away)


def pytest_collection_finish() -> None:
    """What is imported and collected stays: the garbage collector need not walk over it again and again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the processor, the architectures that had their turn, and every reason for which tests were left out."""
    how = "compiled" if COMPILED_ONLY else "run"
    terminalreporter.write_line(f"processor: {_processor()}; code {how} for {host_isa().name}")
    reports = [r for outcome in ("passed", "failed") for r in terminalreporter.stats.get(outcome, ())]
    run = {str(value) for report in reports for name, value in report.user_properties if name == "architecture"}
    if run:
        terminalreporter.write_line(f"  {len(run):>6} architectures: {', '.join(sorted(run))}")
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"  {count:>6} left out: {reason.removeprefix('Skipped: ')}")


def _processor() -> str:
    """Model, cores and instruction sets."""
    try:
        found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    name = found[1] if found else "unknown"
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {' '.join(executable())}"
