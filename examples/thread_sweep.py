"""Plans of threads next to an exhaustive sweep of pools times threads: `dcir plan` predicts, this says how well it chooses.

    python examples/thread_sweep.py examples/untuned.py:mlp_row --made-for 64 --cores 2 8 16 64 2x64

Kernels of code for ``--made-for`` threads are measured on the teams that this machine has, and every setting is predicted from that.
"""

from __future__ import annotations

import argparse
import json
import math

from dcir.cost.threads.planner import ALL, GUIDELINE, LATENCY, TENSORFLOW, THROUGHPUT, Planner
from dcir.cost.threads.team_rates import TeamRates
from dcir.cost.threads.topology import Cores, parse_cores
from dcir.driver.measure.machine import rates
from dcir.driver.measure.thread_plan import MeasuredGraph, measured_graphs, planned_graph

OTHERS = (GUIDELINE, TENSORFLOW, LATENCY, THROUGHPUT, ALL)


def swept(planner: Planner, widest: int) -> float:
    """The best time of as many pools as the graph is wide at most, with every number of threads that fit."""
    total = planner.threads
    grid = [(count, width) for count in range(1, min(total, widest) + 1) for width in range(1, total // count + 1)]
    return min(planner.pools(count, width).seconds for count, width in grid)


def row(name: str, graphs: list[MeasuredGraph], cores: Cores) -> dict[str, object]:
    """Plan and settings of a model on a machine, as times over the plan's."""
    planned = [planned_graph(graph, TeamRates(cores, rates())) for graph in graphs]
    plan = sum(graph.choice.plan.seconds for graph in planned)
    sweep = sum(swept(graph.planner, graph.width.widest) for graph in planned if graph.planner is not None)
    others = {n: sum(graph.choice.settings[n].seconds for graph in planned) / plan for n in OTHERS}
    return {
        "model": name, "cores": str(cores), "kernels": sum(len(graph.kernels) for graph in planned),
        "width": planned[0].operators.average, "kernel width": planned[0].width.average,
        "parallelism": planned[0].width.parallelism, "plan ms": plan * 1e3, "sweep": sweep / plan, **others,
    }  # fmt: skip


def main() -> None:
    """Print a row for every model and machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--cores", nargs="+", type=parse_cores, default=[Cores(16, 16)])
    parser.add_argument("--made-for", type=int, default=16)
    parser.add_argument("--mode", choices=("infer", "train"), default="infer")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for model in args.models:
        graphs = measured_graphs(model, args.made_for, mode=args.mode, seconds=args.seconds)
        for cores in args.cores:
            rows.append(row(model.rpartition(":")[2], graphs, cores))
            cells = [f"{v:.3f}" if isinstance(v, float) else str(v) for v in rows[-1].values()]
            print(json.dumps(rows[-1]) if args.json else "  ".join(cells), flush=True)
    ratios = {n: [float(str(r[n])) for r in rows] for n in ("sweep", *OTHERS)}
    for name, found in ratios.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(f"{name} over the plan: least {min(found):.3f}, geometric mean {mean:.3f}, most {max(found):.3f}")


if __name__ == "__main__":
    main()
