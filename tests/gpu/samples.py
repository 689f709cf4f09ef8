"""Every operator sample on the device, against eager on the CPU by the rule of the operator tests; many to a library."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dcir.codegen.compile import compile_network
from dcir.driver.targets.cuda import CudaTarget
from dcir.driver.targets.host import host_machine
from dcir.frontends.torch.importer import import_graph
from dcir.ops.reach import on_device
from dcir.transforms.runner import run_passes
from tests.gpu.cases import Case, work
from tests.harness import all_samples, check_results, expected, graph_of_calls

_GROUP = 12
Sampled = tuple[Any, Any, int]


def on_gpu(sample: Any, op: Any, device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A sample's arguments on a device."""

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device)
        return torch.device(device) if isinstance(value, torch.device) else value

    args, kwargs = pytree.tree_map(moved, (tuple(sample.args), dict(sample.kwargs)))
    if any(a.name == "device" for a in op._schema.arguments):
        kwargs.setdefault("device", torch.device(device))
    return args, kwargs


def results(group: Sequence[Sampled], level: int = 4) -> list[list[Any]]:
    """Results of some samples, as one program."""
    target = CudaTarget(host_machine(2))
    device = target.device()
    with on_device(device):
        gm, tensors = graph_of_calls([(p.overload, *on_gpu(s, p.overload, device)) for p, s, _ in group])
        done = import_graph(gm)
    done.network.target = target
    run_passes(done.network, target.pipeline(level))
    program = target.load(done, compile_network(done.network), None, prepare="version")
    flat = iter([t.cpu() if isinstance(t, torch.Tensor) else t for t in program(list(tensors))])
    return [[next(flat) for _ in expected(p, s)[0]] for p, s, _ in group]


def check(group: Sequence[Sampled]) -> dict[str, Any]:
    """All samples of a group; where they fail as one program, each in its own."""
    bad = []
    try:
        found = results(group)
    except Exception:
        if len(group) == 1:
            raise
        found = [None] * len(group)  # type: ignore[list-item]
    for one, got in zip(group, found, strict=True):
        page, sample, number = one
        try:
            check_results(page, sample, got if got is not None else results([one])[0])
        except Exception as e:
            bad.append(f"{page.name}-{number}-{sample.name}: {type(e).__name__} {str(e).splitlines()[0][:160]}")
            if "CUDA error" in str(e) or "CUDA_ERROR" in str(e):
                raise RuntimeError(f"CUDA error; {'; '.join(bad)}") from e
    if bad:
        raise AssertionError(f"{len(bad)} of {len(group)}: " + " | ".join(bad))
    return {}


def cases() -> Iterable[Case]:
    """Groups of samples, in the order of the registry."""
    every = all_samples()
    for first in range(0, len(every), _GROUP):
        group = every[first : first + _GROUP]
        yield f"{first:04d} {group[0][0].name} ... {group[-1][0].name}", functools.partial(check, group)


if __name__ == "__main__":
    work(cases)
