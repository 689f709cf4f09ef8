"""The target "cuda": CUDA C++ through NVRTC for the GPU at hand, products and convolutions through PyTorch's libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from dcir.codegen.backend import Backend
from dcir.codegen.compile import Library
from dcir.codegen.cuda.backend import CudaBackend
from dcir.cost.costs import Costs
from dcir.cost.cuda import SETTING, TWIN, CudaMachine, cuda_costs, cuda_machine, is_twin
from dcir.cost.device_rates import DeviceRates
from dcir.driver.assemble import program_info
from dcir.driver.library_memory import library_bytes
from dcir.driver.targets.base import DriverTarget
from dcir.errors import OptionError
from dcir.frontends.torch.importer import Imported
from dcir.frontends.torch.partition.cut_for import CutFor
from dcir.ir.network import Network
from dcir.kernel_images import is_architecture
from dcir.ops.library.library_call import LibraryCall
from dcir.runtime.blocks import Arenas
from dcir.runtime.cuda_calls import call_on_device, letting_go, made_on_device
from dcir.runtime.cuda_program import CudaProgram
from dcir.transforms.base import Pass

_BACKENDS = {twin: CudaBackend(twin=twin) for twin in (False, True)}


@dataclass(frozen=True)
class CudaTarget(DriverTarget):
    """All levels; nothing that is a claim about caches and registers of CPUs."""

    name: ClassVar[str] = "cuda"
    saves: ClassVar[bool] = True
    replays: ClassVar[bool] = True
    attends: ClassVar[bool] = False
    profiles: ClassVar[bool] = True
    # Products in TF32, 402 TFLOP/s, and a copy, 4.17 TB/s, of an H200 (docs/measurements/gpu.md).
    cuts: ClassVar[CutFor] = CutFor(repeats_written=True, flops_per_byte=96.0)
    shortens: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.machine, CudaMachine):
            object.__setattr__(self, "machine", cuda_machine(self.machine))

    @classmethod
    def device(cls) -> str:
        """The GPU; of kernels that run on the CPU that."""
        return "cpu" if is_twin() else "cuda"

    @classmethod
    def rates(cls) -> DeviceRates:
        """The GPU's."""
        from dcir.driver.measure.device_rates import device_rates

        return device_rates()

    @classmethod
    def profiled_on(cls) -> str:
        """The GPU."""
        from dcir.driver.measure.device_rates import device_name

        return device_name()

    @property
    def gpu(self) -> CudaMachine:
        """The GPU that code is made for."""
        assert isinstance(self.machine, CudaMachine)
        return self.machine

    @property
    def costs(self) -> Costs:
        """A GPU's."""
        return cuda_costs(self.gpu)

    @property
    def backend(self) -> Backend:
        """Kernels as CUDA C++."""
        return _BACKENDS[self.gpu.twin]

    def pipeline(self, level: int) -> tuple[Pass, ...]:
        """The passes of a level that are not about CPUs."""
        from dcir.transforms.cuda_pipeline import cuda_pipeline

        return cuda_pipeline(level)

    @classmethod
    def check_host(cls) -> None:
        """Refuse a machine without a GPU."""
        if not is_twin() and not torch.cuda.is_available():
            raise OptionError(
                "this machine has no GPU that PyTorch can use", where="target='cuda'",
                hint=f"target='cpp', a CUDA build of PyTorch, or {SETTING}={TWIN} to run its kernels on the CPU",
            )  # fmt: skip

    def refuse(self) -> None:
        """Refuse a machine without a GPU, where nobody says what GPU the code is for."""
        if not self.gpu.asked:
            self.check_host()

    def for_architectures(self, names: Sequence[str]) -> CudaTarget:
        """The same, for GPUs of these architectures."""
        for name in names:
            if not is_architecture(name):
                raise OptionError(
                    f"{name!r} is no architecture of GPUs",
                    where=f"arch={name}",
                    hint="'sm_80' (A100), 'sm_90a' (H100, H200)",
                )
        return replace(self, machine=replace(self.gpu, asked=tuple(dict.fromkeys(names))))

    def beside_plan(self, net: Network) -> int:
        """What libraries make and take."""
        return library_bytes(net)

    def replay(self, program: CudaProgram) -> str:
        """Have calls be replays of one that is recorded."""
        return program.replay_calls()

    def load(self, done: Imported, library: Library, arenas: Arenas | None, *, prepare: str) -> Any:
        """The callable program; its scratch memory is PyTorch's."""
        made = made_by_calls(done.network, library)
        calls: dict[int, Any] = {}
        for n, (spec, *sides) in library.callbacks.items():
            ins, outs = ([(p.slot, p.offset) for p in side] for side in sides)
            calls[n] = made_on_device(spec, ins, made[n]) if n in made else call_on_device(spec, ins, outs)
        for n, slots in _read_before(done.network, made).items():
            calls[n] = letting_go(calls[n], slots)
        info = replace(program_info(done, library), callbacks=calls)
        return CudaProgram(library.path, info, list(done.constants.values()), made.values(), twin=self.gpu.twin)


def _read_before(net: Network, made: dict[int, int]) -> dict[int, list[int]]:
    """By number of a call into torch, slots of what libraries have made and nobody reads from there on, each where it is so first."""
    position, ops, shown = net.positions(), net.ops(), net.result_containers()
    found: dict[int, list[int]] = {}
    for n, slot in made.items():
        data = net.outs(ops[n])[0].data
        last = max((position[r] for r in net.readers(data)), default=n)
        behind = next((i for i, op in enumerate(ops) if i > last and op.spec.calls_out), None)
        if data not in shown and behind is not None:
            found.setdefault(behind, []).append(slot)
    return found


def made_by_calls(net: Network, library: Library) -> dict[int, int]:
    """Calls of libraries that make a whole result container, with its table slot: it need not be copied."""
    taken = {target for target, _ in net.memory.aliases.values()} | set(net.memory.placements) | set(net.updates)
    found, ops = {}, net.ops()
    for n, (spec, _, outs) in library.callbacks.items():
        if not isinstance(spec, LibraryCall) or not spec.makes:
            continue
        data = net.outs(ops[n])[0].data
        c, (shape, strides, _) = net.containers[data], spec.outs[0]
        whole = (c.role, outs[0].offset, c.shape, c.strides) == ("result", 0, shape, strides)
        if whole and data not in taken and net.writers(data) == [ops[n]]:
            found[n] = library.slots[data]
    return found
