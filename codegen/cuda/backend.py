"""Kernels as CUDA C++: planned by the emitters, compiled by NVRTC, or by GCC for their twin on the CPU; a driver that launches them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcir.cache import Cache, key_of
from dcir.codegen.asked import answered, asking
from dcir.codegen.backend import Kernel, Steps
from dcir.codegen.choices import Choice
from dcir.codegen.cpp.toolchain import Toolchain, Unit, compile_objects, default_flags, link_shared
from dcir.codegen.cuda.emitters import plan_of
from dcir.codegen.cuda.launch import CudaPlan, Launch
from dcir.codegen.cuda.nvrtc import cubins, find_nvrtc
from dcir.codegen.cuda.print_driver import driver_text, stubs_text
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.registry import Emitters, Planned
from dcir.cost.cuda import CudaMachine
from dcir.cost.machine import Machine
from dcir.errors import Unsupported
from dcir.ir.refusal import Refusal
from dcir.ir.schedule import OPEN, Schedule
from dcir.kernel_images import with_images

INCLUDE = Path(__file__).resolve().parent / "include"
_TWIN_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fno-math-errno", "-ffp-contract=off", "-w")


@dataclass(frozen=True)
class LaunchPlan(KernelPlan):
    """A ``CudaPlan`` as a plan of phases, one a launch, whose jobs are its blocks."""

    launches: tuple[Launch, ...] = ()


class CudaEmitters(Emitters):
    """The emitters of the target "cuda"."""

    def __init__(self) -> None:
        super().__init__("cuda")

    def plan(
        self, spec: Planned, machine: Machine, choice: Choice | None = None, schedule: Schedule | None = None
    ) -> KernelPlan:
        """What a spec does on the device; see ``Emitters.plan``."""
        assert isinstance(machine, CudaMachine)
        with asking(schedule or OPEN):
            made = plan_of(spec, machine)
            if isinstance(made, Refusal):
                raise Unsupported.collect([(f"a kernel for {_kind(spec)}: {made.reason}", "")])
            return answered(_as_phases(made), _kind(spec))


def _as_phases(plan: CudaPlan) -> LaunchPlan:
    phases = tuple(
        Phase(x.grid[0] * x.grid[1] * x.grid[2], " ".join(x.arguments))  # "status" among them says that it is checked
        for x in plan.launches
    )
    return LaunchPlan("cuda", "", phases, plan.workspace, launches=plan.launches)


class CudaBackend:
    """Emitters, printer and compilers of the target "cuda" (``codegen.backend.Backend``).

    Args:
        twin: whether kernels are to run on the CPU.
    """

    emitters = CudaEmitters()

    def __init__(self, *, twin: bool) -> None:
        self._twin = twin

    def size_generic(self, spec: Any, machine: Machine) -> None:
        """Every kernel knows its sizes."""

    def driver_text(self, steps: Steps, *, profile: bool) -> str:
        """C++ of the driver."""
        if profile:
            raise Unsupported.collect([("a driver that measures its steps on a GPU", "")])
        return driver_text(steps)

    def kernel_text(self, kernel: Kernel) -> str:
        """CUDA C++ of what a kernel starts, and of the function that does."""
        launches = _launches(kernel)
        texts = dict.fromkeys(launch.text for launch in launches)
        return "\n".join([*texts, stubs_text([kernel], {kernel.name: launches}, twin=self._twin)])

    def identity(self, machine: Machine, cache: Cache) -> str:
        """Of the compilers and what kernels include."""
        gcc = key_of(Toolchain.find(cache).identity, repr(self._flags(machine)))
        return key_of(gcc, _included(), "twin" if self._twin else find_nvrtc().identity)

    def build(
        self,
        draft: Path,
        key: str,
        driver: str,
        kernels: Sequence[Kernel],
        machine: Machine,
        cache: Cache,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """The driver as a library; behind it the kernels' machine code, or in it their twins."""
        assert isinstance(machine, CudaMachine)
        launches = {k.name: _launches(k) for k in kernels}
        texts = {x.kernel: x.text for k in kernels for x in launches[k.name]}
        ordered = sorted(kernels, key=lambda k: k.name)
        units = [Unit("", driver), Unit("", stubs_text(ordered, launches, twin=self._twin))]
        if self._twin:
            units += [Unit(_included(), twin_text(name, text)) for name, text in sorted(texts.items())]
        toolchain = Toolchain.find(cache)
        objects = compile_objects(units, toolchain, self._flags(machine), cache, None, progress)
        library = link_shared(objects, key, toolchain, cache)
        if self._twin:
            shutil.copyfile(library, draft)
            return
        images = cubins(dict(sorted(texts.items())), prelude(), machine.arch, cache, progress)
        draft.write_bytes(with_images(library.read_bytes(), images))

    def _flags(self, machine: Machine) -> tuple[str, ...]:
        if not self._twin:
            return ("-std=c++17", "-O1", "-fPIC", "-w")
        sanitizers = [f for f in default_flags(machine.isa) if f.startswith(("-fsanitize", "-fno-sanitize", "-g"))]
        return (*_TWIN_FLAGS, f"-I{INCLUDE}", *sanitizers)


def twin_text(name: str, text: str) -> str:
    """C++ of a kernel's twin: ``dcir_twin_<name>(sizes, arguments)``, with the sizes of grid, block and shared memory."""
    return "\n".join([
        '#include "twin.h"', text, "namespace {", "template <class... P, int... I>",
        "void with(void (*f)(P...), void** a, std::integer_sequence<int, I...>) { f(*(P*)a[I]...); }",
        "template <class... P> void with(void (*f)(P...), void** a) {",
        "  with(f, a, std::make_integer_sequence<int, sizeof...(P)>());", "}", "}",
        f'extern "C" void dcir_twin_{name}(const unsigned* n, void** a) {{',
        f"  dcir_twin::launch({{n[0], n[1], n[2]}}, {{n[3], n[4], n[5]}}, n[6], [=] {{ with({name}, a); }});", "}",
    ])  # fmt: skip


def prelude() -> str:
    """What stands before every kernel on a device, in one text: NVRTC opens no file."""
    return (INCLUDE / "prelude.cuh").read_text()


def _launches(kernel: Kernel) -> tuple[Launch, ...]:
    assert isinstance(kernel.plan, LaunchPlan)
    return kernel.plan.launches


def _included() -> str:
    files = sorted(p for p in INCLUDE.iterdir() if p.suffix in (".h", ".cuh"))
    return key_of(*(part for p in files for part in (p.name, p.read_text())))


def _kind(spec: Planned) -> str:
    describe = getattr(spec, "describe", None)
    return describe() if describe is not None else type(spec).__name__
