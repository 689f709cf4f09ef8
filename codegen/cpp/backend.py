"""C++ with OpenMP: kernels through DaCe's generator, a driver of one team, GCC."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dcir.cache import Cache, key_of
from dcir.codegen.backend import Kernel, Steps
from dcir.codegen.cpp.emitters import EMITTERS
from dcir.codegen.cpp.kernels.size_generic import size_generic
from dcir.codegen.cpp.print_driver import BESIDE, driver_text
from dcir.codegen.cpp.print_kernel import HEADER, kernel_body
from dcir.codegen.cpp.toolchain import Toolchain, Unit, compile_objects, default_flags, link_shared
from dcir.cost.machine import Machine


class CppBackend:
    """Emitters, printer and toolchain of the target "cpp" (``codegen.backend.Backend``)."""

    emitters = EMITTERS

    def size_generic(self, spec: Any, machine: Machine) -> tuple[Any, tuple[int, ...]] | None:
        """A loop nest of a few words, or a packing of weights, whose sizes are numbers in a table."""
        return size_generic(spec, machine)

    def driver_text(self, steps: Steps, *, profile: bool) -> str:
        """C++ of the driver."""
        return driver_text(
            steps.calls, steps.before, steps.static, steps.flows, steps.sizes, steps.stops, profile=profile,
            recorded=steps.recorded, overwriting=steps.overwriting,
        )  # fmt: skip

    def kernel_text(self, kernel: Kernel) -> str:
        """C++ of a kernel."""
        return HEADER + _body(kernel)

    def printed(self, kernel: Kernel) -> Kernel:
        """The kernel with what a file has of it."""
        return replace(kernel, text=_body(kernel))

    def identity(self, machine: Machine, cache: Cache) -> str:
        """Of GCC, the processor and the flags."""
        return key_of(Toolchain.find(cache).identity, repr(default_flags(machine.isa)))

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
        """Objects by what they say, many kernels to a file; then the library."""
        toolchain, flags = Toolchain.find(cache), default_flags(machine.isa)
        texts = sorted(map(_body, kernels))
        units = [Unit("", driver), Unit("", BESIDE), *(Unit("", text, HEADER) for text in texts)]
        objects = compile_objects(units, toolchain, flags, cache, None, progress)
        shutil.copyfile(link_shared(objects, key, toolchain, cache), draft)


def _body(kernel: Kernel) -> str:
    return kernel.text or kernel_body(kernel.plan, kernel.ins, kernel.outs, kernel.name, kernel.shared)
