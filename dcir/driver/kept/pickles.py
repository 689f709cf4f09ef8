"""Compiled graphs as bytes in dcir's cache, and back: libraries by their keys there, programs by what calls them.

What belongs to a process is left out and put in again: scratch memory, loaded libraries, who knows of the programs. What a program was made
of is left out for good: networks, graphs, what compiles.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dcir.cache import Cache
from dcir.codegen.compile import Library
from dcir.driver.assemble import calls_into_torch
from dcir.driver.moving_graph import MovingGraph
from dcir.driver.moving_program import MovingProgram
from dcir.driver.one_at_a_time import Late
from dcir.driver.record import GraphRecord
from dcir.driver.session import Session
from dcir.frontends.torch.ahead_of_time import new_pair
from dcir.frontends.torch.kept.descriptions import Unkept
from dcir.frontends.torch.kept.objects import UNWRITTEN, Reader, Writer, name_of
from dcir.frontends.torch.kept.recording import Call, KeptCall
from dcir.ir.moving_network import MovingNetwork
from dcir.ir.network import Network
from dcir.runtime.program import Program

_MOST_BYTES = 1 << 22
"""Of a constant: a larger one would make every start read it."""
_BARE = frozenset((
    "dcir.frontends.torch.late_graph.LateGraph", "dcir.frontends.torch.shapes.conditions.Conditions",
    "dcir.frontends.torch.shapes.moving_sizes.MovingSizes", "dcir.frontends.torch.shapes.programs.Programs",
    "dcir.runtime.donation.Donation", "dcir.runtime.donation._Watched", "dcir.runtime.donation._Spared",
    "torch._subclasses.functional_tensor.FunctionalTensor",
))  # fmt: skip
"""Classes of whose objects all is written that they hold."""
_AOT = "torch._functorch._aot_autograd"
_NAMES = _BARE | frozenset((
    "dcir.codegen.compile.Library", "dcir.codegen.steps.Place", "dcir.driver.kept.pickles._itself",
    "dcir.driver.kept.pickles._moving_program", "dcir.driver.kept.pickles._program", "dcir.driver.kept.pickles._with",
    "dcir.driver.record.GraphRecord", "dcir.frontends.torch.as_laid_out.Laid", "dcir.frontends.torch.kept.recording.KeptCall",
    "dcir.frontends.torch.kept.pieces.KeptPiece", "dcir.frontends.torch.kept.pieces.KeptPieces",
    "dcir.frontends.torch.kept.recording.KeptGraph", "dcir.frontends.torch.kept.wrappers.KeptWrappers",
    "dcir.frontends.torch.shapes.batch_buckets.Batch",
    "dcir.runtime.backward_blocks.BackwardBlocks", "dcir.runtime.donation._spared",
    "dcir.frontends.torch.shapes.programs.Span", "dcir.frontends.torch.shapes.programs._Behind", "dcir.ir.moving_network.MovingContainer",
    "dcir.ir.moving_network.MovingResult", "dcir.ir.origins.Frame", "dcir.ir.origins.Origins", "dcir.ir.origins.Place",
    "dcir.ir.sizes.Bounds", "dcir.ir.sizes.Polynomial", "dcir.ops.analysis.size_axes.Axis", "dcir.ops.analysis.size_ladders.Ladder",
    "dcir.ops.library.torch_call.TorchCall", "dcir.runtime.program_info.BufferInfo",
    "dcir.runtime.program_info.ProgramInfo", "dcir.runtime.program_info.ResultInfo", "dcir.transforms.runner.PassRecord",
    "torch._dynamo.source.AttrSource", "torch._dynamo.source.DictGetItemSource", "torch._dynamo.source.GetItemSource",
    "torch._dynamo.source.LocalSource", "torch._dynamo.source.TensorProperty", "torch._dynamo.source.TensorPropertySource",
    "torch._dynamo.source.UnspecializedBuiltinNNModuleSource", "torch._dynamo.source.UnspecializedNNModuleSource",
    "torch._dynamo.source.UnspecializedParamBufferSource", "torch.Tensor", "torch.nn.parameter.Parameter",
    "torch._C._functionalization.InverseReturnMode", "torch.SymInt", "torch.fx.experimental.symbolic_shapes.SymIntEqByExpr",
    f"{_AOT}.functional_utils.MetadataKey", f"{_AOT}.functional_utils.ViewMetaSequence",
    *(f"torch._C._functionalization.{name}" for name in dir(torch._C._functionalization) if name.endswith("ViewMeta")),
    *(f"{_AOT}.descriptors.{name}" for name in (
        "PlainAOTOutput", "TangentAOTInput", "PlainAOTInput", "ParamAOTInput", "BufferAOTInput", "InputMutationAOTOutput",
        "IntermediateBaseAOTOutput", "GradAOTOutput", "SavedForBackwardsAOTOutput",
    )),
    *(f"{_AOT}.runtime_wrappers.{name}" for name in (
        "AOTDedupeWrapper", "AOTSyntheticBaseWrapper", "EffectTokensWrapper", "FunctionalizedRngRuntimeWrapper", "FakifiedOutWrapper",
    )),
    *(f"{_AOT}.schemas.{name}" for name in (
        "CacheableAOTConfig", "InputAliasInfo", "MemoryFormatMeta", "MutationType", "OutputAliasInfo", "OutputType", "PlainTensorMeta",
        "ViewAndMutationMeta",
    )),
))  # fmt: skip
"""What a file may name besides: whose objects are their fields, and what makes objects of them."""


def to_bytes(kept: KeptCall, session: Session, cache: Cache) -> bytes:
    """A graph's compiled form.

    Raises:
        Unkept: something in it cannot be kept, or is not there yet.
    """
    out = io.BytesIO()
    try:
        _Pickler(out, session, cache).dump(kept)
    except UNWRITTEN as e:
        raise Unkept(f"it cannot be written: {e}") from e
    return out.getvalue()


def from_bytes(data: bytes, session: Session, cache: Cache) -> KeptCall:
    """A graph's compiled form, from what ``to_bytes`` made.

    Raises:
        Unkept: a library is gone, or the bytes are of something else.
    """
    found = _Unpickler(data, session, cache).load()
    if not isinstance(found, KeptCall):
        raise Unkept("no graph")
    return found


class _Pickler(Writer):
    def __init__(self, out: io.BytesIO, session: Session, cache: Cache) -> None:
        super().__init__(out)
        self._session, self._cache = session, cache

    def persistent_id(self, value: Any) -> Any:
        """What is found again in another process by its name."""
        session = self._session
        named = (("session", session), ("arenas", session.arenas), ("programs", session.programs))
        name = next((name for name, known in named if value is known), None)
        if name is not None:
            return (name,)
        if isinstance(value, Path):
            place = self._cache.place_of(value)
            if place is None:
                raise Unkept("a library is not in the cache")
            return ("file", *place)
        return None

    def reducer_override(self, value: Any) -> Any:
        """What another process needs of a value; raises ``Unkept`` of what it cannot have."""
        if isinstance(value, Late):
            if value.program is None:
                raise Unkept("a backward is not compiled yet")
            return _itself, (value.program,)
        if isinstance(value, Program):
            return self._program(value)
        if isinstance(value, MovingProgram):
            record, _ = self._made(value)
            return _moving_program, (self._session, value.__getstate__(), record)
        if isinstance(value, Library):
            return super().reducer_override(_reduced(value))
        if isinstance(value, MovingGraph):
            return _with, (name_of(MovingGraph), {**vars(value), "widest": None, "passes": []})
        if isinstance(value, MovingNetwork):
            return _with, (name_of(MovingNetwork), {**vars(value), "widest": None, "operators": {}, "samples": ()})
        if isinstance(value, torch.Tensor):
            plain = type(value) is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided
            if not plain or value.requires_grad or value.untyped_storage().nbytes() > _MOST_BYTES:
                raise Unkept("it holds a tensor that is large, or none of the CPU's")
        if isinstance(value, fx.Node | fx.Graph | fx.GraphModule | torch.nn.Module | Network | torch.SymInt):
            raise Unkept(f"it holds a {type(value).__name__}")
        return super().reducer_override(value)

    def _made(self, program: Any) -> tuple[GraphRecord, Library]:
        found = self._session.made.get(program)
        if found is None:
            raise Unkept("of a program nothing is known")
        record, library = found
        return replace(record, seconds={}, generated=0, work=list(record.work)), library

    def _program(self, program: Program) -> Any:
        record, library = self._made(program)
        if program.info.kept:
            raise Unkept("an operator calls a graph")
        info = replace(program.info, callbacks={})
        return _program, (
            self._session, library, info, program.constants, program.preparation.policy, program.name, record,
        )  # fmt: skip


class _Unpickler(Reader):
    def __init__(self, data: bytes, session: Session, cache: Cache) -> None:
        super().__init__(data, _NAMES)
        self._session, self._cache = session, cache

    def persistent_load(self, pid: Any) -> Any:
        """What ``persistent_id`` named."""
        name, *place = pid
        if name != "file":
            session = self._session
            return {"session": session, "arenas": session.arenas, "programs": session.programs}[name]
        path = self._cache.path_of(*place)
        if path is None:
            raise Unkept("a library is gone from the cache")
        return path


def _itself(value: Any) -> Any:
    return value


def _with(name: str, state: dict[str, Any]) -> Any:
    cls = {name_of(c): c for c in (MovingGraph, MovingNetwork)}[name]
    made = cls.__new__(cls)
    made.__dict__.update(state)
    return made


def _reduced(library: Library) -> Library:
    """What calls need of a library."""
    return replace(
        library, origins=[], steps=(), tuned={}, measured={}, schedules={}, jobs={}, came_from={}, slots={}, compiled=0
    )  # fmt: skip


def _program(
    session: Session, library: Library, info: Any, constants: list[torch.Tensor], policy: str, name: str, record: GraphRecord
) -> Program:  # fmt: skip
    info = replace(info, callbacks=calls_into_torch(library))
    made = Program(library.path, info, constants, session.arenas, prepare=policy)
    made.name = name
    session.programs.add(made)
    session.made[made] = record, library
    return made


def _moving_program(session: Session, state: dict[str, Any], record: GraphRecord) -> MovingProgram:
    made = MovingProgram.__new__(MovingProgram)
    made.__setstate__(state)
    session.made[made] = record, made.library
    return made


def tell(session: Session, kept: KeptCall, add: Callable[[GraphRecord], None]) -> None:
    """Have ``add`` hear of what became of the graphs, as if they were compiled now."""
    pair = new_pair()
    for program in sorted(_programs(kept), key=lambda p: p in session.made and session.made[p][0].kind == "backward"):
        if program in session.made:
            record, library = session.made[program]
            told = replace(record, together=pair)
            session.made[program] = told, library
            add(told)


def is_complete(calls: Iterable[Call]) -> bool:
    """Whether what was compiled has its programs: a backward gets its own when it is first called."""
    return not any(isinstance(part, Late) and part.program is None for part in _parts(calls))


def _programs(kept: KeptCall) -> list[Any]:
    """The programs in a graph's compiled form."""
    return [part for part in _parts(kept.calls) if isinstance(part, Program | MovingProgram)]


def _parts(calls: Iterable[Call]) -> Iterator[Any]:
    """What is called within what was compiled, down to the programs."""
    pending: list[Any] = [*calls]
    while pending:
        value = pending.pop(0)
        yield value
        if not isinstance(value, Program | MovingProgram):
            inner = (getattr(value, name, None) for name in ("program", "_call"))
            pending += [v for v in inner if v is not None]
            pending += [call for _, call in getattr(value, "made", ())]
