"""One graph of a session record: versions of operators, values, snapshots, passes, remarks, kernels, memory, as plain data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dcir.cost.machine import MachineRates
from dcir.ir.history import IMPORT, Version
from dcir.ir.network import Network
from dcir.ir.origins import Origins, SourceLine, source_lines
from dcir.report.kept_graph import KeptGraph
from dcir.report.session_lanes import lanes
from dcir.report.session_memory import live_ranges, memory

MEASURED = ("ms", "least_ms", "floor_ms", "bound")
_READERS = 3


class GraphRows:
    """What is said of one graph.

    Args:
        number: of the graph in the session.
        kept: the graph.
        machine: whose floors are told.
        texts: receives the code, by digest.
    """

    def __init__(self, number: int, kept: KeptGraph, machine: MachineRates, texts: dict[str, str]) -> None:
        assert kept.network is not None
        self.number, self.kept, self.machine, self.texts = number, kept, machine, texts
        self.net: Network = kept.network
        self.record, self.library, self.history = kept.record, kept.library, kept.history
        self.origins: Origins = self.net.origins
        last = self.history.snapshots[-1].order
        self.versions = dict(zip((op.label for op in self.net.ops()), last, strict=True))
        self.steps = self._steps()
        kernels = {v: kernel for v, kernel in self.steps if kernel is not None}
        self.kernel_of: Mapping[int, str] = kernels
        self.lines: dict[SourceLine, int] = {}

    def to_json(self, times: Mapping[int, Mapping[str, Any]], backward: KeptGraph | None = None) -> dict[str, Any]:
        """The graph.

        Args:
            times: of versions, what was measured of them: milliseconds and what bounds them.
            backward: of a forward; what it reads of what is kept for it is told, too.
        """
        net, record, history = self.net, self.record, self.history
        at = net.positions()
        order = [self.versions[op.label] for op in sorted(at, key=at.__getitem__)]
        drawn = [self._lanes(snapshot.order) for snapshot in history.snapshots]
        prepared = {op.label for op in net.prepared_ops()}
        ops = {str(n): self._op(v) | self._run(n, times) for n, v in enumerate(history.versions)}
        return {
            "id": self.number,
            "kind": record.kind,
            "sizes": [list(row) for row in record.sizes],
            "bounds": [list(row) for row in record.bounds],
            "together": record.together,
            "remark": record.remark,
            "figures": self._figures(),
            "places": [{"label": p.label, "operator": p.operator, "module": p.module} for p in self.origins.places],
            "lines": [asdict(x) | {"file": os.path.basename(x.file)} for x in self.lines],
            "layouts": [{"dtype": x.dtype, "shape": list(x.shape), "strides": list(x.strides)} for x in history.layouts],
            "ops": ops,
            "values": self._values(),
            "snapshots": [
                {
                    "after": "import" if s.after == IMPORT else {"pass": record.passes[s.after].name, "index": s.after},
                    "order": list(map(str, s.order)), "lanes": list(of.of), "operators": len(s.order), "bytes": s.bytes,
                    "peak": s.peak,
                }
                for s, of in zip(history.snapshots, drawn, strict=True)
            ],
            "execution": list(map(str, order)),
            "prepared": [str(v) for label, v in self.versions.items() if label in prepared],
            "stubs": {
                str(v): list(stubs) for v, stubs in zip(history.snapshots[-1].order, drawn[-1].stubs, strict=True) if stubs
            },
            "lane_count": max((d.count for d in drawn), default=0),
            "inputs": list(net.inputs),
            "constants": list(net.constants),
            "results": [
                {"value": r.data, "shape": list(r.shape), "strides": list(r.strides), "offset": r.offset, "dtype": r.dtype}
                for r in net.results
            ],
            "updates": dict(net.updates),
            "steps": [[str(v), kernel] for v, kernel in self.steps],
            "passes": self._passes(),
            "remarks": [remark.to_json() for p in record.passes for remark in p.remarks],
            "kernels": self._kernels(),
            "driver": self._text("driver"),
            "memory": memory(net),
            "saved": self._saved(backward),
            "partition": _partition(record.partition),
        }  # fmt: skip

    # ------------------------------------------------------------------ figures
    def _figures(self) -> dict[str, Any]:
        r = self.record
        floor = None
        if self.machine.measured:
            floor = sum(self.machine.floor_seconds(flops, moved, threads=r.threads) for flops, moved in r.work) * 1e3
        return {
            "operators_before": r.operators, "operators_after": len(self.net.ops()), "kernels": r.kernels, "calls": r.calls,
            "bytes_before": r.bytes_before, "bytes_after": r.bytes_moved, "flops": sum(f for f, _ in r.work),
            "arena_bytes": r.arena_bytes, "saved_bytes": r.saved_bytes, "prepared_bytes": r.prepared_bytes,
            "peak_bytes": r.saved_bytes + r.arena_bytes + r.library_bytes, "floor_ms": floor, "parts": r.parts, "threads": r.threads,
            "generated": r.generated, "seconds": dict(r.seconds), "key": r.key,
        }  # fmt: skip

    # ------------------------------------------------------------------ operators and values
    def _steps(self) -> list[tuple[int, str | None]]:
        ops = self.net.ops()
        steps = () if self.library is None else self.library.steps
        return [(self.versions[ops[number].label], kernel) for kernel, number in steps]

    def _op(self, v: Version) -> dict[str, Any]:
        places = self.origins.of(v.came_from)
        return {
            "label": v.label, "kind": v.spec.kind, "what": v.spec.describe(),
            "group": next((p.module for p in places if p.module), ""), "place": _short(v.origin),
            "came_from": list(v.came_from), "made_by": v.made_by,
            "origins": [self.lines.setdefault(x, len(self.lines)) for x in source_lines(places)],
            "reads": [list(a) for a in v.reads], "writes": [list(a) for a in v.writes],
            "flops": v.spec.operations(), "bytes": v.moved, "torch": bool(v.spec.calls_out),
            "schedule": None if v.schedule is None else str(v.schedule), "bodies": len(v.spec.bodies()),
            "before": list(map(str, v.before)),
        }  # fmt: skip

    def _run(self, number: int, times: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """How a version runs, if it does."""
        measured = times.get(number, {})
        return {"kernel": self.kernel_of.get(number), **{name: measured.get(name) for name in MEASURED}}

    def _lanes(self, order: Sequence[int]) -> Any:
        rows = [self.history.versions[v] for v in order]
        return lanes([[a.data for a in v.reads] for v in rows], [[a.data for a in v.writes] for v in rows])

    def _values(self) -> dict[str, Any]:
        net, ranges = self.net, live_ranges(self.net)
        saved = {net.results[n].data for _, n in self._kept_results()}
        found = {}
        for name, c in net.containers.items():
            place, alias = net.memory.placement(name), net.memory.aliases.get(name)
            found[name] = {
                "name": net.names.get(name, ""), "dtype": c.dtype, "shape": list(c.shape), "strides": list(c.strides),
                "role": "parameter" if name in net.static else c.role, "bytes": c.nbytes,
                "place": None if place is None else {"block": place.block, "offset": place.offset},
                "alias": None if alias is None else alias.target,
                "live": list(ranges[name]) if name in ranges else None, "saved": name in saved,
            }  # fmt: skip
        return found

    # ------------------------------------------------------------------ passes and kernels
    def _passes(self) -> list[dict[str, Any]]:
        numbers = {s.after: n for n, s in enumerate(self.history.snapshots) if s.after != IMPORT}
        rows = []
        for index, p in enumerate(self.record.passes):
            at, diff = numbers.get(index), None
            if at is not None:
                d = self.history.difference(at)
                diff = {
                    "removed": list(map(str, d.removed)), "added": list(map(str, d.added)),
                    "changed": [[str(a), str(b)] for a, b in d.changed], "moved": d.moved,
                }  # fmt: skip
            rows.append(
                {
                    "index": index, "name": p.name, "tier": p.tier, "changed": p.changed, "bytes_before": p.bytes_before,
                    "bytes_after": p.bytes_after, "operators_before": p.operators_before,
                    "operators_after": p.operators_after, "peak_before": p.peak_before, "peak_after": p.peak_after,
                    "ms": p.seconds * 1e3, "refused": dict(p.refused), "skipped": list(p.skipped), "snapshot": at, "diff": diff,
                }
            )  # fmt: skip
        return rows

    def _kernels(self) -> dict[str, Any]:
        if self.library is None:
            return {}
        runs: dict[str, list[int]] = {}
        for v, kernel in self.steps:
            if kernel is not None:
                runs.setdefault(kernel, []).append(v)
        measured = self.library.measured
        found = {}
        for name, (what, schedule) in self.library.schedules.items():
            of = runs.get(name, [])
            first = self.history.versions[of[0]] if of else None
            found[name] = {
                "what": what, "calls": len(of), "flops": first.spec.operations() if first else None,
                "bytes": first.moved if first else None, "schedule": None if schedule is None else str(schedule),
                "choice": self.library.choice_of(name),
                "alternatives": [{"choice": str(c), "ms": s * 1e3} for c, s in measured.get(name, ())],
                "text": self._text(name),
                "ops": list(map(str, dict.fromkeys(of))), "came_from": list(self.library.came_from.get(name, ())),
            }  # fmt: skip
        return found

    def _text(self, name: str) -> str | None:
        """Digest of a piece of code, which the session holds once."""
        text = self.kept.texts.get(name)
        if text is None:
            return None
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.texts[digest] = text
        return digest

    # ------------------------------------------------------------------ what a forward keeps
    def _kept_results(self) -> list[tuple[int, int]]:
        """(Number of the output, number of the result) of what a forward keeps for its backward."""
        if self.kept.first_saved is None:
            return []
        outputs = enumerate(self.kept.outputs[self.kept.first_saved :], self.kept.first_saved)
        return [(number, value) for number, (kind, value) in outputs if kind == "result"]

    def _saved(self, backward: KeptGraph | None) -> list[dict[str, Any]] | None:
        if self.kept.first_saved is None:
            return None
        first = self.kept.outputs[: self.kept.first_saved]
        callers = {self.net.results[value].data for kind, value in first if kind == "result"}
        seen, rows = set[str](), []
        for number, value in self._kept_results():
            result = self.net.results[value]
            c = self.net.containers[result.data]
            free = ""
            if c.role in ("input", "constant") or result.data in callers:
                free = "it is the caller's, and costs nothing; "
            elif result.data in seen:
                free = "it lies in memory that is kept anyway; "
            seen.add(result.data)
            rows.append(
                {
                    "value": result.data, "result": number, "shape": list(result.shape), "bytes": 0 if free else c.nbytes,
                    "why": free + _readers(backward, number),
                }
            )  # fmt: skip
        return rows


def _readers(backward: KeptGraph | None, number: int) -> str:
    """What of a backward reads an output of its forward."""
    net = None if backward is None else backward.network
    if backward is None or net is None or not 0 <= number - backward.first_read < len(net.inputs):
        return ""
    name = net.inputs[number - backward.first_read]
    found = [op.spec.describe() for op in net.readers(name)]
    more = f" and {len(found) - _READERS} more" if len(found) > _READERS else ""
    return f"read by {', '.join(found[:_READERS])}{more}" if found else "nothing reads it any more"


def _short(origin: str) -> str:
    """A place without the folders of its file."""
    module, bracket, at = origin.rpartition("(")
    return f"{module}({os.path.basename(at)}" if bracket and ", " not in at else origin


def _partition(partition: Any) -> dict[str, Any] | None:
    if partition is None:
        return None
    return {
        "chosen": {kind: [number, size] for kind, (number, size) in partition.chosen.items()}, "proven": partition.proven,
        "ms": partition.seconds * 1e3, "peak_without_limit": partition.unlimited.peak,
    }  # fmt: skip
