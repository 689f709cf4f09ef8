"""A program under construction: its slots, its constants, the names visible in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from dcir.frontends.onnx.program import OnnxProgram, OnnxStep


@dataclass
class Frame:
    """One program under construction; a subgraph's frame takes outer values through captures."""

    outer: Frame | None = None
    scope: Scope | None = None
    count: int = 0
    inputs: list[int] = field(default_factory=list)
    captures: list[tuple[int, int]] = field(default_factory=list)
    steps: list[OnnxStep] = field(default_factory=list)
    constants: dict[int, Tensor] = field(default_factory=dict)
    captured: dict[int, int] = field(default_factory=dict)
    narrow: dict[int, int] = field(default_factory=dict)
    """ONNX types of values that torch holds in a wider type."""
    types: dict[int, str] = field(default_factory=dict)
    """Types of values as the schemas name them, where they are known."""

    def slot(self) -> int:
        self.count += 1
        return self.count - 1

    def capture(self, outer_slot: int) -> int:
        """The slot here for a value of the surrounding program."""
        assert self.outer is not None
        if outer_slot not in self.captured:
            inner = self.slot()
            self.captured[outer_slot] = inner
            self.captures.append((outer_slot, inner))
            if outer_slot in self.outer.narrow:
                self.narrow[inner] = self.outer.narrow[outer_slot]
            if outer_slot in self.outer.types:
                self.types[inner] = self.outer.types[outer_slot]
            if outer_slot in self.outer.constants:
                self.constants[inner] = self.outer.constants[outer_slot]
        return self.captured[outer_slot]

    def constant(self, tensor: Tensor) -> int:
        """A slot for a constant; all constants live in the outermost program, whose module owns them."""
        if self.outer is not None:
            return self.capture(self.outer.constant(tensor))
        slot = self.slot()
        self.constants[slot] = tensor
        return slot

    def program(self, outputs: list[int]) -> OnnxProgram:
        self.steps = _pruned(self.steps, outputs)
        steps = _with_frees(self.steps, outputs)
        captures = tuple(inner for _, inner in self.captures)
        return OnnxProgram(self.count, tuple(self.inputs), captures, steps, tuple(outputs))


@dataclass
class Scope:
    """Names visible at a node; a function body sees only its own."""

    frame: Frame
    names: dict[str, int] = field(default_factory=dict)
    parent: Scope | None = None

    def find(self, name: str) -> int | None:
        if name in self.names:
            return self.names[name]
        if self.parent is None:
            return None
        found = self.parent.find(name)
        if found is None or found < 0 or self.parent.frame is self.frame:
            return found
        return self.frame.capture(found)


def _pruned(steps: list[OnnxStep], outputs: list[int]) -> list[OnnxStep]:
    """Without steps and results that nothing reads."""
    live = set(outputs)
    kept = []
    for step in reversed(steps):
        made = tuple(slot if slot in live else -1 for slot in step.outputs)
        used = max((i + 1 for i, slot in enumerate(made) if slot >= 0), default=0)
        if not used:
            continue
        live.update(step.inputs)
        kept.append(replace(step, outputs=made, node=replace(step.node, used=used)))
    return kept[::-1]


def _with_frees(steps: list[OnnxStep], outputs: list[int]) -> tuple[OnnxStep, ...]:
    last: dict[int, int] = {}
    for index, step in enumerate(steps):
        for slot in (*step.inputs, *step.outputs):
            last[slot] = index
    dead: dict[int, list[int]] = {}
    for slot, index in last.items():
        if slot >= 0 and slot not in outputs:
            dead.setdefault(index, []).append(slot)
    return tuple(replace(step, free=tuple(dead.get(i, ()))) for i, step in enumerate(steps))
