"""DaCe's transformations in the pipeline: its map fusion joins what GELU, softmax and layer norm are made of.

    python examples/dace_fusion.py
    python examples/dace_fusion.py --rows 64 --seconds 0.1

Loop nests are opened as maps, DaCe's ``MapExpansion`` and ``MapFusionVertical`` rewrite these, and what they make is read back as loop
nests, which dcir's passes and kernels take on from there. Compared are -O1, which fuses nothing, and -O4, which has a fusion of its own,
each without and with DaCe's before it; calls take turns, times are medians.
"""

from __future__ import annotations

import argparse
import statistics

import torch
import torch.nn.functional as F
from dace.transformation.dataflow import MapExpansion, MapFusionVertical
from levels import interleaved
from torch import Tensor

import dcir
from dcir.transforms.dace_transformation import DaceTransformation
from dcir.transforms.pipelines import pipeline

FUSION = DaceTransformation(MapExpansion, MapFusionVertical)
PIPELINES = {
    "-O1": pipeline(1),
    "DaCe, then -O1": (FUSION, *pipeline(1)),
    "-O4": pipeline(4),
    "DaCe, then -O4": (FUSION, *pipeline(4)),
}


def softmax_of_gelu(x: Tensor) -> Tensor:
    """Over rows."""
    return F.gelu(x).softmax(-1)


def layer_norm(x: Tensor) -> Tensor:
    """Of a sum, with an activation behind it."""
    return F.silu(F.layer_norm(x + 1.0, x.shape[-1:]))


def main() -> None:
    """Print a table for each function."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=768)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring, for each pipeline")
    options = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(options.rows, options.columns)
    for function in (softmax_of_gelu, layer_norm):
        with torch.no_grad():
            fasts = [dcir.optimize(function, pipeline=p, threads=options.threads) for p in PIPELINES.values()]
            exact = function(x.double())
            errors = [float((fast(x) - exact).abs().max() / exact.abs().max()) for fast in fasts]
            times = interleaved([lambda f=f: f(x) for f in fasts], options.seconds)
        print(f"{function.__name__:16} rewrites  kernels  bytes moved    error  median ms")
        for name, fast, error, taken in zip(PIPELINES, fasts, errors, times, strict=True):
            (graph,) = fast.dcir.explain().graphs
            rewrites = sum(p.changed for p in graph.passes if p.name == FUSION.name)
            figures = fast.dcir.explain().to_json()["graphs"][0]
            print(
                f"{name:16} {rewrites:8} {figures['kernels']:8} {figures['bytes_moved']:12} {error:8.1e}"
                f" {statistics.median(taken):10.3f}"
            )


if __name__ == "__main__":
    main()
