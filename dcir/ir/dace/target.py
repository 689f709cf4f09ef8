"""A network through stock DaCe: library nodes expanded to maps, compiled by DaCe's own build, called through ctypes."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dace
import numpy as np

from dcir.ir.dace.calls import Caller, keep_order
from dcir.ir.moving_network import MovingNetwork, constant
from dcir.ir.network import Network
from dcir.ir.types import to_numpy

Array = np.ndarray[Any, np.dtype[Any]]
_NUMBERS = itertools.count()
# DaCe's own flags allow reciprocals and drop the sign of zero, which a reference must not.
_FLAGS = "-march=native -fno-math-errno -fno-trapping-math -ffp-contract=off -Wno-unused-parameter -Wno-unused-label"


class DaceNetwork:
    """A network compiled by stock DaCe.

    Attributes:
        arguments: containers whose buffers a call takes, in order: the inputs, then the constants.
    """

    def __init__(self, net: Network, path: str, name: str, order: Sequence[str]) -> None:
        self.arguments = [n for n in (*net.inputs, *net.constants) if n]
        self._containers = {n: c for n, c in net.containers.items() if c.role != "transient"}
        self._updates = dict(net.updates)
        self._order = list(order)
        self._library = ctypes.CDLL(path)
        self._run = getattr(self._library, f"__program_{name}")
        start = getattr(self._library, f"__dace_init_{name}")
        start.restype = ctypes.c_void_p
        self._state = start()
        stop = getattr(self._library, f"__dace_exit_{name}")
        stop.argtypes = [ctypes.c_void_p]
        weakref.finalize(self, stop, self._state)
        self._caller = Caller(self._library)

    def __call__(self, buffers: Sequence[Array]) -> dict[str, Array]:
        """Run it.

        Args:
            buffers: for every container of ``arguments`` its elements from the first to the last, 1-D, as stored.

        Returns:
            The elements of every input, constant and result container, 1-D, by name. Updates are not in place: the inputs stay.

        Raises:
            Exception: what an operator that runs through torch raises.
        """
        store = {n: np.ascontiguousarray(b) for n, b in zip(self.arguments, buffers, strict=True)}
        for name, c in self._containers.items():
            if name in self._updates:
                store[name] = store[self._updates[name]].copy()
            elif name not in store:
                store[name] = np.zeros(max(c.size, 1), to_numpy(c.dtype))
        pointers = [ctypes.c_void_p(store[n].ctypes.data) for n in self._order]
        self._run(ctypes.c_void_p(self._state), *pointers)
        self._caller.raise_error()
        return {n: store[n][: self._containers[n].size] for n in store}


def compile_network(net: Network | MovingNetwork, keep: Callable[[str, str], None] | None = None) -> DaceNetwork:
    """Expand and compile a copy of ``net`` in a temporary folder, which is gone when this returns.

    ``keep`` hears the name and the text of every source that DaCe writes.

    Raises:
        Unsupported: a network whose sizes move.
    """
    net = constant(net, "code of stock DaCe")
    copied = net.clone()
    sdfg = copied.sdfg
    name = f"dcir_{net.sdfg.name}_{next(_NUMBERS)}"
    sdfg.name = name
    keep_order(copied.state, [op for op in copied.ops() if op.spec.calls_out])
    folder = tempfile.mkdtemp(prefix="dcir-dace-")
    try:
        # DaCe's configuration belongs to the thread; the values are set back for whoever else uses DaCe here.
        with (
            dace.config.set_temporary("progress", value=False),
            dace.config.set_temporary("default_build_folder", value=folder),
            dace.config.set_temporary("compiler", "use_cache", value=False),
            # Looking for the line that made a node takes longer than making it, and the line is always one of ours.
            dace.config.set_temporary("compiler", "lineinfo", value="none"),
            dace.config.set_temporary("compiler", "cpu", "args", value=_FLAGS),
        ):
            with warnings.catch_warnings():  # DaCe's expansion hands itself sets of connectors and warns of them
                warnings.simplefilter("ignore")
                sdfg.expand_library_nodes()
            sdfg.build_folder = f"{folder}/{name}"
            order = list(sdfg.arglist())
            sdfg.compile(output_file=f"{folder}/lib{name}.so", return_program_handle=False)
            if keep is not None:
                for source in sorted(Path(sdfg.build_folder).glob("src/**/*.cpp")):
                    keep(source.stem, source.read_text())
            return DaceNetwork(net, f"{folder}/lib{name}.so", name, order)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
