"""Bytes that networks move on the target for GPUs, predicted: a table of what their graphs are after the pipeline; needs no GPU.

    python -m tests.gpu.bytes --models models.py [--only resnet50,bert] [--types float32,bfloat16] [--modes train,infer] [--largest 8]

``models.py`` has a ``REGISTRY`` of networks by name: (constructor, inputs of a batch, targets of a batch, loss, ...). Without one the
networks of the tests are taken. Nothing is run, and tensors have no memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import TorchRuntimeError
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from dcir.cost.cuda import SETTING, TWIN
from dcir.driver.measure.predicted_bytes import KINDS, Traffic, predicted_bytes
from dcir.options import Options

# Batches that fill a GPU; of others 8.
BATCHES = {
    "resnet50": 256, "wide_resnet50_2": 128, "mobilenet_v2": 256, "efficientnet_b0": 256, "yolov4": 32, "fcn8s": 16, "wavenet": 16,
    "bert": 64, "mlp_mixer": 128, "vit_b16": 128, "llama_prefill": 64, "dlrm": 32768, "llama_decode": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A network to be predicted.

    Attributes:
        name: for the table.
        make: gives module, inputs and targets of a batch; called where tensors are fake.
        loss: of results and targets; None of what is not trained.
    """

    name: str
    make: Callable[[], tuple[nn.Module, tuple[Any, ...], Any]]
    loss: Callable[[Any, Any], torch.Tensor] | None


class WithLoss(nn.Module):
    """A network and its loss, as one module."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, inputs: tuple[Any, ...], target: Any) -> torch.Tensor:
        return self.loss(self.model(*inputs), target)


def registered(path: Path) -> Iterator[Subject]:
    """The networks of a file."""
    spec = importlib.util.spec_from_file_location("predicted_models", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    for name, (constructor, inputs, target, loss, *_) in module.REGISTRY.items():

        def make(constructor: Any = constructor, inputs: Any = inputs, target: Any = target, name: str = name) -> Any:
            generator, batch = torch.Generator(), BATCHES.get(name, 8)
            return constructor(), inputs(batch, generator), None if target is None else target(batch, generator)

        yield Subject(name, make, loss)


def of_tests() -> Iterator[Subject]:
    """Networks of the tests."""
    from tests.endtoend.reduced_networks import REDUCED
    from tests.gpu.networks import _loss

    for name, network in REDUCED.items():

        def make(network: Any = network) -> Any:
            model, inputs = network()
            return model, tuple(inputs.values()), torch.zeros(())

        yield Subject(name, make, lambda result, _: _loss(result))


def predicted(subject: Subject, dtype: torch.dtype, *, train: bool) -> Traffic:
    """What a step, or a call in inference, moves on the target for GPUs."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, inputs, target = _made(subject, dtype)
        model = model.train(train)
        inputs, target = pytree.tree_map(
            lambda t: t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t, (inputs, target)
        )
        options = Options.make(level=4, target="cuda")
        if not train:
            with torch.no_grad():
                return predicted_bytes(model, inputs, options)
        assert subject.loss is not None
        return predicted_bytes(WithLoss(model, subject.loss), (inputs, target), options)


def _made(subject: Subject, dtype: torch.dtype) -> Any:
    """Parameters are made in their type: fake ones cannot be given another."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return subject.make()
    finally:
        torch.set_default_dtype(before)


def row(name: str, mode: str, dtype: str, found: Traffic) -> str:
    """A row of the table: GB, and times the activations."""
    each = [n / max(found.activations, 1) for n in found.by_kind.values()]
    figures = " | ".join(f"{v:.1f}" if v >= 0.05 else "" for v in each)
    return (
        f"| {name} | {mode} | {dtype} | {found.activations / 1e9:.2f} | {found.floor / 1e9:.2f} | {found.moved / 1e9:.2f} "
        f"| {found.floor / max(found.activations, 1):.1f} | **{found.sweeps:.1f}** | {figures} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="bytes that networks move on the target for GPUs, predicted")
    parser.add_argument("--models", type=Path, help="a file with a REGISTRY of networks")
    parser.add_argument("--only", default="", help="names, with commas between")
    parser.add_argument("--types", default="float32,bfloat16")
    parser.add_argument("--modes", default="train,infer")
    parser.add_argument("--largest", type=int, default=0, help="how many operators to tell of, beside products")
    parser.add_argument("--json", type=Path, help="a row a line, as they come")
    given = parser.parse_args()
    os.environ[SETTING] = TWIN
    heads = [
        "network",
        "mode",
        "type",
        "activations, GB",
        "floor, GB",
        "moved, GB",
        "floor / act.",
        "moved / act.",
        *KINDS,
    ]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    wanted = [w for w in given.only.split(",") if w]
    for subject in of_tests() if given.models is None else registered(given.models):
        if wanted and subject.name not in wanted:
            continue
        for mode in given.modes.split(","):
            for dtype in given.types.split(","):
                if mode == "train" and (subject.loss is None or subject.name.endswith("_decode")):
                    continue
                start = time.monotonic()
                try:
                    found = predicted(subject, getattr(torch, dtype), train=mode == "train")
                except TorchRuntimeError:  # networks that compute a part in another type than their parameters'
                    print(f"| {subject.name} | {mode} | {dtype} | does not run in this type |", flush=True)
                    continue
                print(row(subject.name, mode, dtype, found), flush=True)
                for what, times, nbytes in found.largest(given.largest):
                    print(f"    {nbytes / max(found.activations, 1):6.2f}  {times:4}x  {what}"[:230], flush=True)
                if given.json is not None:
                    figures = {
                        "activations": found.activations,
                        "floor": found.floor,
                        "moved": found.moved,
                        **found.by_kind,
                    }
                    with given.json.open("a") as f:
                        f.write(json.dumps({"network": subject.name, "mode": mode, "type": dtype, **figures}) + "\n")
                print(f"<!-- {time.monotonic() - start:.0f} s -->", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
