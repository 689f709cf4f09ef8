"""The emitters of the target "cpp": its table, and the two words that its kernels are written with."""

from __future__ import annotations

from dcir.codegen.registry import Emitters

EMITTERS = Emitters("cpp", "dcir.codegen.cpp.kernels")

planner = EMITTERS.planner
plan = EMITTERS.plan
