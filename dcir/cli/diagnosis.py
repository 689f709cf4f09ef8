"""A line of `dcir doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnosis:
    """One line of the doctor: what was looked at, whether it is well, what was found, and what to do if not."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
