"""Sessions that no compiler has made, for tests of the page: an MLP trained, a network of thousands of operators, names that attack."""

from __future__ import annotations

from typing import Any

from dcir.report.session_lanes import lanes

KERNEL = """// {name}: models.py:12
void {name}(float* __restrict__ y, const float* __restrict__ x, const float* w) {{
    for (int i = 0; i < 64; ++i) {{  // rows of the batch
        float sum = 0.0f;
        for (int j = 0; j < 128; ++j) sum += x[i * 128 + j] * w[j];
        y[i] = sum > 0.0f ? sum : 0.0f;
    }}
}}
"""


class Graph:
    """Builds one graph, operator by operator."""

    def __init__(self, number: int, kind: str, together: int | None = None) -> None:
        self.kind = kind
        self.raw: dict[str, Any] = {
            "id": number, "kind": kind, "sizes": [], "bounds": [], "together": together, "remark": "", "figures": {}, "places": [],
            "lines": [], "layouts": [], "ops": {}, "values": {}, "snapshots": [], "execution": [], "prepared": [], "stubs": {},
            "inputs": [], "driver": f"sha-{number}", "remarks": [], "passes": [], "kernels": {}, "saved": None, "steps": [],
            "memory": {"blocks": {}, "rectangles": [], "peak": None},
        }  # fmt: skip
        self.texts = {f"sha-{number}": f"// driver of {kind}\n"}
        self.lines: dict[tuple[str, int], int] = {}
        self.order: list[str] = []

    def value(self, name: str, shape: list[int], role: str = "transient", /, **more: Any) -> str:
        size, strides = 4, []
        for n in reversed(shape):
            strides.insert(0, size // 4)
            size *= n
        self.raw["values"][name] = {
            "name": "", "shape": shape, "strides": strides, "dtype": "f32", "role": role, "bytes": size, "place": None, "alias": None,
            "live": None, "saved": False, **more,
        }  # fmt: skip
        return name

    def op(self, what: str, reads: list[str], writes: list[str], module: str, line: int = 1, **more: Any) -> str:
        number = len(self.raw["ops"])
        values = self.raw["values"]
        moved = sum(values[name]["bytes"] for name in {*reads, *writes})
        place = {"module": module, "file": "models.py", "line": line, "code": "x = self.act(self.fc(x))"}
        found = self.lines.setdefault((module, line), len(self.lines))
        if found == len(self.raw["lines"]):
            self.raw["lines"].append(place)
        self.raw["places"].append({"label": f"node{number}", "operator": "aten.mm", "module": module})
        self.raw["ops"][str(number)] = {
            "label": f"op{number}", "kind": what.split(" ")[0], "what": what, "group": module, "place": f"{module} (models.py:{line})",
            "origins": [found], "came_from": [number], "before": [], "made_by": "", "bodies": 0, "schedule": None,
            "reads": [self._operand(name) for name in reads], "writes": [self._operand(name) for name in writes], "torch": False,
            "flops": moved * 3, "bytes": moved, "kernel": None, "ms": None, "least_ms": None, "floor_ms": None, "bound": None, **more,
        }  # fmt: skip
        self.order.append(str(number))
        return str(number)

    def _operand(self, name: str) -> list[Any]:
        value = self.raw["values"][name]
        layout = {key: value[key] for key in ("dtype", "shape", "strides")}
        layouts = self.raw["layouts"]
        if layout not in layouts:
            layouts.append(layout)
        return [name, 0, layouts.index(layout)]

    def kernel(self, name: str, what: str, calls: int) -> str:
        self.texts[f"sha-{name}"] = KERNEL.format(name=name)
        self.raw["kernels"][name] = {
            "what": what, "calls": calls, "choice": "packed 6 x 16", "schedule": "tile 6 x 16, unroll 4",
            "alternatives": [{"choice": "packed 6 x 16", "ms": 0.41}, {"choice": "in place", "ms": 0.62}],
            "text": f"sha-{name}", "flops": 1, "bytes": 1, "ops": [], "came_from": [],
        }  # fmt: skip
        return name

    def snapshot(self, after: Any = "import", order: list[str] | None = None) -> None:
        order = list(self.order if order is None else order)
        ops = [self.raw["ops"][v] for v in order]
        moved = sum(op["bytes"] for op in ops)
        placed = lanes(*([[o[0] for o in op[key]] for op in ops] for key in ("reads", "writes")))
        self.raw["snapshots"].append(
            {"after": after, "order": order, "lanes": list(placed.of), "operators": len(order), "bytes": moved, "peak": moved // 2}
        )  # fmt: skip
        self.raw["execution"] = order

    def passed(self, name: str, tier: int, changed: int, before: int, after: int, **more: Any) -> None:
        self.raw["passes"].append(
            {
                "index": len(self.raw["passes"]), "name": name, "tier": tier, "changed": changed, "bytes_before": before,
                "bytes_after": after, "operators_before": len(self.raw["snapshots"][0]["order"]), "operators_after": len(self.order),
                "peak_before": before // 2, "peak_after": after // 2, "ms": 2.0, "refused": {}, "skipped": [], "fields": {},
                "snapshot": None, "diff": None, **more,
            }
        )  # fmt: skip


def measure(graph: Graph) -> None:
    """Times by bytes, so that sums and floors are those of a machine with 20 GB/s."""
    for n, version in enumerate(graph.order):
        op = graph.raw["ops"][version]
        op["floor_ms"] = op["bytes"] / 20e6
        op["ms"] = op["floor_ms"] * (1.1 + (n * 7 % 11) / 3)
        op["bound"] = ("DRAM", "L3", "FLOP", "team")[n % 4]


def plan(graph: Graph) -> None:
    """Places in an arena, one behind the other and used again by turns."""
    live: dict[str, list[int]] = {}
    for n, version in enumerate(graph.order):
        op = graph.raw["ops"][version]
        for name, *_ in op["reads"] + op["writes"]:
            live.setdefault(name, [n, n])[1] = n
    arena, tops, peak = 0, list[tuple[int, int, str]](), (0, 0, list[str]())
    for name, (first, last) in live.items():
        value = graph.raw["values"][name]
        value["live"] = [first, last]
        if value["role"] != "transient":
            continue
        tops = [top for top in tops if top[0] >= first]
        offset = max((end for _, end, _ in tops), default=0)
        value["place"] = {"block": "arena", "offset": offset}
        tops.append((last, offset + value["bytes"], name))
        arena = max(arena, offset + value["bytes"])
        graph.raw["memory"]["rectangles"].append([name, "arena", offset, value["bytes"], first, last])
        there = sum(graph.raw["values"][other]["bytes"] for *_, other in tops)
        peak = max(peak, (there, first, [other for *_, other in tops]))
    graph.raw["memory"]["blocks"] = {"arena": arena}
    graph.raw["memory"]["peak"] = {"at": peak[1], "bytes": peak[0], "values": peak[2]}
    ops, raw = graph.raw["ops"], graph.raw
    raw["figures"] = {
        "operators_before": len(raw["snapshots"][0]["order"]), "operators_after": len(graph.order), "kernels": len(raw["kernels"]),
        "calls": len(graph.order), "bytes_before": raw["snapshots"][0]["bytes"], "bytes_after": sum(ops[v]["bytes"] for v in graph.order),
        "flops": sum(ops[v]["flops"] for v in graph.order), "arena_bytes": arena, "saved_bytes": 0, "prepared_bytes": 0,
        "peak_bytes": arena, "floor_ms": sum(ops[v]["floor_ms"] or 0 for v in graph.order), "parts": 1, "seconds": {"passes": 0.1},
    }  # fmt: skip


def session(graphs: list[Graph], name: str = "mlp", **more: Any) -> dict[str, Any]:
    """A record of these graphs."""
    ops = [g.raw["ops"][v] for g in graphs for v in g.order]
    total, floor = sum(op["ms"] for op in ops), sum(op["floor_ms"] for op in ops)
    return {
        "format": "dcir-session/1",
        "made": {
            "dcir": "0.1.0", "torch": "2.13.0", "processor": "AMD EPYC 9B14", "isa": "avx512", "threads": 2, "when": "2026-11-27T20:00:00",
        },
        "machine": {
            "measured": True, "region_ms": 0.002,
            "ceilings": [
                {"name": "L2", "unit": "GB/s", "one": 120.0, "all": 220.0}, {"name": "L3", "unit": "GB/s", "one": 50.0, "all": 90.0},
                {"name": "memory", "unit": "GB/s", "one": 14.0, "all": 20.0}, {"name": "f32", "unit": "GFLOP/s", "one": 90.0, "all": 180.0},
            ],
        },
        "model": {
            "name": name, "source": "models.py:mlp", "mode": "train", "batch": 64,
            "inputs": [{"name": "x", "dtype": "f32", "shape": [64, 128]}],
        },
        "options": {"level": 4, "target": "cpu", "threads": 2, "skip": []},
        "pipeline": [
            {"name": "fold-constants", "tier": 0, "summary": "Computes what is the same in every call.", "fields": {}, "final": False},
            {"name": "fuse-epilogues", "tier": 2, "summary": "Does what follows a product before its result is stored.",
             "fields": {"most_operands": 8, "reductions": True}, "final": False},
        ],
        "levels": [0, 1, 2, 3, 4],
        "profile": {"threads": 2, "calls": 50, "wall_ms": total * 1.25, "least_wall_ms": total * 1.2, "around_ms": total * 0.2,
                    "team_ms": total * 0.05, "kernel_ms": total, "floor_ms": floor},
        "texts": {sha: text for g in graphs for sha, text in g.texts.items()},
        "graphs": [g.raw for g in graphs],
        "advice": None, "roofline": None, "notes": [], "variants": [], **more,
    }  # fmt: skip


def mlp(attack: str = "") -> dict[str, Any]:
    """An MLP with its backward, fused once, with remarks, notes, advice and variants; `attack` is a text to be seen in many places."""
    forward, backward = Graph(0, "forward", together=0), Graph(1, "backward", together=0)
    blocks = [_forward(forward, attack)]
    _backward(backward, blocks[0])
    for graph in (forward, backward):
        measure(graph)
        plan(graph)
    values = forward.raw["values"]
    why = "the backward of relu reads it; it is cheaper to keep than to compute again"
    forward.raw["saved"] = [
        {"value": name, "bytes": values[name]["bytes"], "result": n + 1, "shape": [64, 128], "why": why}
        for n, name in enumerate(blocks[0])
    ]
    forward.raw["figures"]["saved_bytes"] = sum(s["bytes"] for s in forward.raw["saved"])
    delta: dict[str, Any] = {"disable": [], "fields": {}, "skip": [], "level": None, "threads": None, "batch": None}
    figures = {"calls": 13, "operators": 13, "saved": 131_072, "peak": 200_000, "graphs": []}
    call = {"threads": 2, "batch": 16, "level": 4, "streams": 1, "turned": False, "half": False, "whole_step": False}
    piece = {
        "rule": "batch", "what": "Run 16 images at once", "gain": 1.8, "slower": 8.9, "basis": "modelled", "command": "dcir run --batch 16",
        "evidence": "Weights are read once for all images: 41 % of the bytes of a call are weights.", "python": "fast(torch.stack(images))",
        "call": call, "exact": True, "measured": None, "ratio": None, "holds": None,
    }  # fmt: skip
    return session(
        [forward, backward], name=attack or "mlp",
        advice={"now": {"call": call, "items_per_second": 900.0, "ms": 1.1}, "eager": {"call": call, "items_per_second": 400.0, "ms": 2.5},
                "pieces": [piece], "together": None, "advised": {"items_per_second": 1600.0, "gain_over_eager": 4.0}, "applied": False,
                "others": 0.0, "notes": []},
        notes=[
            {"kind": "break", "what": attack or "print() in forward", "place": "models.py:20", "cure": "take the print out", "count": 1},
            {"kind": "fallback", "what": "aten.special_zeta", "place": "models.py:30", "cure": "", "count": 2},
        ],
        variants=[
            {"id": 0, "parent": None, "delta": delta, "script": "dcir.optimize(model)", "measured": None, "error": None,
             "predicted": figures | {"kernels": 9, "bytes": 1_200_000, "scratch": 90_000, "floor_ms": 0.06}},
            {"id": 1, "parent": 0, "delta": delta | {"disable": ["fuse-epilogues"]}, "error": None,
             "script": 'dcir.optimize(model, pipeline=[p for p in dcir.pipeline() if p.name != "fuse-epilogues"])',
             "predicted": figures | {"kernels": 12, "bytes": 1_700_000, "scratch": 130_000, "floor_ms": 0.09},
             "measured": {"ms": 0.41, "least_ms": 0.4, "spread": 0.02, "base_ms": 0.33, "base_least_ms": 0.32, "gain": 0.8, "error": 2.1e-7,
                          "base_error": 2.0e-7, "reference": "float64"}},
        ],
    )  # fmt: skip


def _forward(g: Graph, attack: str) -> list[str]:
    g.value("x", [64, 128], "input", name="x")
    kept = []
    last = "x"
    imported: list[str] = []
    for n in range(4):
        module = f"layers.{n}"
        g.value(f"w{n}", [128, 128], "parameter", name=f"{module}.fc.weight")
        g.value(f"y{n}", [64, 128])
        g.value(f"a{n}", [64, 128], "result", saved=True)
        imported.append(g.op(f"gemm 64 x 128 x 128 {attack}", [last, f"w{n}"], [f"y{n}"], f"{module}.fc", 10 + n))
        imported.append(g.op("relu f32[64, 128]", [f"y{n}"], [f"a{n}"], f"{module}.act", 11))
        last = f"a{n}"
        kept.append(last)
    g.value("out", [64, 128], "result", name="result 0")
    imported.append(g.op("softmax f32[64, 128] dim 1", [last], ["out"], "head", 30, torch=True))
    g.snapshot("import", imported)
    before = sum(g.raw["ops"][v]["bytes"] for v in imported)
    g.passed("fold-constants", 0, 0, before, before)
    g.snapshot({"pass": "fold-constants", "index": 0}, imported)
    g.order = []
    name = g.kernel("k_gemm_relu", "gemm 64 x 128 x 128 + relu", 4)
    last = "x"
    for n in range(4):
        g.op(f"gemm 64 x 128 x 128 + relu {attack}", [last, f"w{n}"], [f"a{n}"], f"layers.{n}.fc", 10 + n, made_by="fuse-epilogues",
             kernel=name, came_from=[2 * n, 2 * n + 1], before=[imported[2 * n], imported[2 * n + 1]], label=f"fused{n}")  # fmt: skip
        last = f"a{n}"
    g.order.append(imported[-1])
    after = sum(g.raw["ops"][v]["bytes"] for v in g.order)
    g.passed("fuse-epilogues", 2, 4, before, after, fields={"most_operands": 8, "reductions": True})
    g.snapshot({"pass": "fuse-epilogues", "index": 1})
    for n in range(4):
        g.raw["remarks"].append(
            {"kind": "passed", "pass": "fuse-epilogues", "index": 1, "site": f"fuse-epilogues(op{2 * n}, op{2 * n + 1})", "reason": "",
             "ops": [{"label": f"op{2 * n}", "what": "gemm", "origin": f"layers.{n}"}],
             "made": [{"label": f"fused{n}", "what": "gemm + relu", "origin": f"layers.{n}"}], "count": 1,
             "args": {"bytes_saved": 65536}}
        )  # fmt: skip
    g.raw["remarks"].append(
        {"kind": "missed", "pass": "fuse-epilogues", "index": 1, "site": "", "reason": attack or "softmax runs in torch",
         "ops": [{"label": "op8", "what": "softmax", "origin": "head"}], "made": [], "count": 1, "args": {"bytes": 65536}}
    )  # fmt: skip
    return kept


def _backward(g: Graph, kept: list[str]) -> None:
    for name in kept:
        g.value(name, [64, 128], "input")
    g.raw["inputs"] = [*kept, "g4"]
    g.value("g4", [64, 128], "input", name="gradient of result 0")
    name = g.kernel("k_gemm_back", "gemm 64 x 128 x 128 transposed", 4)
    for n in reversed(range(4)):
        g.value(f"m{n}", [64, 128])
        g.value(f"w{n}", [128, 128], "parameter", name=f"layers.{n}.fc.weight")
        g.value(f"g{n}", [64, 128], "transient" if n else "result")
        g.op("relu backward f32[64, 128]", [f"g{n + 1}", kept[n]], [f"m{n}"], f"layers.{n}.act", 11)
        g.op("gemm 64 x 128 x 128 transposed", [f"m{n}", f"w{n}"], [f"g{n}"], f"layers.{n}.fc", 10 + n, kernel=name)
    g.raw["prepared"] = [
        g.op("pack f32[128, 128]", ["w0"], [g.value("packed", [128, 128], "constant")], "layers.0.fc", 10)
    ]
    g.snapshot()
    g.passed("fold-constants", 0, 0, 500_000, 500_000)
    g.snapshot({"pass": "fold-constants", "index": 0})


def large(operators: int = 3000) -> dict[str, Any]:
    """A network of equal blocks with residuals, and a backward-like long read in each."""
    g = Graph(0, "inference")
    g.value("x", [64, 128], "input")
    name = g.kernel("k_block", "gemm 64 x 128 x 128", operators)
    last, block = "x", 12
    for n in range(operators):
        if n % block == 0:
            first = last
        g.value(f"y{n}", [64, 128])
        far = f"y{n // 2}" if n % 97 == 96 else None
        reads = [last, first if n % block == block - 1 else None, far]
        g.op(f"gemm 64 x 128 x 128 number {n}", list(dict.fromkeys(filter(None, reads))), [f"y{n}"],
             f"encoder.layers.{n // block}.{('attention', 'mlp')[n // 6 % 2]}", 100 + n % 50, kernel=name)  # fmt: skip
        last = f"y{n}"
    g.snapshot()
    half = g.order
    moved = sum(g.raw["ops"][v]["bytes"] for v in half)
    for k in range(20):
        g.passed(f"pass-{k}", k % 5, k % 3, moved, moved)
        if k % 3 and k < 9:
            g.snapshot({"pass": f"pass-{k}", "index": k})
    measure(g)
    plan(g)
    return session([g], name="large")
