"""A network whose sizes move as a file: the network at the upper ends as ``Network.save`` writes it, and tables of polynomials."""

from __future__ import annotations

import json
import os
import zipfile
from typing import Any

from dcir.ir.dace.symbols import symbolic_sdfg
from dcir.ir.moving_network import MovingContainer, MovingNetwork, MovingResult
from dcir.ir.network import Network
from dcir.ir.serialize import decode, encode
from dcir.ir.sizes import Bounds


def save(net: MovingNetwork, path: str | os.PathLike[str]) -> None:
    """Write ``net`` as one zip file (``moving.sdfg``, with symbols, opens in DaCe's viewer)."""
    tables = {
        "sizes": {name: list(bounds) for name, bounds in net.sizes.items()},
        "containers": {name: encode(tuple(c)) for name, c in net.containers.items()},
        "operators": {label: encode(op) for label, op in net.operators.items()},
        "results": [encode(tuple(r)) for r in net.results],
        "samples": net.samples,
        "remainders": sorted(net.remainders),
    }
    net.widest.save(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as z:
        z.writestr("moving.sdfg", json.dumps(symbolic_sdfg(net).to_json()))
        z.writestr("moving.json", json.dumps(tables))


def load(path: str | os.PathLike[str]) -> MovingNetwork:
    """Read what ``save`` wrote. Only for files dcir itself wrote: DaCe evaluates expressions of an SDFG file."""
    with zipfile.ZipFile(path) as z:
        tables: dict[str, Any] = json.loads(z.read("moving.json"))
    return MovingNetwork(
        {name: Bounds(*bounds) for name, bounds in tables["sizes"].items()},
        Network.load(path),
        {name: MovingContainer(*decode(c, moving=True)) for name, c in tables["containers"].items()},
        {label: decode(op, moving=True) for label, op in tables["operators"].items()},
        tuple(MovingResult(*decode(r, moving=True)) for r in tables["results"]),
        tuple((tuple((str(n), int(v)) for n, v in values), str(found)) for values, found in tables["samples"]),
        frozenset(map(str, tables["remainders"])),
    )
