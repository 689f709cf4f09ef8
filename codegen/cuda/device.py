"""What emitters take of a device for granted: how much has to run at once, and how much a thread may hold.

Figures of an H100 and an H200; a text does not depend on where it is printed.
"""

from __future__ import annotations

MULTIPROCESSORS = 132
RESIDENT_THREADS = 1024
"""That a multiprocessor holds of any kernel that takes no more than 64 registers a thread."""
WANTED_THREADS = MULTIPROCESSORS * RESIDENT_THREADS
"""Threads from which on memory is kept busy."""
MOST_BLOCK = 1024
WARP = 32
SHARED_BYTES = 48 << 10
"""Shared memory that a block has without being asked for more."""
VECTOR_BYTES = 16
REGISTERS = 65536
"""Of 4 bytes, which the threads of a multiprocessor share."""


def register_words(block: int) -> int:
    """Values of 4 bytes that a thread may hold or wait for at once, beside what it computes with."""
    return min(64, REGISTERS // block - 40)


def power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``, at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
