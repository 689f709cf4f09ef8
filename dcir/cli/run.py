"""`dcir run`: a model on arrays from .npy files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dcir.cli import common
from dcir.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np


@click.command("run", cls=common.Verb)
@common.model
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE.npy", help="An input, by name or in order.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for the results as .npy files."
)
def command(model: Path, inputs: tuple[str, ...], output: Path | None) -> None:
    """Run MODEL (.onnx or .dcir) once and show or save its results."""
    from dcir.driver import api

    results = api.run_file(model, _read_inputs(inputs))
    files = _save(results, output) if output is not None else {}
    rows = [("output", "type", "shape", "file")]
    rows += [
        (name, str(array.dtype), "x".join(map(str, array.shape)) or "scalar", files.get(name, "-"))
        for name, array in results.items()
    ]
    data = [
        {"name": name, "dtype": str(array.dtype), "shape": list(array.shape), "file": files.get(name)}
        for name, array in results.items()
    ]
    common.emit(common.table(rows), {"outputs": data})


def _read_inputs(texts: tuple[str, ...]) -> dict[str, np.ndarray[Any, Any]] | list[np.ndarray[Any, Any]]:
    pairs = [_split(text) for text in texts]
    names = [name for name, _ in pairs if name is not None]
    twice = next((n for k, n in enumerate(names) if n in names[:k]), None)
    if twice is not None:
        raise InvalidInput(
            f"input {twice} is given twice", where=" ".join(texts), hint="--input NAME=FILE once for each"
        )
    named = {name: _load(path) for name, path in pairs if name is not None}
    if named and len(named) != len(pairs):
        raise InvalidInput(
            "inputs are given by name or in order, not both", where=" ".join(texts), hint="--input NAME=FILE for each"
        )
    return named or [_load(path) for _, path in pairs]


def _split(text: str) -> tuple[str | None, Path]:
    """Name and path; a file whose path contains = can be given in order all the same."""
    name, equals, path = text.partition("=")
    return (None, Path(text)) if not equals or Path(text).exists() else (name, Path(path))


def _load(path: Path) -> np.ndarray[Any, Any]:
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InvalidInput("not an array file", where=str(path), hint="numpy.save(path, array)") from error
    if not isinstance(array, np.ndarray):
        raise InvalidInput("a file of several arrays", where=str(path), hint="one .npy file per input")
    return array


def _save(results: dict[str, np.ndarray[Any, Any]], folder: Path) -> dict[str, str]:
    """Write each result to a file of its own; names from the model cannot lead out of the folder or collide."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {}
    for number, (name, array) in enumerate(results.items()):
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:100] or "output"
        path = folder / f"{stem}.npy"
        if stem != name or str(path) in files.values():
            path = folder / f"{stem}_{number}.npy"
        np.save(path, array, allow_pickle=False)
        files[name] = str(path)
    return files
