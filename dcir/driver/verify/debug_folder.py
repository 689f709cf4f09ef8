"""``debug_dir``: a folder that keeps, for every graph that is compiled, the graph and the network of every step, and the code.

    <debug_dir>/000-inference/00-graph.txt          the ATen graph, as captured
                              01-import.txt, .sdfg  the network as imported, and after every pass that changed it;
                              02-fold_static.txt …  DaCe's viewer opens the .sdfg files
                              code/k….cpp           a kernel each, driver.cpp calls them
                              record.json           what `explain` knows of the graph

Folders are numbered on from what is there: nothing is overwritten.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from torch import fx

from dcir.errors import OptionError
from dcir.ir.network import Network
from dcir.ir.text import network_text

_MOST = 100_000


class GraphFolder:
    """What is kept of one graph."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._steps = 0

    def graph(self, gm: fx.GraphModule) -> None:
        """Keep the graph as captured."""
        self._write(f"{self._number()}-graph.txt", gm.print_readable(print_output=False))

    def step(self, name: str, net: Network) -> None:
        """Keep the network after a step."""
        number, name = self._number(), re.sub(r"[^\w.-]", "_", name)  # a user's pass may be called anything
        self._write(f"{number}-{name}.txt", network_text(net))
        self._write(f"{number}-{name}.sdfg", json.dumps(net.sdfg.to_json()))

    def code(self, name: str, text: str) -> None:
        """Keep a piece of generated code."""
        (self.folder / "code").mkdir(exist_ok=True)
        self._write(f"code/{name}.cpp", text)

    def record(self, record: Any) -> None:
        """Keep the record of what was done (``driver.record.GraphRecord``)."""
        self._write("record.json", json.dumps(record.to_json(), indent=1, default=str))

    def _number(self) -> str:
        self._steps += 1
        return f"{self._steps - 1:02}"

    def _write(self, name: str, text: str) -> None:
        try:
            (self.folder / name).write_text(text)
        except OSError as e:
            raise _refused(self.folder, e) from e


def graph_folder(base: str, kind: str) -> GraphFolder:
    """A new folder for a graph of a kind.

    Raises:
        OptionError: it cannot be made.
    """
    folder = Path(base)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        first = sum(1 for _ in folder.iterdir())
        for number in range(first, _MOST):
            try:
                (folder / f"{number:03}-{kind}").mkdir()
            except FileExistsError:  # by another process
                continue
            return GraphFolder(folder / f"{number:03}-{kind}")
    except OSError as e:
        raise _refused(folder, e) from e
    raise _refused(folder, FileExistsError(f"{_MOST} graphs"))


def _refused(folder: Path, error: OSError) -> OptionError:
    return OptionError(
        "option debug_dir names no folder that can be written", where=f"debug_dir={str(folder)!r}",
        hint="a path of a folder that is yours", details=[("system", str(error))],
    )  # fmt: skip
