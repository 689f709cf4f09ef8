"""What rules are told: all that was measured of a model, how it is called now, and what its machine can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from dcir.cost.machine import MachineRates
from dcir.report.advice_pieces import Call, Piece
from dcir.report.roofline_points import Run, Setting


@dataclass(frozen=True)
class Update:
    """An optimiser's step.

    Attributes:
        name: of the optimiser.
        ms: that it takes beside the compiled backward.
        bytes: that a fused one reads and writes: parameters, gradients, state.
        tensors: how many parameters there are.
        form: "loop" (an operator and a tensor at a time), "foreach", or "fused".
    """

    name: str
    ms: float
    bytes: int
    tensors: int = 1
    form: str = "fused"


@dataclass(frozen=True)
class Kept:
    """What a forward keeps for its backward under a limit, planned and not run.

    Attributes:
        limit: ``memory_limit``.
        peak: bytes of the plan: what is kept, and the larger scratch memory of forward and backward.
        stored, again: number and bytes of the values that are kept, and of those that are computed again.
        seconds: that computing again takes more at the machine's rates.
    """

    limit: int
    peak: int
    stored: tuple[int, int]
    again: tuple[int, int]
    seconds: float


@dataclass(frozen=True)
class Memory:
    """The memory of a training step.

    Attributes:
        peak: bytes of the plan without a limit (see ``Kept``).
        beside: bytes of parameters, gradients, the optimiser's state and inputs.
        allowed: bytes that all of it may take.
        asked: whether the user said so; else it is a part of the machine's memory.
        kept: plans under limits, where it takes more.
    """

    peak: int
    beside: int
    allowed: int
    asked: bool
    kept: tuple[Kept, ...] = ()


@dataclass(frozen=True)
class Facts:
    """A model, measured.

    Attributes:
        now: as it is called now, compiled; one of ``runs``.
        runs: what was measured of kernels, by setting.
        times: milliseconds of a call (a training step with the optimiser's) by setting, which took turns.
        items: of a call, by batch.
        rates: of the machine.
        processors: that all streams have together.
        weights: bytes of parameters and buffers.
        images: (bytes, whether channels lie together) of each input that is a batch of images of several channels.
        mode: "infer" or "train".
        pairs: how many times as many products of bfloat16 as of float32 fit into a second; None where the model is of no float32.
        update: the optimiser's step of a training step.
        memory: of a training step, where it was looked at.
        source: what the user named, for commands.
    """

    now: Setting
    runs: Mapping[Setting, Run]
    times: Mapping[Setting, float]
    items: Mapping[int | None, int]
    rates: MachineRates
    processors: int
    weights: int = 0
    images: tuple[tuple[int, bool], ...] = ()
    mode: str = "infer"
    pairs: float | None = None
    update: Update | None = None
    memory: Memory | None = None
    source: str = "MODEL"

    @property
    def run(self) -> Run:
        """What was measured of the model as it is called now."""
        return self.runs[self.now]

    @property
    def call(self) -> Call:
        """The model as it is called now."""
        return call_of(self.now)

    @property
    def trains(self) -> bool:
        """Whether a call is a training step."""
        return self.mode == "train"

    def ms(self, setting: Setting) -> float:
        """Of a call, or of a whole training step."""
        return self.times[setting]

    @property
    def clearest(self) -> Run:
        """What was measured of the batch and the level of now with the fewest threads: a kernel's part of the time is clearest there.

        In a team others that work on the machine show as waiting, in whatever kernel.
        """
        return self.runs[min(self.varying("threads"), key=lambda s: s.threads)]

    def varying(self, field: str) -> list[Setting]:
        """The settings that were measured and differ from that of now in one field at most."""
        return [s for s in self.runs if replace(s, **{field: getattr(self.now, field)}) == self.now]

    def a_second(self, setting: Setting) -> float:
        """Items a second, one call after the other."""
        return self.items[setting.batch] / (self.ms(setting) or 1e-9) * 1e3

    def command(self, call: Call) -> str:
        """What measures a call on the command line; nothing where no command does."""
        if self.trains or call.turned or call.half:
            return ""
        if call.batch is not None and ".py:" not in self.source:
            return ""
        batch = "" if call.batch is None else f" --batch {call.batch}"
        whole = call.threads * call.streams
        threads = "" if whole == self.now.threads else f" --threads {whole}"
        streams = "" if call.streams == 1 else f" --hint throughput --streams {call.streams}"
        level = "" if call.level in (4, None) else f" -O{call.level}"
        return f"dcir bench {self.source}{batch}{threads}{streams}{level}"


Rule = Callable[[Facts], list[Piece]]
"""Looks at what was measured, and gives what it would change of the call of now, whatever that brings."""


def call_of(setting: Setting) -> Call:
    """A setting of a roofline as a way to call a model."""
    return Call(setting.threads, setting.batch, setting.level)


def is_image(value: object) -> bool:
    """Whether a value is a batch of images: four dimensions, several channels that may lie together or apart."""
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or not value.is_floating_point():
        return False
    return min(value.shape[1], value.shape[2] * value.shape[3]) > 1 and (
        value.is_contiguous() or value.is_contiguous(memory_format=torch.channels_last)
    )
