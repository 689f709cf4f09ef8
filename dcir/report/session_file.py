"""Files of session records: written as JSON, read as data that nobody believes."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from dcir.errors import SessionInvalid
from dcir.report.session_checks import (
    Check,
    Wrong,
    anything,
    count,
    either,
    flag,
    integer,
    listed,
    mapped,
    number,
    one_of,
    optional,
    record,
    row,
    text,
)  # fmt: skip
from dcir.report.session_record import FORMAT

SUFFIX = ".dcirsession"
MOST_BYTES = 512 << 20

_OPERAND = row(text, integer, count)
_NAMED = record({"label": text, "what": text, "origin": text})
_REMARK = record(
    {
        "kind": text, "pass": text, "index": integer, "site": text, "ops": listed(_NAMED), "made": listed(_NAMED), "reason": text,
        "count": count, "args": mapped(number),
    }
)  # fmt: skip
_LINE = record({"module": text, "file": text, "line": integer, "code": text})
_PLACE = record({"label": text, "operator": text, "module": text})
_OP = record(
    {
        "label": text, "kind": text, "what": text, "group": text, "place": text, "came_from": listed(count),
        "origins": listed(count), "made_by": text, "kernel": optional(text), "ms": optional(number), "least_ms": optional(number),
        "floor_ms": optional(number), "bound": optional(text), "reads": listed(_OPERAND), "writes": listed(_OPERAND), "flops": number,
        "bytes": number, "torch": flag,
        "schedule": optional(text), "bodies": count, "before": listed(text),
    }
)  # fmt: skip
_VALUE = record(
    {
        "name": text, "dtype": text, "shape": listed(count), "strides": listed(integer), "role": text, "bytes": count,
        "place": optional(record({"block": text, "offset": integer})), "alias": optional(text),
        "live": optional(row(integer, integer)), "saved": flag,
    }
)  # fmt: skip
_AFTER = either(one_of("import"), record({"pass": text, "index": count}))
_SNAPSHOT = record(
    {
        "after": _AFTER,
        "order": listed(text),
        "lanes": listed(count),
        "operators": count,
        "bytes": number,
        "peak": number,
    }
)
_DIFFERENCE = record(
    {"removed": listed(text), "added": listed(text), "changed": listed(row(text, text)), "moved": count}
)
_PASS = record(
    {
        "index": count, "name": text, "tier": integer, "changed": integer, "bytes_before": number, "bytes_after": number,
        "operators_before": count, "operators_after": count, "peak_before": number, "peak_after": number, "ms": number,
        "refused": mapped(count), "skipped": listed(text), "snapshot": optional(count), "diff": optional(_DIFFERENCE),
    }
)  # fmt: skip
_KERNEL = record(
    {
        "what": text, "calls": count, "flops": optional(number), "bytes": optional(number), "schedule": optional(text),
        "choice": optional(text), "alternatives": listed(record({"choice": text, "ms": number})), "text": optional(text),
        "ops": listed(text), "came_from": listed(count),
    }
)  # fmt: skip
_MEMORY = record(
    {
        "blocks": mapped(count), "rectangles": listed(row(text, text, integer, count, integer, integer)),
        "peak": optional(record({"at": integer, "bytes": count, "values": listed(text)})),
    }
)  # fmt: skip
_SAVED = record({"value": text, "result": count, "shape": listed(count), "bytes": count, "why": text})
_LAYOUT = record({"dtype": text, "shape": listed(count), "strides": listed(integer)})
_GRAPH = record(
    {
        "id": count, "kind": text, "sizes": listed(row(text, integer)), "bounds": listed(row(text, integer, integer)),
        "together": optional(integer), "remark": text, "figures": mapped(anything), "places": listed(_PLACE),
        "lines": listed(_LINE),
        "layouts": listed(_LAYOUT), "ops": mapped(_OP), "values": mapped(_VALUE), "snapshots": listed(_SNAPSHOT),
        "execution": listed(text), "prepared": listed(text), "stubs": mapped(listed(count)), "lane_count": count,
        "inputs": listed(text), "constants": listed(text), "results": listed(record({"value": text, "shape": listed(count)})),
        "updates": mapped(text), "steps": listed(row(text, optional(text))), "passes": listed(_PASS), "remarks": listed(_REMARK),
        "kernels": mapped(_KERNEL), "driver": optional(text), "memory": _MEMORY, "saved": optional(listed(_SAVED)),
        "partition": optional(mapped(anything)),
    }
)  # fmt: skip
_PROFILE = record(
    {
        "threads": count, "calls": count, "wall_ms": number, "least_wall_ms": number, "around_ms": number, "team_ms": number,
        "kernel_ms": number, "floor_ms": optional(number),
    }
)  # fmt: skip
_NOTE = record({"kind": text, "what": text, "place": text, "cure": text, "count": count})
_VARIANT = record(
    {
        "id": count, "parent": optional(count), "delta": mapped(anything), "predicted": optional(mapped(anything)),
        "measured": optional(mapped(anything)), "script": text, "error": optional(mapped(anything)),
    }
)  # fmt: skip
_PIPELINE = record({"name": text, "tier": integer, "summary": text, "fields": mapped(anything), "final": flag})
_MADE = record({"dcir": text, "torch": text, "processor": text, "isa": text, "threads": count, "when": text})
_INPUT = record({"name": text, "dtype": text, "shape": listed(count)})
_MODEL = record(
    {"name": text, "source": text, "mode": one_of("infer", "train"), "batch": optional(count), "inputs": listed(_INPUT)}
)
_CEILING = record({"name": text, "unit": text, "one": number, "all": number})
_MACHINE = record({"measured": flag, "ceilings": listed(_CEILING), "region_ms": number})
_SESSION: Check = record(
    {
        "format": one_of(FORMAT), "made": _MADE, "model": _MODEL, "options": mapped(anything), "machine": optional(_MACHINE),
        "pipeline": listed(_PIPELINE), "levels": listed(integer), "graphs": listed(_GRAPH), "profile": optional(_PROFILE),
        "roofline": optional(mapped(anything)), "advice": optional(mapped(anything)), "notes": listed(_NOTE),
        "variants": listed(_VARIANT), "texts": mapped(text),
    }
)  # fmt: skip


def write_session(session: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a record."""
    Path(path).write_text(json.dumps(session, separators=(",", ":"), allow_nan=False) + "\n", encoding="utf-8")


