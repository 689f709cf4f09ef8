"""What NVRTC makes of a kernel: registers, memory of a thread's own, spills, instructions; and what the kernel may take."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from dcir.codegen.cuda.launch import Launch
from dcir.codegen.cuda.nvrtc import Nvrtc
from dcir.codegen.cuda.prelude import prelude_text

REGISTERS = 65536
"""Of 4 bytes, of a multiprocessor, since the third generation."""
LEAST_THREADS = 512
"""A quarter of what a multiprocessor of the eighth and ninth generation holds: fewer do not keep its memory busy."""
_SAID = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
# Of the generations from the seventh on.
_INSTRUCTION_BYTES = 16


@dataclass(frozen=True)
class Resources:
    """A kernel as compiled for one architecture.

    Attributes:
        registers: of a thread.
        stack, spilled: bytes of a thread's memory that are arrays of its own, and registers that did not suffice.
        instructions: of the kernel, padding included.
        seconds: of the processor, to compile it.
    """

    registers: int
    stack: int
    spilled: int
    instructions: int
    seconds: float


def resources_of(launch: Launch, nvrtc: Nvrtc, arch: str) -> Resources:
    """Compile a kernel and look at it.

    Raises:
        CompilerFailed: the compiler refuses it.
    """
    said: list[str] = []
    start = time.thread_time()
    image = nvrtc.compile(prelude_text() + launch.text, arch, ("--ptxas-options=-v",), said.append)
    seconds = time.thread_time() - start
    used = _USED.search(said[0])
    # Of functions that are not inlined, too.
    numbers = [tuple(map(int, row)) for row in _SAID.findall(said[0])]
    assert numbers and used is not None, said[0]
    stack, spilled = max(row[0] for row in numbers), sum(row[1] + row[2] for row in numbers)
    return Resources(int(used[1]), stack, spilled, _code_bytes(image) // _INSTRUCTION_BYTES, seconds)


def most_registers(launch: Launch) -> int:
    """What a thread may take for enough threads to be at work at once."""
    block = launch.block[0]
    return REGISTERS // max(LEAST_THREADS, block)


def lacks_registers(r: Resources, launch: Launch) -> bool:
    """Whether values are spilled because there is no register left; a few words are also saved around functions of the compiler's own.

    These (the seldom way of a division) are called, and a call saves what lives across it, whatever registers there are.
    """
    most = min(255, REGISTERS // launch.block[0]) // 8 * 8
    return r.spilled > 0 and r.registers > most - 8


def _code_bytes(image: bytes) -> int:
    """Bytes of the sections of an ELF file that hold instructions."""
    table = int.from_bytes(image[40:48], "little")
    size, count = (int.from_bytes(image[at : at + 2], "little") for at in (58, 60))
    found = 0
    for i in range(count):
        row = image[table + i * size : table + (i + 1) * size]
        kind, flags = int.from_bytes(row[4:8], "little"), int.from_bytes(row[8:16], "little")
        if kind == 1 and flags & 4:  # contents of the program, executable
            found += int.from_bytes(row[32:40], "little")
    return found
