"""Where values lie: blocks of memory, what lies where in them and when they are taken from others.

    blocks      arena: 4096 bytes             shared 0: 1 MiB
    placements  t0: byte 0 of the arena       x1, y0: byte 0 of shared 0, one after the other
    aliases     t5: 256 bytes into x1
    donated     x1: the first 1 MiB of the forward's buffer 3

Transients lie in the *arena*, which a call has for itself; in the block of *prepared* values, which outlives calls; or in the
memory of an input or a result (an *alias*). Inputs and results come with memory of their own; those that share it with others
lie in *shared* blocks. A plan may be incomplete: a container without a place gets one when code is made (``completed``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

ARENA = "arena"
"""The block of a call's own, whose contents end with the call."""
PREPARED = "prepared"
"""The block of what depends on parameters and constants alone, which outlives calls."""
ALIGNMENT = 64
"""Bytes: a cache line, so that no two containers that are written by different threads share one."""


class Placement(NamedTuple):
    """Where a container lies.

    Attributes:
        block: its name.
        offset: of the first byte, from where the block begins.
    """

    block: str
    offset: int


class Alias(NamedTuple):
    """A transient in memory that belongs to an input or a result.

    Attributes:
        target: the input's or result's container.
        offset: of the first byte, from where the target begins; negative for what lies in the target's block before it.
    """

    target: str
    offset: int


class BufferPart(NamedTuple):
    """Where a value lies that a forward keeps for its backward.

    Attributes:
        buffer: number of a buffer of the forward's call.
        offset: of the first byte, from where the buffer begins.
        nbytes: size of the buffer.
    """

    buffer: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """Places of a network's containers. A pass makes a new plan; nobody changes one.

    Attributes:
        blocks: sizes in bytes by name.
        placements: of containers that lie in a block: transients in the arena or the prepared block, inputs and results in shared ones.
        aliases: of transients that lie where an input or a result does.
        donated: inputs that nobody reads once the call has begun, with the part of the forward's buffers that they are.
    """

    blocks: Mapping[str, int] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    donated: Mapping[str, BufferPart] = field(default_factory=dict)

    # ------------------------------------------------------------------ questions
    def nbytes(self, block: str) -> int:
        """Size of a block in bytes; 0 if the plan has none of that name."""
        return self.blocks.get(block, 0)

    def offsets(self, block: str) -> dict[str, int]:
        """Byte offsets of the containers in a block, by name."""
        return {name: at for name, (where, at) in self.placements.items() if where == block}

    def is_planned(self, name: str) -> bool:
        """Whether a container has a place."""
        return name in self.placements or name in self.aliases

    def belongs_in_arena(self, name: str) -> bool:
        """Whether a transient lies in the arena, or will when it has a place."""
        place = self.placements.get(name)
        return name not in self.aliases and (place is None or place.block == ARENA)

    def placement(self, name: str) -> Placement | None:
        """The block and byte offset where a container lies, through its alias if it is one; None if it has no place in a block."""
        alias = self.aliases.get(name)
        if alias is None:
            return self.placements.get(name)
        target = self.placements.get(alias.target)
        return None if target is None else Placement(target.block, target.offset + alias.offset)

    def shared(self) -> dict[str, int]:
        """Sizes of the blocks that inputs, results and aliases use one after the other."""
        return {block: nbytes for block, nbytes in self.blocks.items() if block not in (ARENA, PREPARED)}

    def scratch_bytes(self, transients: Mapping[str, int]) -> int:
        """Bytes of one call's own memory: the arena, and each of the ``transients`` (bytes by name) without a place."""
        return self.nbytes(ARENA) + sum(nbytes for name, nbytes in transients.items() if not self.is_planned(name))

    def describe(self, name: str) -> str:
        """Where a container lies, in words; empty if the plan says nothing of it."""
        if name in self.aliases:
            target, offset = self.aliases[name]
            return f"at {offset} of {target}"
        if name not in self.placements:
            return ""
        block, offset = self.placements[name]
        named = {ARENA: "the arena", PREPARED: "what is prepared"}
        return f"at {offset} of {named.get(block, block)}"

    # ------------------------------------------------------------------ other plans
    def with_block(self, block: str, nbytes: int, offsets: Mapping[str, int]) -> MemoryPlan:
        """This plan with other contents of the arena or the prepared block: byte offsets by container."""
        blocks = {other: size for other, size in self.blocks.items() if other != block}
        placements = {name: place for name, place in self.placements.items() if place.block != block}
        placements |= {name: Placement(block, at) for name, at in offsets.items()}
        return replace(self, blocks=blocks | ({block: nbytes} if offsets else {}), placements=placements)

    def with_shared(
        self,
        sizes: Sequence[int] = (),
        places: Mapping[str, tuple[int, int]] | None = None,
        aliases: Mapping[str, Alias] | None = None,
    ) -> MemoryPlan:
        """This plan with other shared blocks.

        Args:
            sizes: of the blocks, in bytes.
            places: of inputs and results: number of a block, and the byte offset in it.
            aliases: of transients that lie there, too.
        """
        names = [f"shared {number}" for number in range(len(sizes))]
        aliases = dict(aliases or {})
        blocks = {block: size for block, size in self.blocks.items() if block in (ARENA, PREPARED)}
        placements = {n: p for n, p in self.placements.items() if p.block in blocks and n not in aliases}
        placements |= {name: Placement(names[number], at) for name, (number, at) in (places or {}).items()}
        blocks |= dict(zip(names, sizes, strict=True))
        return replace(self, blocks=blocks, placements=placements, aliases=aliases)

    def with_donated(self, donated: Mapping[str, BufferPart]) -> MemoryPlan:
        """This plan with other donated inputs."""
        return replace(self, donated=dict(donated))

    def without(self, names: Iterable[str]) -> MemoryPlan:
        """This plan without the places of some transients."""
        gone = {name for name in names if self.is_planned(name)}
        if not gone:
            return self
        return replace(
            self,
            placements={name: place for name, place in self.placements.items() if name not in gone},
            aliases={name: alias for name, alias in self.aliases.items() if name not in gone},
        )

    def completed(self, transients: Mapping[str, int]) -> MemoryPlan:
        """This plan with a place of its own, behind the others in the arena, for each of the ``transients`` that has none.

        Args:
            transients: bytes by name.
        """
        missing = [name for name in transients if not self.is_planned(name)]
        if not missing:
            return self
        offsets, end = self.offsets(ARENA), self.nbytes(ARENA)
        for name in missing:
            offsets[name] = aligned(end)
            end = offsets[name] + transients[name]
        return self.with_block(ARENA, end, offsets)

    # ------------------------------------------------------------------ as JSON
    def to_json(self) -> dict[str, Any]:
        """The plan as what ``json`` can write."""
        return {
            "blocks": dict(self.blocks),
            "placements": {name: list(place) for name, place in self.placements.items()},
            "aliases": {name: list(alias) for name, alias in self.aliases.items()},
            "donated": {name: list(part) for name, part in self.donated.items()},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> MemoryPlan:
        """The plan that ``to_json`` gave ``data`` for."""
        return MemoryPlan(
            dict(data["blocks"]),
            {name: Placement(*place) for name, place in data["placements"].items()},
            {name: Alias(*alias) for name, alias in data["aliases"].items()},
            {name: BufferPart(*part) for name, part in data["donated"].items()},
        )


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """The least multiple of ``alignment`` that is not below ``nbytes``."""
    return -(-nbytes // alignment) * alignment