def read_session(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what ``write_session`` wrote; nothing of it is run or opened.

    Raises:
        SessionInvalid: the file is something else, cut, or says what cannot be.
    """
    where = os.fspath(path)
    if os.path.getsize(path) > MOST_BYTES:
        raise SessionInvalid(f"the file has more than {MOST_BYTES} bytes", where=where)
    try:
        data = json.loads(Path(path).read_bytes(), parse_constant=_refuse, parse_float=_finite)
        check_session(data)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, Wrong) else "it is no whole JSON"
        raise SessionInvalid(
            f"this is no session of dcir view: {reason}", where=where, hint=f"dcir view MODEL -o session{SUFFIX}"
        ) from error
    session: dict[str, Any] = data
    return session


def is_session(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a session does; it may be cut."""
    with open(path, "rb") as f:
        begin = f.read(64).lstrip()
    return begin.startswith(b'{"format":"dcir-session/')


def check_session(data: Any) -> None:
    """Hold data against the format.

    Raises:
        Wrong: it says where.
    """
    _SESSION(data, "session")
    for n, graph in enumerate(data["graphs"]):
        _check_numbers(graph, f"session.graphs[{n}]", data["texts"])


def _check_numbers(g: dict[str, Any], at: str, texts: dict[str, str]) -> None:
    """That what is named is there."""
    ops, values = g["ops"], g["values"]
    named = [
        ("execution", g["execution"]),
        ("prepared", g["prepared"]),
        ("stubs", g["stubs"]),
        ("steps", [v for v, _ in g["steps"]]),
    ]
    for s in g["snapshots"]:
        named.append(("snapshots", s["order"]))
        if len(s["lanes"]) != len(s["order"]):
            raise Wrong(f"{at}.snapshots: not as many lanes as operators")
    for p in g["passes"]:
        if p["snapshot"] is not None and p["snapshot"] >= len(g["snapshots"]):
            raise Wrong(f"{at}.passes: there is no snapshot {p['snapshot']}")
        if (d := p["diff"]) is not None:
            named.append(("passes", [*d["removed"], *d["added"], *(v for pair in d["changed"] for v in pair)]))
    named += [("kernels", k["ops"]) for k in g["kernels"].values()]
    named += [("ops", op["before"]) for op in ops.values()]
    for what, found in named:
        if not ops.keys() >= set(found):
            raise Wrong(f"{at}.{what} names operators that are not there")
    places = max((n for x in (*ops.values(), *g["kernels"].values()) for n in x["came_from"]), default=-1)
    if places >= len(g["places"]):
        raise Wrong(f"{at}.places: there is no place {places}")
    if max((n for op in ops.values() for n in op["origins"]), default=-1) >= len(g["lines"]):
        raise Wrong(f"{at}.lines: some are missing")
    operands = [o for op in ops.values() for o in (*op["reads"], *op["writes"])]
    if max((o[2] for o in operands), default=-1) >= len(g["layouts"]):
        raise Wrong(f"{at}.layouts: some are missing")
    shown = {
        *g["inputs"],
        *g["constants"],
        *(r["value"] for r in g["results"]),
        *(r[0] for r in g["memory"]["rectangles"]),
    }
    if not values.keys() >= shown:
        raise Wrong(f"{at}.values: some are missing")
    code = {k["text"] for k in g["kernels"].values()} | {g["driver"]}
    if not texts.keys() >= code - {None}:
        raise Wrong(f"{at}.kernels: code is missing")


def _finite(written: str) -> float:
    found = float(written)
    if not math.isfinite(found):
        raise Wrong(f"{written} is no number")
    return found


def _refuse(constant: str) -> Any:
    raise Wrong(f"{constant} is no number")
