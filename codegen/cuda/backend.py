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
from dcir.codegen.cuda.prelude import prelude_text, twin_text
from dcir.codegen.cuda.print_driver import driver_text, stubs_text
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.registry import Emitters, Planned
from dcir.cost.cuda import CudaMachine
from dcir.cost.machine import Machine
from dcir.errors import Unsupported
from dcir.ir.operator import Operator
from dcir.ir.refusal import Refusal
from dcir.ir.schedule import OPEN, Schedule
from dcir.kernel_images import image_name, with_images

# Each library has fibers of its own: another one may be unloaded before it.
_TWIN_FLAGS = ("-std=c++17", "-O0", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-ffp-contract=off", "-w")
# What went wrong since it was last asked.
_FAULT = """
extern "C" __attribute__((visibility("default"))) const char* dcir_fault() {
  static char text[512];
  __builtin_snprintf(text, sizeof text, "%s", dcir_twin::fault());
  dcir_twin::forget_fault();
  return text;
}
"""


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
        assert isinstance(machine, CudaMachine) and isinstance(spec, Operator)
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
        return driver_text(steps, profile=profile)

    def kernel_text(self, kernel: Kernel) -> str:
        """CUDA C++ of what a kernel starts, and of the function that does."""
        launches = _launches(kernel)
        texts = dict.fromkeys(launch.text for launch in launches)
        return "\n".join([*texts, stubs_text([kernel], {kernel.name: launches}, twin=self._twin)])

    def identity(self, machine: Machine, cache: Cache) -> str:
        """Of the compilers, what kernels include, and what they are compiled for."""
        assert isinstance(machine, CudaMachine)
        gcc = key_of(Toolchain.find(cache).identity, repr(self._flags(machine)))
        if self._twin:
            return key_of(gcc, "twin", twin_text())
        return key_of(gcc, prelude_text(), find_nvrtc().identity, *machine.architectures)

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
            units += [Unit("", twin_unit(name, text), twin_text()) for name, text in sorted(texts.items())]
            units.append(Unit("", _FAULT, twin_text()))
        toolchain = Toolchain.find(cache)
        objects = compile_objects(units, toolchain, self._flags(machine), cache, None, progress)
        library = link_shared(objects, key, toolchain, cache)
        if self._twin:
            shutil.copyfile(library, draft)
            return
        images = {
            image_name(arch, name): image
            for arch in machine.architectures
            for name, image in cubins(dict(sorted(texts.items())), prelude_text(), arch, cache, progress).items()
        }
        draft.write_bytes(with_images(library.read_bytes(), images))

    def _flags(self, machine: Machine) -> tuple[str, ...]:
        if not self._twin:
            return ("-std=c++17", "-O1", "-fPIC", "-w")
        sanitizers = [f for f in default_flags(machine.isa) if f.startswith(("-fsanitize", "-fno-sanitize", "-g"))]
        return (*_TWIN_FLAGS, *sanitizers)


def twin_unit(name: str, text: str) -> str:
    """C++ of a kernel's twin: ``dcir_twin_<name>(sizes of grid, block, shared memory, arguments)``, 0 if all is well."""
    return "\n".join([
        text, "namespace {", "template <int...> struct Numbers {};",
        "template <int N, int... I> struct Upto : Upto<N - 1, N - 1, I...> {};",
        "template <int... I> struct Upto<0, I...> { typedef Numbers<I...> type; };",
        "template <class... P, int... I> void with(void (*f)(P...), void** a, Numbers<I...>) { f(*(P*)a[I]...); }",
        "template <class... P> void with(void (*f)(P...), void** a) { with(f, a, typename Upto<sizeof...(P)>::type()); }", "}",
        f'extern "C" int dcir_twin_{name}(const unsigned* n, void** a) {{',
        f"  return dcir_twin::launch({{n[0], n[1], n[2]}}, {{n[3], n[4], n[5]}}, n[6], [=] {{ with({name}, a); }}, \"{name}\");", "}",
    ])  # fmt: skip


def _launches(kernel: Kernel) -> tuple[Launch, ...]:
    assert isinstance(kernel.plan, LaunchPlan)
    return kernel.plan.launches


def _kind(spec: Planned) -> str:
    describe = getattr(spec, "describe", None)
    return describe() if describe is not None else type(spec).__name__
