"""A block of EfficientNet in many forms, to see whether one is faster than the pipeline of -O4.

    python examples/explore_mbconv.py
    python examples/explore_mbconv.py --channels 192 --size 7
    python examples/explore_mbconv.py --channels 4 --size 8 --batch 2 --seconds 0.1

The block widens (1x1), convolves every channel for itself, squeezes and excites, and narrows (1x1). A form is a pipeline (a pass left
out, moved, with other options or added: library nodes as loops, transformations of DaCe), or the batch taken in pieces by the model. All
forms are held against float64 and take turns; one that passes declare impossible says so. The default stands in the table twice: what the
two differ by is noise. The fastest of so many has been lucky, too, so it is measured once more against the default before it is named.
Times are processor time of one thread, in which other programs do not count.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Iterator

import torch
from dace.transformation.dataflow import MapExpansion, MapFusionVertical
from models import MBConv
from torch import Tensor, nn

import dcir
from dcir.errors import DcirError
from dcir.transforms.base import Pass
from dcir.transforms.dace_transformation import DaceTransformation
from dcir.transforms.pipelines import pipeline
from dcir.transforms.tier1_operator.expand_loops import ExpandLoops
from dcir.transforms.tier1_operator.pack_weights import PackWeights
from dcir.transforms.tier2_fusion.fuse_channel_statistics import FuseChannelStatistics

BASE = pipeline(4)
LEFT_OUT = (
    "fuse-epilogues", "fold-static", "assign-layouts", "pack-weights", "fold-channel-scales", "fuse-channel-statistics",
    "order-execution", "run-per-image",
)  # fmt: skip
Form = tuple[nn.Module, tuple[Pass, ...]]


class Pieces(nn.Module):
    """The same block over so many images at a time."""

    def __init__(self, block: nn.Module, images: int) -> None:
        super().__init__()
        self.block, self.images = block, images

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width]."""
        return torch.cat([self.block(part) for part in x.split(self.images)])


def mbconv(channels: int, kernel: int) -> nn.Module:
    """The block, six times as wide inside."""
    return MBConv(channels, channels, 6, kernel, 1).layers.eval()


def put(added: Pass, before: str) -> tuple[Pass, ...]:
    """The default with one more pass, in front of the first of that name."""
    at = [p.name for p in BASE].index(before)
    return (*BASE[:at], added, *BASE[at:])


def forms(block: nn.Module, batch: int) -> Iterator[tuple[str, Form]]:
    """What is tried, by name."""
    yield "-O4", (block, BASE)
    yield "-O4 again", (block, BASE)
    for name in LEFT_OUT:
        yield f"without {name}", (block, tuple(p for p in BASE if p.name != name))
    scales = next(p for p in BASE if p.name == "fold-channel-scales")
    others = tuple(p for p in BASE if p is not scales)
    at = [p.name for p in others].index("fuse-channel-statistics") + 1
    yield "scales behind statistics", (block, (*others[:at], scales, *others[at:]))
    yield "weights packed at first", (block, (PackWeights(), *BASE))
    small = FuseChannelStatistics(min_bytes=1)
    yield "statistics of any size", (block, tuple(small if p.name == small.name else p for p in BASE))
    loops = ExpandLoops(only="at 1x1 ")
    yield "squeeze as loops, at first", (block, (loops, *BASE))
    yield "squeeze as loops, late", (block, put(loops, "assign-layouts"))
    fusion = DaceTransformation(MapExpansion, MapFusionVertical)
    yield "DaCe's fusion, at first", (block, (fusion, *BASE))
    yield "DaCe's fusion, late", (block, put(fusion, "fuse-producers"))
    yield "both, at first", (block, (loops, fusion, *BASE))
    for images in (1, 2, 4):
        if images < batch:
            yield f"{images} of {batch} images at a time", (Pieces(block, images).eval(), BASE)


def main() -> None:
    """Print a row for each form, and the fastest."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--channels", type=int, default=24)
    parser.add_argument("--size", type=int, default=56, help="height and width")
    parser.add_argument("--kernel", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0, help="of measuring, all forms together")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    block = mbconv(options.channels, options.kernel)
    x = torch.randn(options.batch, options.channels, options.size, options.size)
    fasts, errors = {}, {}
    with torch.no_grad():
        exact = copy.deepcopy(block).double()(x.double())
        for name, (model, passes) in forms(block, options.batch):
            try:
                fast = dcir.optimize(model, pipeline=passes, threads=1)
                errors[name] = float((fast(x) - exact).abs().max() / exact.abs().max())
                fasts[name] = fast
            except DcirError as error:
                print(f"{name}: refused, {str(error).splitlines()[0]}")
        times = measured(fasts, x, options.seconds)
        middle = {name: statistics.median(taken) for name, taken in times.items()}
        best = min((name for name in fasts if not name.startswith("-O4")), key=lambda name: middle[name])
        again = measured({name: fasts[name] for name in ("-O4", best, "-O4 again")}, x, options.seconds / 4)
    print(f"{'form':36} median ms   -O4 / it    error  calls      bytes    scratch")
    for name, fast in fasts.items():
        graph = fast.dcir.explain().to_json()["graphs"][0]
        print(
            f"{name:36} {middle[name]:9.3f} {middle['-O4'] / middle[name]:10.3f} {errors[name]:8.1e}"
            f" {graph['calls']:6} {graph['bytes_moved']:10} {graph['arena_bytes']:10}"
        )
    tell(best, again)


def measured(fasts: dict[str, nn.Module], x: Tensor, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of calls in turn, at least five of each, with a call before each to fill the caches anew."""
    times: dict[str, list[float]] = {name: [] for name in fasts}
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(times["-O4"]) < 5:
        for name, fast in fasts.items():
            fast(x)
            start = time.process_time()
            fast(x)
            times[name].append((time.process_time() - start) * 1e3)
    return times


def tell(best: str, times: dict[str, list[float]]) -> None:
    """Whether the best form gains more than equal code differs by and a twentieth."""
    default, equal, other = (statistics.median(times[name]) for name in ("-O4", "-O4 again", best))
    noise, gain = abs(default / equal - 1), min(default, equal) / other
    print(f"measured again: -O4 {default:.3f} and {equal:.3f} ms, {best} {other:.3f} ms")
    if gain > 1.05 + noise:
        print(f"fastest: {best}, {gain:.2f} times as fast as -O4")
    else:
        print("fastest: -O4, no form gains more than a twentieth")


if __name__ == "__main__":
    main()
