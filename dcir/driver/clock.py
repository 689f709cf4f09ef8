"""How long the steps of a compilation take."""

from __future__ import annotations

import time


class Clock:
    """Adds seconds to a table, by step."""

    def __init__(self, table: dict[str, float]) -> None:
        self.table, self.last = table, time.perf_counter()

    def start(self) -> None:
        """What has passed since the last lap is no step's."""
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        """What has passed is this step's."""
        now = time.perf_counter()
        self.table[name] = self.table.get(name, 0.0) + now - self.last
        self.last = now
