"""Starts the compiler: without a shell, from a private folder, with an environment in which nobody's files lead it astray; and counts.

Neither the working directory nor relative search paths can put a program or a header in its way.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcir.cache import Cache
from dcir.errors import CompilerFailed, CompilerNotFound

_SYSTEM_FOLDERS = frozenset({"/usr/bin", "/bin", "/usr/local/bin"})
# Search paths of the compiler: they could change the code behind an unchanged address, or lead to planted files.
_DROPPED_ENVIRONMENT = frozenset(
    {"CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"}
    | {"DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES"}
    | {"LD_PRELOAD"}  # what stands in for malloc in this process would only slow the compiler down
)
_TIMEOUT_SECONDS = 900.0
_SHOWN_LINES = 12
_REFUSALS = {
    "compiles": "could not compile generated code",
    "links": "could not link generated code",
    "probes": "does not tell its version",
}


@dataclass
class CompilerRuns:
    """How often this process started the compiler, by purpose."""

    compiles: int = 0
    links: int = 0
    probes: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, purpose: str) -> None:
        """Count one run; `purpose` is the name of a field."""
        with self._lock:
            setattr(self, purpose, getattr(self, purpose) + 1)

    @property
    def total(self) -> int:
        """All runs together."""
        return self.compiles + self.links + self.probes


compiler_runs = CompilerRuns()


def which(name: str) -> str | None:
    """The absolute path of a program, from absolute folders of PATH other than the working directory."""
    return shutil.which(name, path=os.pathsep.join(_search_path()))


def _search_path() -> list[str]:
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:  # it was removed, so nothing lies in it
        here = ""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    absolute = [folder for folder in folders if os.path.isabs(folder)]
    return [folder for folder in absolute if folder in _SYSTEM_FOLDERS or os.path.realpath(folder) != here]


def _environment() -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _DROPPED_ENVIRONMENT}
    return kept | {"PATH": os.pathsep.join(_search_path()), "LC_ALL": "C"}


def run(
    command: Sequence[str], folder: Path, purpose: str, source: Path | None, cache: Cache, makes: Path | None = None
) -> str:
    """Run the compiler and wait for it.

    Args:
        command: the compiler and its arguments.
        folder: where it runs.
        purpose: "compiles", "links" or "probes".
        source: what it reads, kept if it is refused.
        cache: where that is kept.
        makes: the file that is there afterwards.

    Returns:
        What it said.

    Raises:
        CompilerNotFound, CompilerFailed: it cannot be started, or it refused, took too long, was ended or made nothing.
    """
    compiler_runs.add(purpose)
    name = os.path.basename(command[0])
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _failure(f"{name} took longer than {_TIMEOUT_SECONDS:.0f} s", "", command, source, cache) from error
    except OSError as error:
        raise CompilerNotFound(
            f"{name} cannot be started: {error.strerror}", where=command[0], hint="set DCIR_CXX to another compiler"
        ) from error
    output = done.stdout.decode(errors="replace")
    if done.returncode < 0:
        reason = f"{name} was ended by signal {-done.returncode}; is there enough memory?"
        raise _failure(reason, output, command, source, cache)
    if done.returncode:
        raise _failure(f"{name} {_REFUSALS[purpose]}", output, command, source, cache)
    if makes is not None and not makes.exists():
        raise _failure(f"{name} reports no error, but made no file", output, command, source, cache)
    return output


def _failure(message: str, output: str, command: Sequence[str], source: Path | None, cache: Cache) -> CompilerFailed:
    lines = output.splitlines()
    first = next((number for number, line in enumerate(lines) if "error" in line), 0)
    shown = "\n".join(line[:300] for line in lines[first : first + _SHOWN_LINES])
    kept = _keep(source, output, command, cache) if source is not None else None
    details = [("output", shown)] if shown else []
    hint = (
        "report this with that file; DCIR_CXX selects another compiler" if kept else "set DCIR_CXX to another compiler"
    )
    error = CompilerFailed(message, where=str(kept) if kept else command[0], hint=hint, details=details)
    error.source = str(kept) if kept else None
    return error


def _keep(source: Path, output: str, command: Sequence[str], cache: Cache) -> Path | None:
    """Copy a refused source to the debug folder or the cache, with the command and its output as a comment."""
    setting = os.environ.get("DCIR_DEBUG_DIR", "")
    try:
        folder = Path(setting) if setting else cache.private_folder("failed")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder.resolve() / source.name
        quoted = "\n".join("// " + line for line in [" ".join(command), *output.splitlines()])
        path.write_text(f"{source.read_text(encoding='utf-8')}\n{quoted}\n", encoding="utf-8", errors="replace")
    except OSError:
        return None
    return path
