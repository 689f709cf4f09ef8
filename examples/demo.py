"""What `make demo` runs: two networks through dcir next to PyTorch, then an ONNX file through the command line.

    python examples/demo.py [--batch 1] [--seconds 3] [--networks resnet50,bert]

The table gives medians of interleaved calls, and the errors of both against PyTorch in float64. The error of inference
is the largest difference over the largest value; that of training is the length of the difference of all gradients over
the length of the gradients, which in a ResNet with random weights magnifies any rounding a great deal.
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from models import Bert, ResNet50, SmallConvNet
from torch import Tensor, nn

import dcir

Step = Callable[[], Tensor]


def main() -> None:
    """The table, then the command line."""
    parser = argparse.ArgumentParser(description="dcir next to PyTorch")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128, help="tokens per sequence")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row")
    parser.add_argument("--networks", default="resnet50,bert", help="of resnet50, bert and small, with commas between")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    torch.manual_seed(0)
    images = torch.randn(chosen.batch, 3, 224, 224)
    tokens = torch.randint(0, 30522, (chosen.batch, chosen.length))
    networks: dict[str, tuple[str, Callable[[], nn.Module], Tensor]] = {
        "resnet50": ("ResNet-50", ResNet50, images),
        "bert": ("BERT-base", Bert, tokens),
        "small": ("small CNN", SmallConvNet, torch.randn(chosen.batch, 3, 32, 32)),
    }
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, batch {chosen.batch}\n")
    print(f"{'network':<10} {'mode':<10} {'eager ms':>9} {'dcir ms':>9} {'ratio':>6}", end=" ")
    print(f"{'eager error':>12} {'dcir error':>11} {'compiled in':>12}")
    for name in chosen.networks.split(","):
        title, make, inputs = networks[name]
        for mode in ("inference", "training"):
            row(title, mode, make(), inputs, chosen.seconds)
    command_line()


def row(title: str, mode: str, model: nn.Module, inputs: Tensor, seconds: float) -> None:
    """Compile a network, compare results, measure, print."""
    prepare = inference if mode == "inference" else training
    theirs, ours = prepare(model, inputs), prepare(dcir.optimize(copy.deepcopy(model)), inputs)
    start = time.perf_counter()
    ours()
    compiled = time.perf_counter() - start
    wide = copy.deepcopy(model).double()
    exact = prepare(wide, inputs.double() if inputs.is_floating_point() else inputs)()
    errors = [distance(step(), exact, mode) for step in (theirs, ours)]
    del wide, exact
    eager, fast = interleaved(theirs, ours, seconds)
    print(
        f"{title:<10} {mode:<10} {eager:>9.2f} {fast:>9.2f} {eager / fast:>5.2f}x"
        f" {errors[0]:>12.1e} {errors[1]:>11.1e} {compiled:>10.1f} s",
        flush=True,
    )


def distance(got: Tensor, exact: Tensor, mode: str) -> float:
    """Relative error: of the whole gradient in training, else of the worst value."""
    difference = got.double() - exact
    if mode == "training":
        return float(difference.norm() / exact.norm())
    return float(difference.abs().max() / exact.abs().max())


def inference(model: nn.Module, inputs: Tensor) -> Step:
    """A forward pass in eval mode; returns the output."""
    model.eval()

    def step() -> Tensor:
        with torch.no_grad():
            return model(inputs)

    return step


def training(model: nn.Module, inputs: Tensor) -> Step:
    """A forward and a backward pass in train mode; returns all gradients in one vector."""
    model.train()
    parameters = list(model.parameters())

    def step() -> Tensor:
        for p in parameters:
            p.grad = None
        model(inputs).square().mean().backward()
        return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])

    return step


def interleaved(first: Step, second: Step, seconds: float) -> tuple[float, float]:
    """Median milliseconds of each, called in turn so that a busy machine slows both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(times[0]) < 5:
        for step, taken in zip((first, second), times, strict=True):
            start = time.perf_counter()
            step()
            taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])


def command_line() -> None:
    """Export a network to ONNX, compile the file, run it, and compare with PyTorch."""
    model = SmallConvNet().eval()
    images = torch.randn(1, 3, 32, 32)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        with torch.no_grad():
            want = model(images).numpy()
        torch.onnx.export(model, (images,), here / "model.onnx", dynamo=True, verbose=False)
        np.save(here / "x.npy", images.numpy())
        call(here, "dcir-compile", "model.onnx", "-O4", "-o", "model.dcir")
        call(here, "dcir", "run", "model.dcir", "--input", "x.npy", "--output", "results")
        (result,) = (here / "results").glob("*.npy")
        error = np.abs(np.load(result) - want).max() / np.abs(want).max()
    print(f"\nmodel.dcir and PyTorch agree to {error:.1e}")
    if error > 1e-4:
        sys.exit("the results differ")


def call(folder: Path, program: str, *arguments: str) -> None:
    """Run one of dcir's programs as a shell would, from the environment of this interpreter."""
    print(f"\n$ {' '.join([program, *arguments])}", flush=True)
    subprocess.run([Path(sys.executable).with_name(program), *arguments], cwd=folder, check=True)


if __name__ == "__main__":
    main()
