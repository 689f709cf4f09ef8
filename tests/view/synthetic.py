"""Sessions that no compiler has made, for tests of the page: an MLP trained, a network of thousands of operators, names that attack."""

from __future__ import annotations

from typing import Any

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
            "id": number, "kind": kind, "sizes": [], "together": together, "ops": {}, "values": {}, "snapshots": [], "remarks": [],
            "passes": [], "kernels": {}, "profile": None, "arena_bytes": 0, "saved_bytes": 0,
        }  # fmt: skip
        self.order: list[str] = []

    def value(self, name: str, shape: list[int], role: str = "transient", /, **more: Any) -> str:
        size, strides = 4, []
        for n in reversed(shape):
            strides.insert(0, size // 4)
            size *= n
        self.raw["values"][name] = {
            "shape": shape, "strides": strides, "dtype": "f32", "role": role, "bytes": size, "arena": None, "live": None, **more,
        }  # fmt: skip
        return name

    def op(self, what: str, reads: list[str], writes: list[str], module: str, line: int = 1, **more: Any) -> str:
        label = f"op{len(self.raw['ops'])}"
        moved = sum(self.raw["values"][name]["bytes"] for name in {*reads, *writes})
        version = more.pop("version", f"v{len(self.raw['ops'])}")
        self.raw["ops"][version] = {
            "label": label, "what": what, "operator": what.split(" ")[0], "group": "pointwise",
            "origins": [{"module": module, "file": "/home/someone/models.py", "line": line, "code": "x = self.act(self.fc(x))"}],
            "came_from": [label], "made_by": "import", "reads": [[name, 0] for name in reads], "writes": [[name, 0] for name in writes],
            "flops": moved * 3, "bytes": moved, "kernel": None, "torch": False, "ms": None, "floor_ms": None, "bound": None, **more,
        }  # fmt: skip
        self.order.append(version)
        return version

    def kernel(self, name: str, what: str, calls: int) -> str:
        self.raw["kernels"][name] = {
            "what": what, "calls": calls, "choice": "packed 6 x 16", "schedule": "tile 6 x 16, unroll 4",
            "alternatives": [{"choice": "packed 6 x 16", "ms": 0.41}, {"choice": "in place", "ms": 0.62}],
            "text": KERNEL.format(name=name),
        }  # fmt: skip
        return name

    def snapshot(self, after: Any = "import", order: list[str] | None = None) -> None:
        self.raw["snapshots"].append({"after": after, "order": list(self.order if order is None else order)})

    def passed(self, name: str, tier: int, changed: int, before: int, after: int, **more: Any) -> None:
        self.raw["passes"].append(
            {
                "name": name, "tier": tier, "changed": changed, "bytes_before": before, "bytes_after": after,
                "operators_before": len(self.raw["snapshots"][0]["order"]), "operators_after": len(self.order),
                "peak_before": before // 2, "peak_after": after // 2, "seconds": 0.002, "refused": {}, "skipped": [],
                "doc": f"What {name} does, in a sentence.", "fields": {}, **more,
            }
        )  # fmt: skip


def measure(graph: Graph) -> None:
    """Times by bytes, so that sums and floors are those of a machine with 20 GB/s."""
    for n, version in enumerate(graph.order):
        op = graph.raw["ops"][version]
        op["floor_ms"] = op["bytes"] / 20e6
        op["ms"] = op["floor_ms"] * (1.1 + (n * 7 % 11) / 3)
        op["bound"] = ("DRAM", "L3", "FLOP", "team")[n % 4]
    total = sum(graph.raw["ops"][v]["ms"] for v in graph.order)
    floor = sum(graph.raw["ops"][v]["floor_ms"] for v in graph.order)
    graph.raw["profile"] = {
        "wall_ms": total * 1.25, "kernel_ms": total, "team_ms": total * 0.05, "around_ms": total * 0.2, "floor_ms": floor, "calls": 50,
        "threads": 2,
    }  # fmt: skip


def plan(graph: Graph) -> None:
    """Places in an arena, one behind the other and used again by turns."""
    live: dict[str, list[int]] = {}
    for n, version in enumerate(graph.order):
        op = graph.raw["ops"][version]
        for name, _ in op["reads"] + op["writes"]:
            live.setdefault(name, [n, n])[1] = n
    tops: list[tuple[int, int]] = []  # (last row, end) of what lies in the arena
    for name, (first, last) in live.items():
        value = graph.raw["values"][name]
        value["live"] = [first, last]
        if value["role"] != "transient":
            continue
        tops = [(row, end) for row, end in tops if row >= first]
        value["arena"] = max((end for _, end in tops), default=0)
        tops.append((last, value["arena"] + value["bytes"]))
        graph.raw["arena_bytes"] = max(graph.raw["arena_bytes"], value["arena"] + value["bytes"])


def session(graphs: list[Graph], name: str = "mlp", **more: Any) -> dict[str, Any]:
    """A record of these graphs."""
    return {
        "format": "dcir-session/1",
        "made": {"dcir": "0.1.0", "torch": "2.13.0", "cpu": "AMD EPYC 9B14", "isa": "avx512", "threads": 2, "when": "2026-11-27 20:00"},
        "machine": {
            "measured": True,
            "ceilings": [
                {"name": "L2", "kind": "memory", "value": 220.0}, {"name": "L3", "kind": "memory", "value": 90.0},
                {"name": "DRAM", "kind": "memory", "value": 20.0}, {"name": "f32", "kind": "compute", "value": 180.0},
            ],
        },
        "model": {"name": name, "inputs": ["f32[64, 128]"]},
        "graphs": [g.raw for g in graphs],
        "advice": [], "roofline": None, "notes": [], "variants": [], **more,
    }  # fmt: skip


def mlp(attack: str = "") -> dict[str, Any]:
    """An MLP with its backward, fused once, with remarks, notes, advice and variants; `attack` is a text to be seen in many places."""
    forward, backward = Graph(0, "forward", together=0), Graph(1, "backward", together=0)
    blocks = [_forward(forward, attack)]
    _backward(backward, blocks[0])
    for graph in (forward, backward):
        measure(graph)
        plan(graph)
    forward.raw["saved_bytes"] = sum(v["bytes"] for v in forward.raw["values"].values() if v["role"] == "saved")
    disable = {"disable": ["fuse-epilogues"], "fields": {}, "skip": [], "level": None, "threads": None, "batch": None}
    return session(
        [forward, backward], name=attack or "mlp",
        advice=[{
            "what": "Run 16 images at once", "gain": 1.8, "predicted": True, "cure": "--batch 16",
            "evidence": "Weights are read once for all images: 41 % of the bytes of a call are weights.",
        }],
        notes=[
            {"kind": "break", "text": attack or "print() in forward", "place": "models.py:20", "cure": "take the print out"},
            {"kind": "recompile", "text": "batch 64 became 32", "place": "train.py:8", "cure": "dynamic=True"},
        ],
        variants=[
            {"id": "0", "parent": None, "delta": {}, "script": "dcir.optimize(model)", "measured": None,
             "predicted": {"kernels": 9, "bytes": 1_200_000, "scratch": 90_000, "floor_ms": 0.06}},
            {"id": "1", "parent": "0", "delta": disable, "script": 'dcir.optimize(model, disable=["fuse-epilogues"])',
             "predicted": {"kernels": 12, "bytes": 1_700_000, "scratch": 130_000, "floor_ms": 0.09},
             "measured": {"ms": 0.41, "base_ms": 0.33, "ratio": 0.8, "error": 2.1e-7, "spread": 0.02}},
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
        g.value(f"a{n}", [64, 128], "saved", why="the backward of relu reads it; it is cheaper to keep than to compute again")
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
             kernel=name, came_from=[f"op{2 * n}", f"op{2 * n + 1}"], label=f"fused{n}")  # fmt: skip
        last = f"a{n}"
    g.order.append(imported[-1])
    after = sum(g.raw["ops"][v]["bytes"] for v in g.order)
    g.passed("fuse-epilogues", 2, 4, before, after, fields={"most_operands": 8, "reductions": True})
    g.snapshot({"pass": "fuse-epilogues", "index": 1})
    for n in range(4):
        g.raw["remarks"].append(
            {"kind": "passed", "pass": "fuse-epilogues", "index": 1, "site": f"fuse-epilogues(op{2 * n}, op{2 * n + 1})", "reason": "",
             "ops": [{"label": f"op{2 * n}", "what": "gemm", "origin": f"layers.{n}"}], "made": [{"label": f"fused{n}"}], "count": 1,
             "args": {"bytes_saved": 65536}}
        )  # fmt: skip
    g.raw["remarks"].append(
        {"kind": "missed", "pass": "fuse-epilogues", "index": 1, "site": "", "reason": attack or "softmax runs in torch",
         "ops": [{"label": "op8", "what": "softmax", "origin": "head"}], "made": [], "count": 1, "args": {"bytes": 65536}}
    )  # fmt: skip
    return kept


def _backward(g: Graph, kept: list[str]) -> None:
    for name in kept:
        g.value(name, [64, 128], "saved")
    g.value("g4", [64, 128], "input", name="gradient of result 0")
    name = g.kernel("k_gemm_back", "gemm 64 x 128 x 128 transposed", 4)
    for n in reversed(range(4)):
        g.value(f"m{n}", [64, 128])
        g.value(f"w{n}", [128, 128], "parameter", name=f"layers.{n}.fc.weight")
        g.value(f"g{n}", [64, 128], "transient" if n else "result")
        g.op("relu backward f32[64, 128]", [f"g{n + 1}", kept[n]], [f"m{n}"], f"layers.{n}.act", 11)
        g.op("gemm 64 x 128 x 128 transposed", [f"m{n}", f"w{n}"], [f"g{n}"], f"layers.{n}.fc", 10 + n, kernel=name)
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
        g.snapshot({"pass": f"pass-{k}", "index": k})
    measure(g)
    plan(g)
    return session([g], name="large")
