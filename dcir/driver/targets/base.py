"""What the driver asks of a target, beyond what passes and emitters do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dcir.codegen.compile import Library
from dcir.cost.target import Target
from dcir.driver.assemble import assemble
from dcir.errors import OptionError
from dcir.frontends.torch.importer import Imported
from dcir.frontends.torch.partition.cut_for import CutFor
from dcir.ir.network import Network
from dcir.runtime.blocks import Arenas
from dcir.runtime.program import Program
from dcir.transforms.base import Pass


@dataclass(frozen=True)
class DriverTarget(Target):
    """A target as the driver joins it: pipeline, code, run time.

    By default it has kernels and a library (``backend``) that run in this process as the CPU's do; a target that is made so
    answers ``pipeline``, ``costs`` and ``backend`` and nothing else.

    Attributes:
        plans_memory: whether scratch memory is planned, so that a limit can be kept and results can be put in buffers of the forward.
        tunes: whether its kernels can be made in several ways, of which the fastest is measured.
        saves: whether a compiled file may hold its code.
        saves_sizes: whether such a file may be for sizes within bounds.
        profiles: whether its driver measures steps.
        records: whether its driver can tell torch's profiler of its steps.
        replays: whether calls can be recorded and replayed (``Options.cuda_graphs``).
        attends: whether it has kernels of attention; else that is traced as products and a softmax.
        cuts: how joint graphs are cut in forward and backward for it.
        shortens: whether repeated calls may go straight to its library (``calls/fast_path.py``), which has the entry for them.
    """

    plans_memory: ClassVar[bool] = True
    tunes: ClassVar[bool] = False
    saves: ClassVar[bool] = False
    saves_sizes: ClassVar[bool] = False
    profiles: ClassVar[bool] = False
    records: ClassVar[bool] = False
    replays: ClassVar[bool] = False
    attends: ClassVar[bool] = True
    cuts: ClassVar[CutFor] = CutFor()
    shortens: ClassVar[bool] = True

    @classmethod
    def device(cls) -> str:
        """The kind of device whose memory its code reads: "cpu" or "cuda"."""
        return "cpu"

    @classmethod
    def check_host(cls) -> None:
        """Refuse a machine on which nothing of its code could run, before anything is captured.

        Raises:
            OptionError: this is one.
        """

    @classmethod
    def rates(cls) -> Any:
        """Rates of the device that its code runs on, of which floors are made; None where that is this machine's processor."""
        return None

    @classmethod
    def profiled_on(cls) -> str:
        """The device that a profile's times are of; "" of threads of the CPU."""
        return ""

    @abstractmethod
    def pipeline(self, level: int) -> tuple[Pass, ...]:
        """The passes of ``-O<level>``, 0 to 4."""

    def refuse(self) -> None:
        """Refuse to make code that the machine at hand cannot run.

        Raises:
            OptionError: it lacks what the code needs.
        """

    def for_architectures(self, names: Sequence[str]) -> DriverTarget:
        """The same target for code that runs on processors of these architectures, wherever it is made.

        Raises:
            OptionError: it makes code for the processor at hand alone, or does not know one of them.
        """
        raise OptionError(
            f"target {self.name!r} makes code for the processor at hand",
            where=f"arch={', '.join(names)}",
            hint="target='cuda'",
        )

    def whole_program(
        self, done: Imported, keep: Callable[[str, str], None] | None
    ) -> Callable[[Sequence[Any]], list[Any]] | None:
        """The program of a network if another compiler makes all of it; None: kernels, a library and ``load``.

        Args:
            done: the rewritten network.
            keep: hears the name and the text of every source.
        """
        return None

    def beside_plan(self, net: Network) -> int:
        """Bytes that a call of a network takes beside its planned scratch memory, its arguments and its results, at most at one time."""
        return 0

    def replay(self, program: Any) -> str:
        """Have the calls of a program that ``load`` has made be replays; why not, "" if they are. Asked of targets that say so alone."""
        raise NotImplementedError

    def load(self, done: Imported, library: Library, arenas: Arenas | None, *, prepare: str) -> Program:
        """The callable program of a library.

        Args:
            done, library: the network and its code.
            arenas: where its scratch memory is taken from, which others may share.
            prepare: when what depends on parameters alone is computed (``Options.prepare``).
        """
        return assemble(done, library, arenas, prepare=prepare)
