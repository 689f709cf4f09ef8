"""The size of torch's team of threads, which runs compiled code too, where a container may use fewer processors than it sees.

torch makes a thread for every processor, or every core, that the process may run on, and knows no quota. A number that somebody chose,
by ``torch.set_num_threads`` or ``OMP_NUM_THREADS``, is not touched.
"""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

import torch

from dcir.cores import runnable_threads, usable_threads

_LOG = logging.getLogger("dcir")
_CHOSEN_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_SIBLINGS = "devices/system/cpu/cpu{}/topology/thread_siblings_list"


@functools.cache
def fit_team() -> None:
    """Give torch's team the size that the quota allows, once in a process, if nobody chose one."""
    now, usable = torch.get_num_threads(), usable_threads()
    if usable >= now or any(os.environ.get(name) for name in _CHOSEN_BY) or now not in (runnable_threads(), _cores()):
        return
    torch.set_num_threads(usable)
    _LOG.info(
        "torch had %d threads, and this container may use %d processors at a time: torch.set_num_threads(%d)",
        now, usable, usable,
    )  # fmt: skip


def _cores(system: Path = Path("/sys")) -> int:
    """Cores that this process may run on."""
    if not hasattr(os, "sched_getaffinity"):
        return runnable_threads()
    try:
        return len({(system / _SIBLINGS.format(i)).read_text() for i in os.sched_getaffinity(0)})
    except OSError:
        return runnable_threads()
