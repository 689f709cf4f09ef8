"""Has the process keep memory that it frees, where large blocks come and go with every call.

glibc gives large blocks back to the system, and each page of the next one costs a fault: to gather a layer of 28 MB took 20 ms, 13 of
them in the kernel, and 7 where the memory stayed.
"""

from __future__ import annotations

import ctypes
import functools
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_NEVER = -1
LARGEST_KEPT = 32 << 20
"""Bytes that glibc takes from its heap at most; what is larger comes from the system each time."""
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")


@functools.cache
def keep_freed_memory() -> bool:
    """Have malloc keep what is freed for what is allocated next; whether it does.

    A process holds as much as it had at its peak from then on. It does not where there is another library than glibc, and where the
    user said how malloc is to be (``MALLOC_TRIM_THRESHOLD_`` and the like, ``GLIBC_TUNABLES``).
    """
    if any(name in os.environ for name in _VARIABLES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        library = ctypes.CDLL(None)
        mallopt, _ = library.mallopt, library.gnu_get_libc_version
    except (OSError, AttributeError, TypeError):
        return False
    # Once one of them is given, glibc moves neither by what is freed.
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST_KEPT)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
