"""The driver for GPUs, run with a launcher of the test's: what is started when, with which pointers, and what a failure says."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dcir.cache import Cache
from dcir.codegen.backend import Kernel, Steps
from dcir.codegen.cpp.toolchain import Toolchain, Unit, compile_objects, link_shared
from dcir.codegen.cuda.backend import LaunchPlan
from dcir.codegen.cuda.launch import Launch
from dcir.codegen.cuda.print_driver import driver_text, stubs_text
from dcir.codegen.plan import Phase
from dcir.codegen.steps import Branch, Call, Carried, Flow, Loop, Place, Window
from dcir.errors import Unsupported

LAUNCHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
CALL_BACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)


def launch(name: str, *arguments: str, grid: int = 3, shared: int = 0) -> Launch:
    return Launch(name, f'extern "C" __global__ void {name}() {{}}', (grid, 1, 1), (64, 1, 1), shared, arguments)


ONE, TWO = launch("k_one", "a0", "o0"), launch("k_two", "o0", "scratch", "status", grid=5, shared=256)
KERNELS = {"kf": (1, 1, (ONE, TWO)), "kg": (2, 1, (launch("k_one", "a1", "o0"),))}


def kernel(name: str) -> Kernel:
    ins, outs, launches = KERNELS[name]
    phases = tuple(Phase(x.grid[0], " ".join(x.arguments)) for x in launches)
    return Kernel(name, LaunchPlan("cuda", "", phases, launches=launches), ("f32",) * ins, ("f32",) * outs)


class Driver:
    """A library with a launcher that keeps what it hears.

    Attributes:
        started: (function, grid, block, shared memory, stream, pointers) of every launch.
        called: numbers of calls into torch.
        fails: the name of the function that fails.
    """

    def __init__(self, steps: Steps, folder: Path) -> None:
        cache = Cache(folder)
        kernels = [kernel(name) for name in KERNELS]
        stubs = stubs_text(kernels, {k.name: k.plan.launches for k in kernels}, twin=False)
        toolchain = Toolchain.find(cache)
        objects = compile_objects(
            [Unit("", driver_text(steps)), Unit("", stubs)], toolchain, ("-fPIC", "-O1", "-w"), cache
        )
        self.library = ctypes.CDLL(str(link_shared(objects, "", toolchain, cache)))
        count = ctypes.c_int.in_dll(self.library, "dcir_kernel_count").value
        self.names = [n.decode() for n in (ctypes.c_char_p * count).in_dll(self.library, "dcir_kernels")]
        self.shared = list((ctypes.c_int * count).in_dll(self.library, "dcir_shared"))
        checked = ctypes.c_int.in_dll(self.library, "dcir_checked_count").value
        self.checked = list((ctypes.c_int * max(checked, 1)).in_dll(self.library, "dcir_checked"))[:checked]
        self.started: list[Any] = []
        self.called: list[int] = []
        self.fails = ""
        self._sizes = {x.kernel: len(x.arguments) for _, _, rows in KERNELS.values() for x in rows}
        self._launcher, self._back = LAUNCHER(self._start), CALL_BACK(self._call)
        self._functions = (ctypes.c_void_p * count)(*range(1, count + 1))
        self.library.dcir_bind.argtypes = [ctypes.c_void_p] * 5
        self.library.dcir_bind(ctypes.cast(self._launcher, ctypes.c_void_p), None, None, None, self._functions)

    def _start(
        self, f: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: int, *rest: Any
    ) -> int:
        name = self.names[f - 1]
        pointers = ctypes.cast(rest[0], ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))
        given = [pointers[i][0] for i in range(self._sizes[name])]
        self.started.append((name, gx, bx, shared, stream, given))
        return 700 if name == self.fails else 0

    def _call(self, number: int) -> int:
        self.called.append(number)
        return int(number == 99)

    def run(self, table: Sequence[int], status: int = 0x5000) -> int:
        made = (ctypes.c_void_p * len(table))(*table)
        self.library.dcir_run.argtypes = [ctypes.c_void_p, CALL_BACK, ctypes.c_void_p, ctypes.c_void_p]
        return int(self.library.dcir_run(made, self._back, 0x77, status))


def call(name: str | None, number: int, *places: Place, checked: bool = False) -> Call:
    return Call(name, number, places, True, checked)


F = call("kf", 4, Place(2, 16), Place(3, 0), Place(0, 64), checked=True)
G = call("kg", 5, Place(3, 0), Place(2, 8), Place(4, 0), Place(0, 64))


def test_launches_in_order_with_their_pointers(tmp_path: Path) -> None:
    driver = Driver(Steps([F, call(None, 1), G]), tmp_path)
    assert driver.names == ["k_one", "k_two"] and driver.shared == [0, 256] and driver.checked == [4]
    assert driver.run([0x1000, 0, 0x2000, 0x3000, 0x4000]) == 0
    assert driver.started == [
        ("k_one", 3, 64, 0, 0x77, [0x2010, 0x3000]),
        ("k_two", 5, 64, 256, 0x77, [0x3000, 0x1040, 0x5000]),
        ("k_one", 3, 64, 0, 0x77, [0x2008, 0x4000]),
    ]
    assert driver.called == [1]


def test_a_launch_that_fails_ends_the_run_and_says_where(tmp_path: Path) -> None:
    driver = Driver(Steps([F, G]), tmp_path)
    driver.fails = "k_two"
    assert driver.run([0x1000, 0, 0x2000, 0x3000, 0x4000]) == 700 * 1_000_000 + 5
    assert len(driver.started) == 2


def test_a_call_into_torch_that_fails_ends_the_run(tmp_path: Path) -> None:
    driver = Driver(Steps([call(None, 99), G]), tmp_path)
    assert driver.run([0x1000, 0, 0x2000, 0x3000, 0x4000]) == -100
    assert not driver.started


def test_a_loop_hands_values_on_in_two_places(tmp_path: Path) -> None:
    value = Carried("i0", "o0", Place(2, 0), Place(3, 0), Place(0, 512), 16)
    inside = Call(
        "kg",
        5,
        (Place(-1, 0, pointer="i0"), Place(-1, 0, pointer="w"), Place(-1, 0, pointer="o0"), Place(0, 0)),
        True,
        False,
    )
    loop = Loop(5, "r", (value,), (Window("w", Place(4, 0), 4),), (inside,), 3)
    driver = Driver(Steps([loop]), tmp_path)
    assert driver.run([0x1000, 0, 0x2000, 0x3000, 0x4000]) == 0
    assert [s[-1] for s in driver.started] == [[0x4000, 0x3000], [0x4004, 0x1200], [0x4008, 0x3000]]


def test_a_bool_that_can_be_read_decides(tmp_path: Path) -> None:
    flag = ctypes.c_bool(True)
    branch = Branch(5, "b", (), Place(2, 0), (G,), (F,))
    driver = Driver(Steps([branch]), tmp_path)
    driver.run([0x1000, 0, ctypes.addressof(flag), 0x3000, 0x4000])
    flag.value = False
    driver.run([0x1000, 0, ctypes.addressof(flag), 0x3000, 0x4000])
    assert [s[0] for s in driver.started] == ["k_one", "k_one", "k_two"]


@pytest.mark.parametrize("steps", [
    Steps([F], flows=[Flow(4, 2)]), Steps([F], sizes=(5, ("s0",))),
    Steps([Branch(5, "b", (), Place(2, 0), (call(None, 3),), ())]),
])  # fmt: skip
def test_refused(steps: Steps) -> None:
    with pytest.raises(Unsupported):
        driver_text(steps)
