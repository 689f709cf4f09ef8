"""What teams of every size can do on a machine, this one or a larger one that is imagined: peak, bandwidth, and what waiting costs.

What `dcir machine` measured of one thread and of all threads here holds as it is. Beyond that:

    arithmetic, caches   grow with the threads, at the rate of a thread of the measured team
    memory               grows with the threads until a socket is saturated; sockets add up, less what comes from the other one
    barrier              log2(threads) steps, and every thread adds itself to one counter; further from another socket
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcir.cost.machine import MachineRates, Rate
from dcir.cost.threads.topology import Cores

_SATURATING = 10
"""Threads that use up a server socket's memory: eight to twelve channels of 25 to 40 GB/s, of which a thread gets 20 to 30 GB/s."""
_ACROSS = 0.7
"""What is left of the bandwidth of two sockets if half of the data lies in the other one's memory: its links are slower."""
_LINE_SECONDS, _FAR_LINE_SECONDS = 40e-9, 100e-9
"""For a line that is written to travel to another core of the socket, and to the other socket."""


@dataclass(frozen=True)
class TeamRates:
    """Rates of teams on a machine.

    Attributes:
        cores: of the machine.
        rates: of this one.
    """

    cores: Cores
    rates: MachineRates

    @property
    def imagined(self) -> bool:
        """Whether the machine has more cores than were there to be measured."""
        return self.cores.total > self.rates.threads or self.cores.sockets > 1

    def flops(self, threads: int, dtype: str = "f32") -> float:
        """Peak operations per second."""
        team = self.rates.threads
        if threads <= team:
            return self.rates.flops(threads, dtype)
        return self.rates.flops(team, dtype) / team * threads

    def read_rate(self, nbytes: int, threads: int, beside: int = 1) -> float:
        """Bytes per second at which a team reads data of this size again and again, while ``beside`` such teams do, itself included."""
        number = self.rates.memory_of(nbytes * beside, threads * beside)
        if number < len(self.rates.caches):
            return self._grown(self.rates.reads[number], threads)
        return min(self._memory(threads), self._memory(max(threads, self.cores.total)) / beside)

    def barrier(self, threads: int) -> float:
        """Seconds that a team waits for its last thread."""
        if threads < 2:
            return 0.0
        step = self.rates.barrier_seconds / math.log2(max(2, self.rates.threads))
        return step * math.log2(threads) + self._lines(threads)

    @property
    def handoff(self) -> float:
        """Seconds until a team that waits for a kernel of another one goes on."""
        return self.barrier(2)

    def opening(self, threads: int) -> float:
        """Seconds to open a team and to close it."""
        # Each thread is told, and says that it is done.
        return self.rates.region_seconds + 2 * self._lines(threads) if threads > 1 else 0.0

    def _lines(self, threads: int) -> float:
        """A line from each thread that is not part of what was measured."""
        near = min(threads, self.cores.per_socket)
        return _LINE_SECONDS * max(0, near - self.rates.threads) + _FAR_LINE_SECONDS * (threads - near)

    def _grown(self, rate: Rate, threads: int) -> float:
        team = self.rates.threads
        return rate.of(threads, team) if threads <= team else rate.all / team * threads

    def _memory(self, threads: int) -> float:
        rate, team = self.rates.reads[-1], self.rates.threads
        measured = rate.of(threads, team)
        if threads <= team and not self.imagined:
            return measured
        sockets = self.cores.sockets_of(threads)
        socket = rate.one * min(_SATURATING, threads / sockets)
        return max(measured, sockets * socket * (_ACROSS if sockets > 1 else 1.0))
