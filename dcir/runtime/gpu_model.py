"""The program of a .dcir file for GPUs, and whether this machine has one that runs its code."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dcir.cost.cuda import SETTING, TWIN, is_twin
from dcir.errors import ArtefactInvalid
from dcir.runtime.cuda_calls import call_on_device, made_on_device
from dcir.runtime.cuda_device import architecture_of
from dcir.runtime.cuda_program import CudaProgram
from dcir.runtime.described import described
from dcir.runtime.manifest import Manifest, ManifestGpu, torch_call


def check_gpu(m: Manifest, gpu: ManifestGpu) -> None:
    """Look for a GPU that runs the code of a file, before any of it is loaded.

    Raises:
        ArtefactInvalid: there is none, or the file is for another kind of processor beside it.
    """
    if m.machine.architecture != platform.machine():
        raise ArtefactInvalid(
            f"the file was compiled for a machine of {m.machine.architecture}, this is one of {platform.machine()}",
            hint="compile again on this machine",
        )
    if not gpu.architectures:
        if not is_twin():
            raise ArtefactInvalid(
                "the file's GPU kernels are made for a CPU, to be tested there", where=f"{SETTING}={TWIN} when it was compiled",
                hint=f"{SETTING}={TWIN}, or compile it again without",
            )  # fmt: skip
        return
    if not torch.cuda.is_available():
        raise ArtefactInvalid(
            f"the file was compiled for GPUs ({', '.join(gpu.architectures)}), and PyTorch finds none here",
            hint="a machine with one and a CUDA build of PyTorch, or compile it again with target 'cpp'",
        )
    architecture_of(torch.cuda.current_device(), gpu.architectures)


def gpu_program_of(m: Manifest, library: Path, tensors: Sequence[Tensor]) -> CudaProgram:
    """The program that a manifest describes.

    Args:
        m: the manifest, whose ``gpu`` is there.
        library: its code.
        tensors: one per constant, on the device.
    """
    assert m.gpu is not None
    info, weights = described(m, tensors)
    made = dict(m.gpu.made)
    calls = {}
    for e in m.calls_into_torch:
        spec = torch_call(e, on_gpu=True)
        calls[e.number] = (
            made_on_device(spec, e.ins, made[e.number]) if e.number in made else call_on_device(spec, e.ins, e.outs)
        )
    program = CudaProgram(library, replace(info, callbacks=calls), weights, made.values(), twin=not m.gpu.architectures)
    program.name = "dcir: a compiled file, inference"
    return program
