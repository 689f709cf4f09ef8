"""What is noted on a network and changes nothing of what it says: operators that run image by image."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ImagePipeline:
    """Consecutive operators that run for one image of a batch after the other, images on different threads at once.

    The graph says the same with or without it: every operator is separable into its images (``analysis/batch_slices.py``).

    Attributes:
        images: how many there are.
        ops: labels of the operators, in order.
        steps: elements between two images, per container that an operator touches (0: shared by all images).
        lanes: how many images may be under way at once.
        inside: containers that nothing else touches: byte offsets in a lane, which holds one image of each.
        lane_bytes: size of a lane.
        at: byte offset of the first lane in the arena.
    """

    images: int
    ops: list[str]
    steps: dict[str, int]
    lanes: int = 1
    inside: dict[str, int] = field(default_factory=dict)
    lane_bytes: int = 0
    at: int = 0
